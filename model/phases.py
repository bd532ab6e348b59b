"""The settings of one phase of training: length, mixture, batches, learning rate. No torch here.

A phase continues the one before it, another phase (`after: main`), or a checkpoint of another run (`after: {run: ...}`,
a fork). With `sequence_length: {0: 512, 1_000_000: 2048}` one phase becomes two that follow one another, main-512 and
main, since rows of another length are another pack; their learning rates lie on one curve.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from model.architecture import TRAINING_OF_SIZE

MAX_SOURCES = 4096  # slots in a block of the data order: every source with a weight gets one at least

Shape = Literal["cosine", "linear", "wsd", "constant"]
# What the last step has of the peak. cosine: GPT-3, OLMo 2; linear: torchtitan, OLMo 3; wsd: SmolLM3
FINAL_RATIOS: dict[object, float] = {"cosine": 0.1, "linear": 0.0, "wsd": 0.0, "constant": 1.0}
MAX_LR = 1000  # far above every use; what lies higher is a slip, and overflows
WSD_DECAY_RATIO = 0.1  # of the schedule, unless `decay_tokens` says otherwise (SmolLM3)


class ScheduleConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Learning rate over the tokens of a phase: linear warm-up, then the shape down to `final_ratio` of the peak."""

    lr: float = Field(gt=0, le=MAX_LR, description="peak learning rate, at the first batch size of the phase")
    shape: Shape = Field(
        default="cosine",
        description="cosine or linear: falls from the warm-up on; wsd: stays, then falls over decay_tokens; constant",
        json_schema_extra={"neutral": "cosine"},
    )
    warmup_tokens: int = Field(default=0, ge=0, description="tokens of linear warm-up from 0")
    decay_tokens: int | None = Field(
        default=None,
        ge=1,
        description="wsd: tokens at the end over which it falls; a tenth of the schedule unless given",
        json_schema_extra={"neutral": None},
    )
    decay_shape: Literal["linear", "cosine", "sqrt"] = Field(
        default="linear",
        description="wsd: how it falls; sqrt is 1 - sqrt(progress) (2405.18392)",
        json_schema_extra={"neutral": "linear"},
    )
    final_ratio: float = Field(
        default=0.1, ge=0, le=1, description="share of the peak at the end; 0.1 for cosine, else 0 unless given"
    )
    from_tokens: int = Field(
        default=0,
        ge=0,
        description="where on its schedule the phase begins: one that goes on with the curve of an earlier phase",
        json_schema_extra={"neutral": 0},
    )
    horizon_tokens: int | None = Field(
        default=None,
        ge=1,
        description="length of the whole schedule, where it is longer than the phase",
        json_schema_extra={"neutral": None},
    )
    lr_batch_rule: Literal["none", "sqrt"] = Field(
        default="none", description="sqrt: lr grows with the root of the batch ramp"
    )
    lr_batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="sqrt: tokens of the batch that `lr` is meant for; those of the phase's first batch unless given",
        json_schema_extra={"neutral": None},
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "final_ratio" in given:
            return given
        shape = given.get("shape", "cosine")
        return given | {"final_ratio": FINAL_RATIOS.get(shape, 0.1) if isinstance(shape, str) else 0.1}

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if self.shape == "constant" and self.final_ratio != 1:
            raise ValueError(f"final_ratio {self.final_ratio:g} with shape 'constant', which ends at its peak")
        if self.shape != "wsd" and (self.decay_tokens is not None or self.decay_shape != "linear"):
            raise ValueError(f"decay_tokens and decay_shape belong to shape 'wsd', not {self.shape!r}")
        if self.lr_batch_tokens is not None and self.lr_batch_rule == "none":
            raise ValueError(f"lr_batch_tokens {self.lr_batch_tokens} without lr_batch_rule: sqrt, which reads it")
        return self


class BatchStep(BaseModel, frozen=True, extra="forbid", strict=True):
    """From so many tokens of the phase on, a global batch holds so many rows."""

    from_tokens: int = Field(ge=0)
    rows: int = Field(ge=1)


class ForkConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """A checkpoint of another run that a phase begins with; hyper-parameters are always the recipe's."""

    run: str = Field(min_length=4, description="id of the run, or enough of it")
    phase: str | None = Field(default=None, description="its phase; the last one that was trained, unless given")
    step: int | None = Field(default=None, ge=1, description="a step with a checkpoint; the newest one unless given")
    take: Literal["state", "weights"] = Field(
        default="state", description="state: weights, moments and their step count; weights: moments begin at 0"
    )

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: str) -> str:
        if run == "latest":
            raise ValueError("'latest' would be the run that this recipe starts; name one")
        return run


