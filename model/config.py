"""The settings of training. No torch here, so that flows and `plan` validate a recipe without it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from model.architecture import TRAINING_OF_SIZE, ModelConfig

MAX_SOURCES = 4096  # slots in a block of the data order: every source with a weight gets one at least


class OptimizerConfig(BaseModel, frozen=True, extra="forbid"):
    """AdamW and what bounds a step; the values of GPT-3 and OLMo 2 unless noted."""

    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="decay of the first and second moment")
    eps: float = Field(
        default=1e-8, gt=0, description="added to the root of the second moment (OLMo 2 went from 1e-5 to this)"
    )
    weight_decay: float = Field(
        default=0.1, ge=0, description="decoupled decay of matrices; none on norms and embeddings"
    )
    clip_norm: float = Field(default=1.0, gt=0, description="largest global gradient norm")
    z_loss: float = Field(
        default=1e-4, ge=0, description="weight of mean logsumexp squared (PaLM): keeps logits from drifting"
    )

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {list(self.betas)} must lie in 0..1, 1 left out")
        return self


class StabilityConfig(BaseModel, frozen=True, extra="forbid"):
    """When a step counts as bad, and what follows; see model/stability.py."""

    window_steps: int = Field(default=128, ge=2, description="applied steps that mean and deviation are taken over")
    min_window_steps: int = Field(default=64, ge=2, description="fewer of them: only what is not finite is bad")
    sigmas: float = Field(default=6.0, gt=0, description="loss and gradient norm both this far above the mean are bad")
    min_sigma_ratio: float = Field(default=0.02, ge=0, description="least deviation, as a share of the mean")
    recent_steps: int = Field(default=10, ge=1, description="steps looked back on for trouble")
    max_bad_steps: int = Field(default=3, ge=0, description="bad ones among them that are only skipped")
    distance_steps: int = Field(default=20, ge=0, description="from the checkpoint gone back to, to the first bad step")
    margin_steps: tuple[int, ...] = Field(
        default=(5, 10, 20, 40), description="steps passed over after the last bad one, by attempt; empty: halt at once"
    )
    calm_steps: int = Field(default=100, ge=0, description="gentler steps, from the first bad one on")
    calm_lr_factor: float = Field(default=0.5, gt=0, le=1, description="on the learning rate in these steps")
    calm_clip_factor: float = Field(default=0.5, gt=0, le=1, description="on the clip in these steps")
    checkpoint_steps: int = Field(
        default=200, ge=1, description="checkpoints to go back to lie at multiples of this, whatever the time"
    )
    level_tolerance: float = Field(default=0.02, ge=0, description="rise of the held-out loss that is none")
    held_out_rows: int = Field(default=8, ge=1, description="rows per source that the held-out loss is measured on")

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if self.min_window_steps > self.window_steps:
            raise ValueError(f"min_window_steps {self.min_window_steps} exceeds window_steps {self.window_steps}")
        if any(margin < 0 for margin in self.margin_steps):
            raise ValueError(f"margin_steps {list(self.margin_steps)} must be 0 or more")
        return self


class ScheduleConfig(BaseModel, frozen=True, extra="forbid"):
    """Learning rate over the tokens of a phase: linear warm-up, then a cosine down to `final_ratio` of the peak."""

    lr: float = Field(gt=0, description="peak learning rate, at the first batch size of the phase")
    warmup_tokens: int = Field(default=0, ge=0, description="tokens of linear warm-up from 0")
    final_ratio: float = Field(default=0.1, ge=0, le=1, description="share of the peak that the last step has")
    lr_batch_rule: Literal["none", "sqrt"] = Field(
        default="none", description="sqrt: lr grows with the root of the batch ramp"
    )


class BatchStep(BaseModel, frozen=True, extra="forbid"):
    """From so many tokens of the phase on, a global batch holds so many rows."""

    from_tokens: int = Field(ge=0)
    rows: int = Field(ge=1)


class PhaseConfig(BaseModel, frozen=True, extra="forbid"):
    """One phase of training: how long, on what mixture, with which batch and learning rate."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="lower-case letters, digits, hyphens")
    after: str | None = Field(
        default=None, description="the phase whose last checkpoint this one continues; the one before"
    )
    tokens: int = Field(ge=1, description="rows consumed x sequence_length; the last batch is whole")
    weights: dict[str, float] = Field(description="source -> share of training tokens; any scale")
    sequence_length: int = Field(ge=2, description="tokens in a row")
    min_document_tokens: int = Field(
        default=0, ge=0, description="only documents of at least so many tokens (long context)"
    )
    batch: tuple[BatchStep, ...] = Field(description="rows in a global batch: a number, or a ramp {from_tokens: rows}")
    schedule: ScheduleConfig
    rope_base: float | None = Field(
        default=None, gt=1, description="base of the rotary frequencies, where not the model's"
    )

    @field_validator("batch", mode="before")
    @classmethod
    def _read_batch(cls, given: object) -> object:
        if isinstance(given, int):
            given = {0: given}
        if isinstance(given, dict):
            return [{"from_tokens": tokens, "rows": rows} for tokens, rows in given.items()]
        return given

    @field_validator("batch")
    @classmethod
    def _check_batch(cls, batch: tuple[BatchStep, ...]) -> tuple[BatchStep, ...]:
        if not batch or batch[0].from_tokens != 0:
            raise ValueError("the ramp must begin with from_tokens 0")
        for before, after in pairwise(batch):
            if after.from_tokens <= before.from_tokens or after.rows < before.rows:
                raise ValueError(
                    f"{after.rows} rows from {after.from_tokens} tokens on, after {before.rows} from "
                    f"{before.from_tokens}: tokens must rise and rows must not fall"
                )
        return batch

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: dict[str, float]) -> dict[str, float]:
        for source, weight in weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight {weight} of source {source!r} must be a finite number, 0 or more")
        if not sum(weights.values()) > 0:
            raise ValueError(f"weights {weights} sum to nothing; give at least one source a weight above 0")
        if len(weights) > MAX_SOURCES:
            raise ValueError(f"{len(weights)} sources; a block of the data order has room for {MAX_SOURCES}")
        return weights

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.schedule.warmup_tokens > self.tokens:
            raise ValueError(f"schedule.warmup_tokens {self.schedule.warmup_tokens} exceeds tokens {self.tokens}")
        return self

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


