"""When a training step is bad, and what follows from it: pure decisions, equal on every rank and on every rerun.

A step is bad when its loss or gradient is not finite, or when both lie above mean + 6 sigma of the last 128 applied
steps (from 64 on; sigma counts as 2 % of the mean at least). A bad step is skipped: weights and moments stay. More than
3 in 10 steps are trouble: training goes back to a healthy checkpoint at least 20 steps older than the first of them
and passes over the rows from the first to the last bad step and a margin, which grows with each attempt. When the last
attempt ends in trouble too, the held-out loss decides: as before -> the data changed, not the model, and the new level
is accepted; else training halts. Every number is a field of StabilityConfig; the memory is part of every checkpoint.

    losses 3.0, 3.1, ... then 31 -> skipped;  four in ten -> back to step 200, positions 3,200 to 3,376 are not read
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from model.config import StabilityConfig
from model.schedule import Decision, Events, Factor, SkipRange, StepPlan

Move = Literal["go on", "roll back", "judge the level"]


class BadStep(BaseModel, frozen=True, extra="forbid"):
    """A step that was not applied."""

    step: int
    tokens: int  # clock before it
    position_from: int
    position_to: int
    is_finite: bool


class Memory(BaseModel, frozen=True, extra="forbid"):
    """What the rule remembers of a phase. A new phase begins with an empty one: its mixture may have another level."""

    losses: tuple[float, ...] = ()  # of the last applied steps
    norms: tuple[float, ...] = ()
    bad_steps: tuple[BadStep, ...] = ()
    since_step: int = 0  # bad steps up to here are settled
    attempts: int = Field(default=0, description="roll-backs of the trouble that is not over yet")
    calm_tokens: int = Field(default=0, description="clock at which it is over")
    reference_loss: float | None = Field(default=None, description="held-out loss of the state gone back to")

    def recent(self, step: int, config: StabilityConfig) -> list[BadStep]:
        """The unsettled bad steps among the last ones."""
        begin = max(step - config.recent_steps, self.since_step)
        return [bad for bad in self.bad_steps if bad.step > begin]


def is_bad(memory: Memory, loss: float, norm: float, config: StabilityConfig) -> bool:
    """Whether a step with this loss and gradient norm must not be applied."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return True
    if len(memory.losses) < config.min_window_steps:
        return False
    return loss > limit_of(memory.losses, config) and norm > limit_of(memory.norms, config)


def limit_of(values: Sequence[float], config: StabilityConfig) -> float:
    """mean + sigmas x standard deviation (of the population, at least `min_sigma_ratio` of the mean)."""
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return mean + config.sigmas * max(sigma, config.min_sigma_ratio * abs(mean))


def with_applied(memory: Memory, loss: float, norm: float, tokens: int, config: StabilityConfig) -> Memory:
    """The memory after an applied step that ended at this clock."""
    is_over = memory.attempts > 0 and tokens >= memory.calm_tokens
    return memory.model_copy(
        update={
            "losses": (*memory.losses, loss)[-config.window_steps :],
            "norms": (*memory.norms, norm)[-config.window_steps :],
            "attempts": 0 if is_over else memory.attempts,
        }
    )


def with_bad(memory: Memory, bad: BadStep) -> Memory:
    """The memory after a step that was skipped."""
    return memory.model_copy(update={"bad_steps": (*memory.bad_steps, bad)})


def next_move(memory: Memory, step: int, config: StabilityConfig) -> Move:
    """What follows the bad step `step`."""
    if len(memory.recent(step, config)) <= config.max_bad_steps:
        return "go on"
    return "roll back" if memory.attempts < len(config.margin_steps) else "judge the level"


def is_level_shift(memory: Memory, step: int, held_out_loss: float | None, config: StabilityConfig) -> bool:
    """Whether trouble after the last attempt lies in the data: finite losses, and a model as good as it was."""
    if held_out_loss is None or memory.reference_loss is None:
        return False
    is_as_before = held_out_loss <= memory.reference_loss * (1 + config.level_tolerance)
    return is_as_before and all(bad.is_finite for bad in memory.recent(step, config))


def with_level_accepted(memory: Memory, step: int) -> Memory:
    """The memory after a level shift: the window begins anew, what was bad is settled."""
    return Memory(bad_steps=memory.bad_steps, since_step=step)


def after_roll_back(restored: Memory, before: Memory, calm_tokens: int, reference_loss: float | None) -> Memory:
    """The memory of the state gone back to, with the attempts of the trouble that made it necessary."""
    return restored.model_copy(
        update={
            "attempts": before.attempts + 1,
            "calm_tokens": calm_tokens,
            "reference_loss": reference_loss if before.attempts == 0 else before.reference_loss,
        }
    )


def with_roll_back(events: Events, memory: Memory, plan: StepPlan, config: StabilityConfig, to_step: int) -> Events:
    """The events with what a roll-back adds: rows passed over, and a gentler stretch from the first bad step on.

    `plan` is the last bad step's. Factors do not compound: those that still held are replaced.
    """
    bad = memory.recent(memory.bad_steps[-1].step, config)
    first, last = bad[0], bad[-1]
    margin = config.margin_steps[memory.attempts] * plan.batch_rows
    skip = SkipRange(phase=plan.phase, start=first.position_from, stop=last.position_to + margin)
    begin, end = first.tokens, calm_tokens_of(first, plan, config)
    kept = [factor for factor in events.factors if factor.to_tokens <= begin]
    factors: list[tuple[Literal["lr", "clip"], float]] = [
        ("lr", config.calm_lr_factor),
        ("clip", config.calm_clip_factor),
    ]
    calm = [Factor(kind=kind, factor=factor, from_tokens=begin, to_tokens=end) for kind, factor in factors]
    decision = Decision(
        kind="roll back", step=last.step, bad_steps=tuple(step.step for step in bad), to_step=to_step,
        attempt=memory.attempts + 1, skip=skip,
    )  # fmt: skip
    return Events(
        skips=(*events.skips, skip), factors=(*kept, *calm), decisions=(*events.decisions, decision)
    )  # fmt: skip


def calm_tokens_of(first: BadStep, plan: StepPlan, config: StabilityConfig) -> int:
    """The clock at which the gentler stretch ends, and with it the trouble if none came again."""
    return first.tokens + config.calm_steps * plan.batch_rows * plan.sequence_length