After = Annotated[
    Annotated[str, Tag("(phase)")] | Annotated[ForkConfig, Tag("(fork)")],
    Discriminator(lambda given: "(phase)" if isinstance(given, str) else "(fork)"),
]


class PhaseConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """One phase of training: how long, on what mixture, with which batch and learning rate."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="lower-case letters, digits, hyphens")
    after: After | None = Field(
        default=None,
        description="the phase whose last checkpoint this one continues (the one before), or {run, phase, step, take}",
    )
    tokens: int = Field(ge=1, description="rows consumed x sequence_length; the last batch is whole")
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        description="source -> share of training tokens; any scale"
    )
    sequence_length: int = Field(
        ge=2, description="tokens in a row; a mapping {from_tokens: length} makes a phase of each length"
    )
    min_document_tokens: int = Field(
        default=0, ge=0, description="only documents of at least so many tokens (long context)"
    )
    batch: tuple[BatchStep, ...] = Field(
        strict=False, description="rows in a global batch: a number, or a ramp {from_tokens: rows}"
    )
    schedule: ScheduleConfig
    rope_base: float | None = Field(
        default=None,
        gt=1,
        description="base of the rotary frequencies; that of the phase before, the model's at first, unless given",
    )

    @field_validator("batch", mode="before")
    @classmethod
    def _read_batch(cls, given: object) -> object:
        steps = [{"from_tokens": tokens, "rows": rows} for tokens, rows in _ramp(given)]
        return steps or given

    @field_validator("batch")
    @classmethod
    def _check_batch(cls, batch: tuple[BatchStep, ...], info: ValidationInfo) -> tuple[BatchStep, ...]:
        if not batch or batch[0].from_tokens != 0:
            raise ValueError("the ramp must begin with from_tokens 0")
        for before, after in pairwise(batch):
            if after.from_tokens <= before.from_tokens or after.rows < before.rows:
                raise ValueError(
                    f"{after.rows} rows from {after.from_tokens} tokens on, after {before.rows} from "
                    f"{before.from_tokens}: tokens must rise and rows must not fall"
                )
        _check_reached([(step.from_tokens, step.rows) for step in batch], info.data.get("tokens", math.inf))
        return batch

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: dict[str, float]) -> dict[str, float]:
        if not sum(weights.values()) > 0:
            raise ValueError(f"weights {weights} sum to nothing; give at least one source a weight above 0")
        if sum(weights.values()) == math.inf:
            raise ValueError(f"weights {weights} sum to more than a float holds; only their proportions count")
        if len(weights) > MAX_SOURCES:
            raise ValueError(f"{len(weights)} sources; a block of the data order has room for {MAX_SOURCES}")
        return weights

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        """Warm-up, decay and the phase itself lie within the schedule and do not overlap."""
        schedule, horizon = self.schedule, self.horizon_tokens
        if schedule.from_tokens + self.tokens > horizon:
            raise ValueError(
                f"schedule.horizon_tokens {horizon} ends before the phase does: {schedule.from_tokens} + {self.tokens}"
            )
        if schedule.warmup_tokens > horizon:
            raise ValueError(f"schedule.warmup_tokens {schedule.warmup_tokens} exceeds tokens {horizon}")
        if schedule.warmup_tokens + self.decay_tokens > horizon:
            raise ValueError(
                f"schedule.warmup_tokens {schedule.warmup_tokens} and decay_tokens {self.decay_tokens} overlap: "
                f"the schedule has {horizon} tokens"
            )
        return self

    @property
    def parent(self) -> str | None:
        """The phase of the same recipe that it continues; None for a first one and for a fork."""
        return self.after if isinstance(self.after, str) else None

    @property
    def fork(self) -> ForkConfig | None:
        """The checkpoint of another run that it begins with, if it is a fork."""
        return self.after if isinstance(self.after, ForkConfig) else None

    @property
    def horizon_tokens(self) -> int:
        """Where the phase's schedule ends, on the schedule's own clock."""
        return self.schedule.horizon_tokens or self.schedule.from_tokens + self.tokens

    @property
    def decay_tokens(self) -> int:
        """Tokens at the end of the schedule over which a `wsd` falls; 0 for the other shapes."""
        if self.schedule.shape != "wsd":
            return 0
        return self.schedule.decay_tokens or max(1, round(WSD_DECAY_RATIO * self.horizon_tokens))

    def check_ranks(self, ranks: int) -> None:
        """Raises ValueError, naming what would fit, when a batch of this phase can't be split evenly over the ranks."""
        for step in self.batch:
            if step.rows % ranks:
                fitting = [count for count in range(1, step.rows + 1) if step.rows % count == 0]
                below, above = step.rows // ranks * ranks, -(-step.rows // ranks) * ranks
                rows = " or ".join(str(size) for size in (below, above) if size)
                raise ValueError(
                    f"phase {self.name}: batch of {step.rows} rows is not divisible by {ranks} ranks; "
                    f"use {rows} rows, or ranks {', '.join(map(str, fitting))}"
                )