class PhaseRun(BaseModel, frozen=True, extra="forbid"):
    """All that decides the result of one phase beside its data; this is what the training dataset's key is made of."""

    model: ModelConfig
    phase: PhaseConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    stability: StabilityConfig = StabilityConfig()
    precision: Literal["bf16", "fp32"] = "bf16"
    seed: int = Field(default=1, ge=0, lt=2**63)
    max_epochs: float = Field(default=4.0, gt=0, exclude=True)  # a guard: no part of any key


class WeightsSource(BaseModel, frozen=True, extra="forbid"):
    """Weights that a training starts from."""

    path: str = Field(
        description="folder of this machine that transformers saved: config.json, safetensors, tokenizer.json"
    )


class TrainConfig(BaseModel, frozen=True, extra="forbid"):
    """Training as a recipe states it; the phases form a tree by `after`."""

    phases: tuple[PhaseConfig, ...] = Field(min_length=1)
    initialize_from: WeightsSource | None = Field(
        default=None,
        description="weights and tokenizer to continue from, in the place of random ones and a trained one",
        json_schema_extra={"neutral": None},
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    stability: StabilityConfig = StabilityConfig()
    precision: Literal["bf16", "fp32"] = Field(
        default="bf16",
        description="bf16: compute in bf16, weights, moments and reduction in fp32; never the machine's choice",
    )
    seed: int = Field(default=1, ge=0, lt=2**63, description="weights and data order follow from it")
    max_epochs: float = Field(
        default=4.0, gt=0, description="times a source may be read; beyond 4 repeats gain little (2305.16264)"
    )

    @model_validator(mode="before")
    @classmethod
    def _follow_on(cls, given: Any) -> Any:
        """A phase that names no `after` continues the one before it."""
        phases = given.get("phases") if isinstance(given, dict) else None
        if not isinstance(phases, (list, tuple)) or not all(isinstance(phase, dict) for phase in phases):
            return given
        linked = [phases[0]] if phases else []
        linked += [{"after": before.get("name")} | phase for before, phase in pairwise(phases)]
        return given | {"phases": linked}

    @model_validator(mode="after")
    def _check_tree(self) -> Self:
        seen: list[str] = []
        for index, phase in enumerate(self.phases):
            if phase.name in seen:
                raise ValueError(f"phases[{index}].name {phase.name!r} is used twice")
            if phase.after is not None and phase.after not in seen:
                raise ValueError(f"phases[{index}].after {phase.after!r} must be an earlier phase: {seen or 'none'}")
            seen.append(phase.name)
        return self

    def run_of(self, phase_name: str, model: ModelConfig) -> PhaseRun:
        """Everything that decides one phase, in one frozen value."""
        phase = next(phase for phase in self.phases if phase.name == phase_name)
        return PhaseRun(
            model=model,
            phase=phase,
            optimizer=self.optimizer,
            stability=self.stability,
            precision=self.precision,
            seed=self.seed,
            max_epochs=self.max_epochs,
        )

    def ancestors_of(self, phase_name: str) -> list[str]:
        """The phases that a phase continues, the first one first, itself left out."""
        after = {phase.name: phase.after for phase in self.phases}
        chain: list[str] = []
        name = after[phase_name]
        while name is not None:
            chain.insert(0, name)
            name = after[name]
        return chain


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
        if isinstance(length, int) and length > 0:
            known["batch"] = max(1, batch_tokens // length)
        given = {"schedule": {"lr": lr} | schedule} if isinstance(schedule, dict) else {}
        filled.append(known | phase | given)
    return filled
