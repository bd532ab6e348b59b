"""The plan of one step: a pure function of the recipe, the clock and the events. Nothing here reads a file or a device.

The clock is tokens = rows consumed x sequence_length in the phase; it alone drives every schedule, so the number of
ranks, the micro-batch and the batch ramp don't bend a curve. A step is planned by the tokens at its end: the first step
has a learning rate above 0 and the last has exactly the final one. Example: lr 1e-3, warm-up 4,096 tokens, 16 rows of
256: the first step ends the warm-up and runs at 1e-3.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from model.config import PhaseRun
from model.order import slots_of
from model.phases import PhaseConfig


class SkipRange(BaseModel, frozen=True, extra="forbid"):
    """Positions start..stop (half-open) of a phase are not read."""

    phase: str
    start: int = Field(ge=0)
    stop: int


class Factor(BaseModel, frozen=True, extra="forbid"):
    """The learning rate or the clip is multiplied while the clock is in from_tokens..to_tokens (half-open)."""

    kind: Literal["lr", "clip"]
    factor: float = Field(gt=0)
    from_tokens: int = Field(ge=0)
    to_tokens: int


class Decision(BaseModel, frozen=True, extra="forbid"):
    """What training decided by itself at the bad step `step`."""

    kind: Literal["roll back", "level shift"]
    step: int
    bad_steps: tuple[int, ...]
    to_step: int | None = None  # of the checkpoint gone back to; 0: the beginning of the phase
    attempt: int = 0
    skip: SkipRange | None = None

    def __str__(self) -> str:
        bad = f"steps {', '.join(map(str, self.bad_steps))} were bad"
        if self.kind == "level shift" or self.skip is None:
            return f"step {self.step}: {bad} and the held-out loss is as before: the new level of the data is accepted"
        rows = f"rows {self.skip.start:,} to {self.skip.stop:,} of its order are passed over"
        return f"step {self.step}: went back to step {self.to_step}, attempt {self.attempt}: {bad}, {rows}"


class Events(BaseModel, frozen=True, extra="forbid"):
    """What happened to a phase and changes its further plan; saved in every checkpoint."""

    skips: tuple[SkipRange, ...] = ()
    factors: tuple[Factor, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def factor(self, kind: Literal["lr", "clip"], tokens: int) -> float:
        """Product of the factors of one kind that hold at this clock."""
        holding = (f.factor for f in self.factors if f.kind == kind and f.from_tokens <= tokens < f.to_tokens)
        return math.prod(holding)

    def skipped(self, phase: str) -> list[tuple[int, int]]:
        """The position ranges of a phase that are not read."""
        return [(skip.start, skip.stop) for skip in self.skips if skip.phase == phase]


@dataclass(frozen=True)
class StepPlan:
    """What one step does; `slots` is the share of each source in 4,096 rows of the data order."""

    phase: str
    tokens_in_phase: int
    batch_rows: int
    sequence_length: int
    lr: float
    weight_decay: float
    clip: float
    rope_base: float
    slots: dict[str, int]
    is_last: bool

    @property
    def end_tokens(self) -> int:
        """The clock after the step."""
        return self.tokens_in_phase + self.batch_rows * self.sequence_length


def plan_step(run: PhaseRun, tokens: int, events: Events | None = None) -> StepPlan:
    """The step that begins when `tokens` of the phase are consumed. Raises ValueError beyond the end of the phase."""
    phase, events = run.phase, events or Events()
    if not 0 <= tokens < phase.tokens:
        raise ValueError(f"phase {phase.name} has {phase.tokens} tokens; no step begins at {tokens}")
    rows = batch_rows_at(phase, tokens)
    end = tokens + rows * phase.sequence_length
    return StepPlan(
        phase=phase.name,
        tokens_in_phase=tokens,
        batch_rows=rows,
        sequence_length=phase.sequence_length,
        lr=lr_at(phase, end) * lr_batch_factor(phase, rows) * events.factor("lr", tokens),
        weight_decay=run.optimizer.weight_decay,
        clip=run.optimizer.clip_norm * events.factor("clip", tokens),
        rope_base=run.rope_base,
        slots=slots_of(phase.weights),
        is_last=end >= phase.tokens,
    )


def plan_phase(run: PhaseRun, tokens: int = 0, events: Events | None = None) -> Iterator[StepPlan]:
    """Every step of a phase from a clock on."""
    while tokens < run.phase.tokens:
        plan = plan_step(run, tokens, events)
        yield plan
        tokens = plan.end_tokens


def lr_at(phase: PhaseConfig, tokens: int) -> float:
    """The learning rate at a clock of the phase, before batch rule and events.

    Equal to transformers' schedules of the same name at step n when the clock stands at the end of step n.
    """
    schedule, horizon = phase.schedule, phase.horizon_tokens
    tokens = min(schedule.from_tokens + tokens, horizon)
    if tokens < schedule.warmup_tokens:
        return schedule.lr * tokens / schedule.warmup_tokens
    begin = horizon - phase.decay_tokens if schedule.shape == "wsd" else schedule.warmup_tokens
    progress = max(0, tokens - begin) / (horizon - begin) if horizon > begin else 0.0
    return schedule.lr * (schedule.final_ratio + (1 - schedule.final_ratio) * _share_left(phase, progress))


def _share_left(phase: PhaseConfig, progress: float) -> float:
    """What is left of the way from the peak to the final rate, within 1..0, after `progress` of the decay."""
    schedule = phase.schedule
    match schedule.decay_shape if schedule.shape == "wsd" else schedule.shape:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "sqrt":
            return 1 - math.sqrt(progress)
        case "linear":
            return 1 - progress
    return 1.0


def lr_batch_factor(phase: PhaseConfig, rows: int) -> float:
    """sqrt(tokens of the batch / tokens of the batch that lr is meant for) with `lr_batch_rule: sqrt`, else 1."""
    schedule = phase.schedule
    if schedule.lr_batch_rule == "none":
        return 1.0
    meant = schedule.lr_batch_tokens or phase.batch[0].rows * phase.sequence_length
    return math.sqrt(rows * phase.sequence_length / meant)


def batch_rows_at(phase: PhaseConfig, tokens: int) -> int:
    """Rows of the batch that begins at this clock."""
    return next(step.rows for step in reversed(phase.batch) if step.from_tokens <= tokens)


class Stretch(NamedTuple):
    """Steps of a phase with one batch size, from a clock on."""

    from_tokens: int
    rows: int
    steps: int


def stretches_of(phase: PhaseConfig) -> list[Stretch]:
    """The steps of a phase by batch size: whole batches, so the last one may pass `tokens` by less than a batch."""
    stretches, tokens = [], 0
    ends = [step.from_tokens for step in phase.batch[1:]] + [phase.tokens]
    for step, end in zip(phase.batch, ends, strict=True):
        batch_tokens = step.rows * phase.sequence_length
        if (steps := -(-(min(end, phase.tokens) - tokens) // batch_tokens)) > 0:
            stretches.append(Stretch(tokens, step.rows, steps))
            tokens += steps * batch_tokens
    return stretches


def rows_of_phase(run: PhaseRun) -> int:
    """Rows that a phase consumes."""
    return sum(stretch.rows * stretch.steps for stretch in stretches_of(run.phase))
