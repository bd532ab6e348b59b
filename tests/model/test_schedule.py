import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from model.architecture import ModelConfig
from model.config import PhaseRun, TrainConfig
from model.phases import PhaseConfig
from model.schedule import (
    Decision,
    Events,
    Factor,
    SkipRange,
    batch_rows_at,
    lr_at,
    lr_batch_factor,
    plan_phase,
    plan_step,
    rows_of_phase,
)

LENGTH = 256


def make_phase(**fields: Any) -> PhaseConfig:
    schedule = {"lr": 1e-3, "warmup_tokens": 4096} | fields.pop("schedule", {})
    defaults = {"name": "main", "tokens": 40_960, "weights": {"web": 1}, "sequence_length": LENGTH, "batch": 16}
    return PhaseConfig.model_validate(defaults | {"schedule": schedule} | fields)


def make_run(**fields: Any) -> PhaseRun:
    return PhaseRun(model=ModelConfig.of_size("tiny"), phase=make_phase(**fields))


def test_learning_rate_has_its_exact_value_at_every_corner() -> None:
    phase = make_phase()
    assert lr_at(phase, 1024) == 1e-3 * 0.25
    assert lr_at(phase, 4096) == 1e-3
    half = 4096 + (40_960 - 4096) // 2
    assert lr_at(phase, half) == pytest.approx(1e-3 * (0.1 + 0.9 * 0.5), rel=1e-15)
    assert lr_at(phase, 40_960) == pytest.approx(1e-4, rel=1e-12)
    assert lr_at(phase, 50_000) == lr_at(phase, 40_960)


def test_learning_rate_of_step_n_follows_the_formula() -> None:
    plans = list(plan_phase(make_run()))
    assert len(plans) == 10
    for step, plan in enumerate(plans):
        progress = ((step + 1) * 16 * LENGTH - 4096) / (40_960 - 4096)
        assert plan.lr == pytest.approx(1e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * progress))), rel=1e-14)
    assert [plan.is_last for plan in plans] == [False] * 9 + [True]


def test_first_step_learns_and_warmup_to_the_end_keeps_the_peak() -> None:
    assert plan_step(make_run(), 0).lr == 1e-3
    assert plan_step(make_run(schedule={"warmup_tokens": 40_960}), 36_864).lr == 1e-3
    assert plan_step(make_run(schedule={"warmup_tokens": 8192}), 0).lr == 5e-4


def test_plan_carries_what_the_step_needs() -> None:
    plan = plan_step(make_run(rope_base=500_000, weights={"web": 3, "code": 1}), 4096)
    assert (plan.phase, plan.tokens_in_phase, plan.batch_rows, plan.sequence_length) == ("main", 4096, 16, LENGTH)
    assert (plan.weight_decay, plan.clip, plan.rope_base) == (0.1, 1.0, 500_000)
    assert plan.slots == {"code": 1024, "web": 3072}
    assert plan_step(make_run(), 0).rope_base == 10_000


def test_ramp_changes_batches_at_its_thresholds_and_scales_the_rate() -> None:
    ramp = {0: 4, 4096: 8, 12_000: 16}
    phase = make_phase(batch=ramp)
    assert [batch_rows_at(phase, tokens) for tokens in (0, 4095, 4096, 11_999, 12_000)] == [4, 4, 8, 8, 16]
    plain = list(plan_phase(make_run(batch=ramp)))
    rooted = list(plan_phase(make_run(batch=ramp, schedule={"lr_batch_rule": "sqrt"})))
    assert [plan.batch_rows for plan in plain[:9]] == [4, 4, 4, 4, 8, 8, 8, 8, 16]
    assert [r.lr / p.lr for r, p in zip(rooted, plain, strict=True)] == pytest.approx(
        [math.sqrt(plan.batch_rows / 4) for plan in plain]
    )


