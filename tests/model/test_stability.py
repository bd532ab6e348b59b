"""Decisions about bad steps, without a model."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.architecture import ModelConfig
from model.config import PhaseRun, StabilityConfig
from model.schedule import Events, Factor, StepPlan, plan_step
from model.stability import (
    BadStep,
    Memory,
    after_roll_back,
    calm_tokens_of,
    is_bad,
    is_level_shift,
    limit_of,
    next_move,
    with_applied,
    with_bad,
    with_level_accepted,
    with_roll_back,
)

CONFIG = StabilityConfig()
ROWS, LENGTH = 4, 16
STEP_TOKENS = ROWS * LENGTH
FULL = Memory(losses=(3.0,) * 64, norms=(1.0,) * 64)


def plan_at(step: int) -> StepPlan:
    phase = {
        "name": "main", "tokens": 1000 * STEP_TOKENS, "weights": {"web": 1}, "sequence_length": LENGTH,
        "batch": ROWS, "schedule": {"lr": 1e-3},
    }  # fmt: skip
    run = PhaseRun.model_validate({"model": ModelConfig.of_size("tiny"), "phase": phase})
    return plan_step(run, (step - 1) * STEP_TOKENS)


def bad_step(step: int, is_finite: bool = True) -> BadStep:
    return BadStep(
        step=step, tokens=(step - 1) * STEP_TOKENS, position_from=(step - 1) * ROWS, position_to=step * ROWS,
        is_finite=is_finite,
    )  # fmt: skip


def with_bad_steps(*steps: int, attempts: int = 0, is_finite: bool = True) -> Memory:
    memory = Memory(attempts=attempts)
    for step in steps:
        memory = with_bad(memory, bad_step(step, is_finite))
    return memory


@pytest.mark.parametrize(
    ("memory", "loss", "norm", "wanted"),
    [
        (Memory(), math.nan, 1.0, True),
        (Memory(), 1.0, math.inf, True),
        (Memory(), 1e9, 1e9, False),  # nothing to compare with yet
        (Memory(losses=(3.0,) * 63, norms=(1.0,) * 63), 30.0, 10.0, False),
        (FULL, 30.0, 10.0, True),
        (FULL, 30.0, 1.0, False),  # both must be high
        (FULL, 3.0, 10.0, False),
        (FULL, 3.36, 1.12, False),  # equal deviations count as 2 % of the mean: the limits are 3.36 and 1.12
        (FULL, 3.37, 1.13, True),
    ],
)
def test_a_step_is_bad_when_not_finite_or_far_above_both_means(
    memory: Memory, loss: float, norm: float, wanted: bool
) -> None:
    assert is_bad(memory, loss, norm, CONFIG) is wanted


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=128))
def test_the_limit_is_mean_plus_six_deviations(values: list[float]) -> None:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    assert limit_of(values, CONFIG) == pytest.approx(mean + 6 * max(deviation, 0.02 * mean), rel=1e-9)


def test_the_window_holds_applied_steps_alone() -> None:
    memory = Memory()
    for step in range(1, 200):
        memory = with_applied(memory, float(step), step / 10, step * STEP_TOKENS, CONFIG)
    memory = with_bad(memory, bad_step(200))
    assert memory.losses == tuple(map(float, range(72, 200)))
    assert memory.norms[-1] == 19.9
    assert [bad.step for bad in memory.bad_steps] == [200]


@pytest.mark.parametrize(
    ("steps", "attempts", "wanted"),
    [
        ((1, 2, 3), 0, "go on"),
        ((1, 2, 3, 4), 0, "roll back"),
        ((1, 8, 9, 11), 0, "go on"),  # the first is more than ten steps away
        ((2, 8, 9, 11), 3, "roll back"),
        ((2, 8, 9, 11), 4, "judge the level"),
    ],
)
def test_more_than_three_bad_steps_in_ten_are_trouble(steps: tuple[int, ...], attempts: int, wanted: str) -> None:
    assert next_move(with_bad_steps(*steps, attempts=attempts), steps[-1], CONFIG) == wanted


@pytest.mark.parametrize(("attempt", "margin"), enumerate(CONFIG.margin_steps))
def test_a_roll_back_passes_over_the_trouble_and_a_growing_margin(attempt: int, margin: int) -> None:
    memory = with_bad_steps(100, 101, 103, 104, attempts=attempt)
    events = with_roll_back(Events(), memory, plan_at(104), CONFIG, 80)
    [skip] = events.skips
    assert (skip.start, skip.stop) == (99 * ROWS, (104 + margin) * ROWS)
    assert [(f.kind, f.factor, f.from_tokens, f.to_tokens) for f in events.factors] == [
        ("lr", 0.5, 99 * STEP_TOKENS, 199 * STEP_TOKENS),
        ("clip", 0.5, 99 * STEP_TOKENS, 199 * STEP_TOKENS),
    ]
    [decision] = events.decisions
    assert (decision.kind, decision.step, decision.to_step, decision.attempt) == ("roll back", 104, 80, attempt + 1)
    assert decision.bad_steps == (100, 101, 103, 104)


def test_factors_do_not_compound_and_old_ones_stay() -> None:
    old = Factor(kind="lr", factor=0.1, from_tokens=0, to_tokens=10)
    first = with_roll_back(Events(factors=(old,)), with_bad_steps(100, 101, 102, 103), plan_at(103), CONFIG, 80)
    again = with_roll_back(first, with_bad_steps(100, 101, 102, 104, attempts=1), plan_at(104), CONFIG, 80)
    assert again.factor("lr", 99 * STEP_TOKENS) == 0.5
    assert again.factor("clip", 150 * STEP_TOKENS) == 0.5
    assert again.factor("lr", 199 * STEP_TOKENS) == 1.0
    assert old in again.factors
    assert len(again.skips) == len(again.decisions) == 2


def test_attempts_are_counted_until_calm() -> None:
    before = with_bad_steps(100, 101, 102, 103)
    calm = calm_tokens_of(before.bad_steps[0], plan_at(103), CONFIG)
    memory = after_roll_back(FULL, before, calm, 2.5)
    assert (memory.attempts, memory.reference_loss, memory.losses) == (1, 2.5, FULL.losses)
    second = after_roll_back(FULL, memory, calm, 9.9)
    assert (second.attempts, second.reference_loss) == (2, 2.5)  # the state before the first attempt is the measure
    assert with_applied(second, 3.0, 1.0, calm - 1, CONFIG).attempts == 2
    assert with_applied(second, 3.0, 1.0, calm, CONFIG).attempts == 0


@pytest.mark.parametrize(
    ("held_out", "reference", "is_finite", "wanted"),
    [
        (2.0, 2.0, True, True),
        (2.03, 2.0, True, True),
        (2.05, 2.0, True, False),  # the model is worse than it was: it diverges
        (2.0, 2.0, False, False),
        (None, 2.0, True, False),
        (2.0, None, True, False),
    ],
)
def test_a_level_is_accepted_when_the_model_is_as_before(
    held_out: float | None, reference: float | None, is_finite: bool, wanted: bool
) -> None:
    memory = with_bad_steps(7, 8, 9, 10, attempts=4, is_finite=is_finite)
    memory = memory.model_copy(update={"reference_loss": reference})
    assert is_level_shift(memory, 10, held_out, CONFIG) is wanted


def test_an_accepted_level_begins_anew() -> None:
    memory = with_level_accepted(with_bad_steps(7, 8, 9, 10, attempts=4), 10)
    assert (memory.losses, memory.attempts) == ((), 0)
    assert next_move(with_bad(memory, bad_step(11)), 11, CONFIG) == "go on"  # the four before are settled
    assert len(memory.bad_steps) == 4  # and still told


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"min_window_steps": 200}, "exceeds window_steps"), ({"margin_steps": [5, -1]}, "greater than or equal to 0")],
)
def test_wrong_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StabilityConfig.model_validate(fields)
