"""The forecast of a recipe: the plan step by step, what is known of sources, memory, checkpoints and time; pictures."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.job import Settings
from model.schedule import plan_phase
from tasks.charts import Series
from tasks.dataset import Workspace
from tasks.errors import ConfigError
from tasks.recipe import Recipe
from tasks.schedule import Forecast, curve_of, forecast, memory_of
from tasks.schedule.page import STRIP_CHARS, duration, schedule_page, strip
from tasks.train import train_phase
from tests.tasks.test_train import MODEL, SETTINGS, make_pack, make_run

RAMP = {"batch": {0: 4, 8192: 8, 30_000: 16}, "tokens": 60_000, "schedule": {"lr": 1e-2, "lr_batch_rule": "sqrt"}}


def recipe(*phases: dict[str, Any], **train: Any) -> Recipe:
    usual = {
        "tokens": 64_000, "sequence_length": 16, "batch": 4, "schedule": {"lr": 1e-3}, "weights": {"web": 3, "code": 1},
    }  # fmt: skip
    return Recipe.parse(
        {
            "name": "tiny", "ingest": {"sources": {"web": {"base": "/x"}, "code": {"base": "/y"}}},
            "vocabulary": {"size": 300}, "model": {"size": "tiny"}, "export": {"enabled": False},
            "train": train | {"phases": [usual | phase for phase in phases]},
        }
    )  # fmt: skip


def look(workspace: Workspace, wanted: Recipe, datasets: Any = (), **settings: Any) -> Forecast:
    return forecast(workspace.storage, wanted, datasets, Settings(**({"ranks": 2} | settings)))


def test_the_curve_is_the_plan(workspace: Workspace) -> None:
    run = recipe({"name": "main"} | RAMP).train.run_of("main", MODEL)
    plans = {plan.end_tokens: plan for plan in plan_phase(run)}
    curve = curve_of(run)
    assert len(curve) > 200
    for point in curve:
        plan = plans[point.tokens]
        assert (point.lr, point.batch_rows) == (plan.lr, plan.batch_rows)
    ends = [next(plan for plan in plans.values() if plan.batch_rows == rows).end_tokens for rows in (4, 8, 16)]
    assert set(ends) <= {point.tokens for point in curve}  # no change of batch is missed
    assert curve[-1].tokens == max(plans)


def test_checkpoints_are_counted_however_many_they_are(workspace: Workspace) -> None:
    main = {"name": "main", "sequence_length": 16, "batch": 4}  # 64 tokens a step
    [phase] = look(workspace, recipe(main | {"tokens": 64 * 1000}), checkpoint_steps=300).phases
    assert phase.saves.count == len({200, 400, 600, 800, 1000, 300, 900})
    staying = {"keep_every_steps": 250, "keep_steps": (7, 250, 2000)}
    [phase] = look(workspace, recipe(main | {"tokens": 64 * 1000}), checkpoint_steps=300, **staying).phases
    assert phase.saves.count == len({200, 400, 600, 800, 1000, 300, 900, 250, 500, 750, 7})
    [phase] = look(workspace, recipe(main | {"tokens": 64 * 10**15}), checkpoint_steps=300).phases
    assert phase.saves.count == 10**15 // 200 + 10**15 // 300 - 10**15 // 600


def test_phases_tell_steps_checkpoints_and_work(workspace: Workspace) -> None:
    phases = (
        {"name": "main"} | RAMP,
        {"name": "long", "sequence_length": 64, "rope_base": 5e5, "schedule": {"lr": 1e-4, "shape": "linear"}},
    )
    found = look(workspace, recipe(*phases), checkpoint_steps=300)
    main, long = found.phases
    run = recipe(*phases).train.run_of("main", MODEL)
    assert (main.steps, main.tokens) == (len(list(plan_phase(run))), list(plan_phase(run))[-1].end_tokens)
    assert (long.after, long.rope_base, long.shape, long.steps) == ("main", 5e5, "linear", 250)
    at = {step for step in range(1, main.steps) if step % 300 == 0 or step % 200 == 0} | {main.steps}
    assert (main.saves.count, main.saves.every_steps) == (len(at), 200)
    parameters = recipe(*phases).model.num_parameters
    assert main.saves.bytes == 12 * parameters
    assert main.saves.kept_bytes == main.saves.kept * 12 * parameters
    assert found.flops == pytest.approx(sum(phase.flops for phase in found.phases))
    assert long.flops / long.tokens > main.flops / main.tokens  # longer rows attend to more
    assert (found.parameters, found.active_parameters) == (parameters, parameters)


def test_memory_is_that_of_a_rank(workspace: Workspace) -> None:
    run = make_run(batch=4)
    alone, two = (memory_of(run, Settings(ranks=ranks, micro_batch_rows=4)) for ranks in (1, 2))
    assert alone.states == 16 * run.model.num_parameters
    assert alone.copies == 0
    assert two.states == alone.states / 2  # every first side of this model is even
    assert (alone.micro_batch_rows, two.micro_batch_rows) == (4, 2)
    assert two.activations < alone.activations
    assert alone.total == alone.states + alone.activations
    assert memory_of(run, Settings(ranks=2, parallel="ddp")).states == alone.states
    with pytest.raises(ConfigError, match="not divisible by 3 ranks"):
        memory_of(run, Settings(ranks=3))


def test_sizes_and_time_are_unknown_until_there_is_something_to_know_them_from(workspace: Workspace) -> None:
    found = look(workspace, recipe({"name": "main"}))
    assert [line.available for line in found.phases[0].sources] == [None, None]
    assert (found.seconds, found.phases[0].speed, found.phases[0].long_token_ratio) == (None, None, None)
    assert (found.warnings, found.tokens) == ([], 64_000)


def test_packs_and_earlier_trainings_are_used(workspace: Workspace) -> None:
    packs = [make_pack(workspace, source) for source in ("web", "code")]
    half = {"long_tokens": 2400}
    for pack in packs:  # as the packer writes them: of 4,800 tokens, half lie in long documents
        workspace.storage.delete(f"{pack.reference}/manifest.json")
        replace(pack, extra=pack.extra | half).publish(workspace.storage)
    trained = train_phase(*packs, into=workspace, config=make_run(), settings=SETTINGS)
    wanted = recipe({"name": "main", "tokens": 4096})
    wanted = wanted.model_copy(update={"model": MODEL, "train": wanted.train.model_copy(update={"precision": "fp32"})})
    datasets = [("pack", pack.reference) for pack in packs] + [("mix", None)]
    [phase] = look(workspace, wanted, datasets).phases
    assert phase.long_token_ratio == 0.5
    assert [(line.source, line.available, line.epochs) for line in phase.sources] == [
        ("code", 4800, 0.21), ("web", 4800, 0.64),
    ]  # fmt: skip
    assert phase.speed is not None
    assert phase.seconds == pytest.approx(4096 / trained.extra["tokens_per_second"])
    assert phase.speed.run_id == "test"
    assert phase.speed.compute.startswith("1 rank, cpu")
    other = wanted.model_copy(update={"train": wanted.train.model_copy(update={"precision": "bf16"})})
    assert look(workspace, other, datasets).seconds is None
    assert look(workspace, recipe({"name": "main"}), [("pack", packs[0].reference)]).phases[0].long_token_ratio is None


def test_a_page_holds_the_curves_and_escapes_names(workspace: Workspace) -> None:
    found = look(workspace, recipe({"name": "main"} | RAMP, {"name": "tail", "schedule": {"lr": 1e-3, "shape": "wsd"}}))
    named = found.model_copy(update={"recipe": "<b>tiny", "warnings": ["phase main: <i>"]})
    page = schedule_page(named)
    assert page.count("<svg") == 3
    assert page.count("<polyline") == 3 * 2
    assert "<b>tiny" not in page
    assert "<i>" not in page
    assert "unknown until mix or pack has run" in page


def test_a_strip_is_high_where_the_curve_is() -> None:
    rising = strip([Series("x", [1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 4.0])])
    assert len(rising) == STRIP_CHARS
    assert rising == "".join(sorted(rising))
    assert (rising[0], rising[-1]) == ("▁", "█")
    assert strip([]) == ""
    assert set(strip([Series("x", [1.0], [0.0])])) == {"▁"}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "unknown"), (5.4, "5 s"), (65, "1 min 5 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h"), (math.pi, "3 s")],
)
def test_durations_are_told_in_two_units(seconds: float | None, told: str) -> None:
    assert duration(seconds) == told


def test_a_forecast_needs_neither_torch_nor_ray() -> None:
    code = "import sys, tasks.schedule.page; print([n for n in ('torch', 'ray', 'prefect') if n in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