@pytest.mark.parametrize("batch", [{0: 16}, {0: 7}, {0: 4, 4000: 8, 12_000: 16}, {0: 4, 50: 8, 99: 12}])
@pytest.mark.parametrize("tokens", [40_960, 40_961, 100, 33_333])
def test_rows_of_a_phase_are_those_of_its_steps(batch: Any, tokens: int) -> None:
    reached = {at: rows for at, rows in batch.items() if at < tokens}
    run = make_run(batch=reached, tokens=tokens, schedule={"warmup_tokens": 0})
    plans = list(plan_phase(run))
    assert rows_of_phase(run) == sum(plan.batch_rows for plan in plans)
    assert plans[-1].is_last
    assert plans[-1].tokens_in_phase < tokens <= plans[-1].end_tokens


def test_factors_hold_in_their_interval_only() -> None:
    events = Events(factors=(Factor(kind="lr", factor=0.5, from_tokens=4096, to_tokens=12_288),))
    clipped = Events(factors=(Factor(kind="clip", factor=0.5, from_tokens=0, to_tokens=4096),))
    run = make_run()
    for tokens in (0, 4096, 8192, 12_288):
        halved = 0.5 if 4096 <= tokens < 12_288 else 1.0
        assert plan_step(run, tokens, events).lr == plan_step(run, tokens).lr * halved
        assert plan_step(run, tokens, clipped).clip == (0.5 if tokens < 4096 else 1.0)
    assert Events.model_validate_json(events.model_dump_json()) == events