def spread_lengths(phase: dict[str, Any]) -> list[dict[str, Any]]:
    """A phase with a mapping as `sequence_length` as one phase per length, on one schedule; another one as it is.

    Rows stay as they are given, so batches grow with the length. Raises ValueError.
    """
    lengths, tokens, schedule = (phase.get(key) for key in ("sequence_length", "tokens", "schedule"))
    if not (isinstance(lengths, dict) and tokens is not None and isinstance(schedule, dict)):
        return [phase]
    tokens = _number(tokens)
    begins = sorted((_number(begin, is_key=True), _number(length)) for begin, length in lengths.items())
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(begins))
    if not begins or begins[0][0] != 0 or not rising or begins[-1][0] >= tokens:
        raise ValueError(
            f"sequence_length {lengths}: give {{from_tokens: length}} that begins with 0, rises in both and "
            f"stays below the phase's {tokens} tokens"
        )
    ramp, start = _ramp(phase.get("batch")), _number(schedule.get("from_tokens", 0))
    _check_reached(ramp, tokens)
    shared = {"horizon_tokens": start + tokens} | schedule
    if schedule.get("lr_batch_rule") == "sqrt" and ramp:
        shared = {"lr_batch_tokens": ramp[0][1] * begins[0][1]} | shared
    stages, after = [], {key: phase[key] for key in ("after",) if key in phase}
    for (begin, length), (end, _) in pairwise([*begins, (tokens, 0)]):
        own = {"name": phase.get("name") if end == tokens else f"{phase.get('name')}-{length}"}
        own |= {"tokens": end - begin, "sequence_length": length, "schedule": shared | {"from_tokens": start + begin}}
        if ramp:
            own["batch"] = {max(0, at - begin): rows for at, rows in ramp if at < end}  # the last at 0 or before counts
        stages.append(phase | after | own)
        after = {"after": own["name"]}
    return stages


def fill_in_phases(phases: list[Any], size: object) -> list[Any]:
    """Phases as a recipe gives them, with the learning rate and batch that suit a named size where they have none.

    The first phase also gets its horizon. Later ones must say how long they are.
    """
    if not (isinstance(size, str) and size in TRAINING_OF_SIZE and all(isinstance(phase, dict) for phase in phases)):
        return phases
    lr, batch_tokens, tokens = TRAINING_OF_SIZE[size]
    filled = []
    for index, phase in enumerate(phases):
        schedule, length = phase.get("schedule", {}), phase.get("sequence_length")
        known = {"tokens": tokens} if index == 0 else {}
        if isinstance(length, dict) and length:
            length = min((value for value in length.values() if isinstance(value, int)), default=None)
        if isinstance(length, int) and length > 0:
            known["batch"] = max(1, batch_tokens // length)
        given = {"schedule": {"lr": lr} | schedule} if isinstance(schedule, dict) else {}
        filled.append(known | phase | given)
    return filled


def _ramp(batch: object) -> list[tuple[int, int]]:
    """(from_tokens, rows) of a batch as a recipe gives it, in order; none where it is no number or mapping."""
    given = {0: batch} if isinstance(batch, int) else batch
    steps = given.items() if isinstance(given, dict) else ()
    return sorted((_number(at, is_key=True), _number(rows)) for at, rows in steps)


def _check_reached(ramp: list[tuple[int, int]], tokens: float) -> None:
    """Raises ValueError when a step of a ramp lies beyond the phase."""
    for at, rows in ramp:
        if at >= tokens:
            raise ValueError(
                f"batch of {rows} rows from {at} tokens on is never reached: the phase has {tokens}; "
                f"begin it at {tokens - 1} at most, or leave it out"
            )


def _number(given: Any, *, is_key: bool = False) -> int:
    """A value of a mapping as a whole number, or a key, which JSON keeps as text. Raises ValueError."""
    if isinstance(given, bool) or not isinstance(given, (int, str) if is_key else int) or not str(given).isdecimal():
        raise ValueError(f"{given!r} is no whole number, 0 or more")
    return int(given)