def test_no_step_begins_outside_the_phase() -> None:
    with pytest.raises(ValueError, match="phase main has 40960 tokens; no step begins at 40960"):
        plan_step(make_run(), 40_960)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights": {"web": 0, "code": 0}}, "sum to nothing; give at least one source a weight above 0"),
        ({"weights": {}}, "sum to nothing"),
        ({"weights": {"web": -1, "code": 2}}, "greater than or equal to 0"),
        ({"weights": {"web": math.nan}}, "finite number"),
        ({"sequence_length": 0}, "greater than or equal to 2"),
        ({"batch": 0}, "greater than or equal to 1"),
        ({"batch": {100: 4}}, "the ramp must begin with from_tokens 0"),
        ({"batch": {0: 8, 100: 4}}, "4 rows from 100 tokens on, after 8 from 0"),
        ({"batch": {0: 4, 40_960: 8}}, "batch of 8 rows from 40960 tokens on is never reached: the phase has 40960; "),
        ({"schedule": {"warmup_tokens": 50_000}}, "schedule.warmup_tokens 50000 exceeds tokens 40960"),
        ({"schedule": {"lr": 0}}, "greater than 0"),
        ({"schedule": {"shape": "wsd", "decay_tokens": 40_000}}, "warmup_tokens 4096 and decay_tokens 40000 overlap"),
        ({"schedule": {"decay_tokens": 40}}, "belong to shape 'wsd', not 'cosine'"),
        ({"schedule": {"shape": "constant", "final_ratio": 0.5}}, "final_ratio 0.5 with shape 'constant'"),
        ({"schedule": {"lr_batch_tokens": 64}}, "lr_batch_tokens 64 without lr_batch_rule: sqrt"),
        ({"schedule": {"shape": "square"}}, "Input should be 'cosine', 'linear', 'wsd' or 'constant'"),
        ({"schedule": {"horizon_tokens": 40_960, "from_tokens": 1}}, "horizon_tokens 40960 ends before the phase does"),
        ({"after": {"run": "latest"}}, "name one"),
        ({"name": "Main run"}, "match pattern"),
        ({"tokenz": 1}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_phase_is_refused_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_phase(**fields)


def test_batch_that_ranks_cannot_share_names_the_fitting_sizes() -> None:
    phase = make_phase(batch={0: 6, 4096: 12})
    phase.check_ranks(2)
    with pytest.raises(
        ValueError, match=r"batch of 6 rows is not divisible by 4 ranks; use 4 or 8 rows, or ranks 1, 2, 3, 6"
    ):
        phase.check_ranks(4)


def test_lr_of_a_shape_is_that_of_the_formula_at_every_corner() -> None:
    tokens = {"tokens": 40_960}
    linear = make_phase(**tokens, schedule={"shape": "linear"})
    assert [lr_at(linear, at) for at in (2048, 4096, 40_960)] == [5e-4, 1e-3, 0.0]
    assert lr_at(linear, 22_528) == pytest.approx(5e-4, rel=1e-14)
    constant = make_phase(**tokens, schedule={"shape": "constant"})
    assert [lr_at(constant, at) for at in (2048, 4096, 30_000, 40_960)] == [5e-4, 1e-3, 1e-3, 1e-3]
    wsd = make_phase(**tokens, schedule={"shape": "wsd"})  # the last tenth falls
    assert [lr_at(wsd, at) for at in (4096, 36_864, 40_960)] == [1e-3, 1e-3, 0.0]
    assert lr_at(wsd, 38_912) == pytest.approx(5e-4, rel=1e-14)
    for shape, left in (("linear", 0.75), ("cosine", 0.5 * (1 + math.cos(math.pi / 4))), ("sqrt", 0.5)):
        fields = {"shape": "wsd", "decay_tokens": 20_480, "decay_shape": shape, "final_ratio": 0.2}
        phase = make_phase(**tokens, schedule=fields)
        assert lr_at(phase, 20_480) == 1e-3
        assert lr_at(phase, 25_600) == pytest.approx(1e-3 * (0.2 + 0.8 * left), rel=1e-14)
        assert lr_at(phase, 40_960) == pytest.approx(2e-4, rel=1e-14)


STEPS, WARM = 10, 2  # of 4,096 tokens each
WSD = {"num_decay_steps": 3, "num_stable_steps": 5}


@pytest.mark.parametrize(
    ("schedule", "name", "theirs"),
    [
        ({"final_ratio": 0.0}, "get_cosine_schedule_with_warmup", {"num_training_steps": STEPS}),
        ({}, "get_cosine_with_min_lr_schedule_with_warmup", {"num_training_steps": STEPS, "min_lr_rate": 0.1}),
        ({"shape": "linear"}, "get_linear_schedule_with_warmup", {"num_training_steps": STEPS}),
        ({"shape": "constant"}, "get_constant_schedule_with_warmup", {}),
        ({"shape": "wsd", "decay_tokens": 3 * 4096}, "get_wsd_schedule", WSD | {"decay_type": "linear"}),
        (
            {"shape": "wsd", "decay_tokens": 3 * 4096, "decay_shape": "sqrt"},
            "get_wsd_schedule",
            WSD | {"decay_type": "1-sqrt"},
        ),
    ],
)
def test_lr_of_step_n_is_that_of_transformers(schedule: dict[str, Any], name: str, theirs: dict[str, Any]) -> None:
    from transformers import optimization  # late: two seconds, for these cases only

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    scheduler = getattr(optimization, name)(optimizer, num_warmup_steps=WARM, **theirs)
    expected = []
    for _ in range(STEPS):
        optimizer.step()
        scheduler.step()
        expected.append(scheduler.get_last_lr()[0])
    plans = plan_phase(make_run(schedule={"warmup_tokens": WARM * 4096} | schedule))
    assert [plan.lr for plan in plans] == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_rate_for_a_named_batch_scales_from_there() -> None:
    """OLMo-core and nanochat: lr x sqrt(batch / reference batch)."""
    meant = {"shape": "constant", "lr_batch_rule": "sqrt", "lr_batch_tokens": 16 * LENGTH, "warmup_tokens": 0}
    run = make_run(batch={0: 4, 8192: 16}, schedule=meant)
    assert plan_step(run, 0).lr == pytest.approx(5e-4, rel=1e-14)
    assert plan_step(run, 8192).lr == 1e-3


def test_lengths_of_a_phase_become_phases_on_one_curve() -> None:
    whole = make_phase(name="main", schedule={"shape": "linear"})
    given = whole.model_dump(exclude={"after", "sequence_length", "batch"})
    given |= {"sequence_length": {"0": 128, "8192": 256}, "batch": {"0": 4, "4096": 8, "16384": 32}}
    del given["schedule"]["horizon_tokens"]
    before = make_phase(name="first").model_dump()
    config = TrainConfig.model_validate({"phases": [before, given]})
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config  # the resolved recipe says the same
    assert [(phase.name, phase.after, phase.tokens, phase.sequence_length) for phase in config.phases] == [
        ("first", None, 40_960, 256), ("main-128", "first", 8192, 128), ("main", "main-128", 32_768, 256),
    ]  # fmt: skip
    _, early, late = config.phases
    assert [(step.from_tokens, step.rows) for step in early.batch] == [(0, 4), (4096, 8)]
    assert [(step.from_tokens, step.rows) for step in late.batch] == [(0, 8), (8192, 32)]
    assert [lr_at(early, at) for at in (1024, 8192)] == [lr_at(whole, at) for at in (1024, 8192)]
    assert [lr_at(late, at) for at in (0, 5000, 32_768)] == [lr_at(whole, 8192 + at) for at in (0, 5000, 32_768)]


def test_lengths_with_the_batch_rule_share_the_batch_that_lr_is_meant_for() -> None:
    given = make_phase(schedule={"lr_batch_rule": "sqrt"}).model_dump(exclude={"after", "sequence_length", "batch"})
    del given["schedule"]["horizon_tokens"], given["schedule"]["lr_batch_tokens"]
    given |= {"sequence_length": {0: 64, 8192: 256}, "batch": 16}
    early, late = TrainConfig.model_validate({"phases": [given]}).phases
    assert [lr_batch_factor(phase, 16) for phase in (early, late)] == [1.0, 2.0]


@pytest.mark.parametrize(
    "lengths", [{0: 256, 4096: 128}, {100: 64}, {0: 64, 50_000: 128}, {0: 64, "x": 128}, {}, {0: "long"}]
)
def test_lengths_that_do_not_rise_within_the_phase_are_refused(lengths: dict[Any, Any]) -> None:
    given = make_phase().model_dump(exclude={"after"}) | {"sequence_length": lengths}
    with pytest.raises(ValidationError, match=r"phases\[0\]: (sequence_length \{|.* is no whole number)"):
        TrainConfig.model_validate({"phases": [given]})


def test_phases_follow_one_another_unless_told_otherwise() -> None:
    phases = [make_phase(name=name).model_dump(exclude={"after"}) for name in ("main", "anneal", "long")]
    phases[2]["after"] = "main"
    config = TrainConfig.model_validate({"phases": phases})
    assert [phase.after for phase in config.phases] == [None, "main", "main"]
    assert config.ancestors_of("anneal") == ["main"]
    assert config.run_of("long", ModelConfig.of_size("tiny")).phase.name == "long"
    phases[1]["rope_base"] = 5e5
    bases = [phase.rope_base for phase in TrainConfig.model_validate({"phases": phases}).phases]
    assert bases == [None, 5e5, None]  # long continues main, not anneal
    del phases[2]["after"]
    bases = [phase.rope_base for phase in TrainConfig.model_validate({"phases": phases}).phases]
    assert bases == [None, 5e5, 5e5]  # what follows keeps the base that the weights know
    for wrong, message in (("here", "must be an earlier phase"), ("long", "must be an earlier phase")):
        phases[2]["after"] = wrong
        with pytest.raises(ValidationError, match=message):
            TrainConfig.model_validate({"phases": phases})
    phases[2] |= {"after": "main", "name": "main"}
    with pytest.raises(ValidationError, match="'main' is used twice"):
        TrainConfig.model_validate({"phases": phases})
    with pytest.raises(ValidationError, match="at least 1 item"):
        TrainConfig.model_validate({"phases": []})


def test_a_decision_is_a_sentence() -> None:
    skip = SkipRange(phase="main", start=1456, stop=1648)
    back = Decision(kind="roll back", step=98, bad_steps=(92, 98), to_step=40, attempt=1, skip=skip)
    told = "went back to step 40, attempt 1: steps 92, 98 were bad, rows 1,456 to 1,648 of its order are passed over"
    assert str(back) == f"step 98: {told}"
    assert "the new level of the data is accepted" in str(Decision(kind="level shift", step=98, bad_steps=(92, 98)))
