"""The settings of training. No torch here, so that flows and `plan` validate a recipe without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from model.architecture import ModelConfig
from model.phases import PhaseConfig, spread_lengths


class OptimizerConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """AdamW and what bounds a step; the values of GPT-3 and OLMo 2 unless noted."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        strict=False, default=(0.9, 0.95), description="decay of the first and second moment"
    )
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


class StabilityConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """When a step counts as bad, and what follows; see model/stability.py."""

    window_steps: int = Field(default=128, ge=2, description="applied steps that mean and deviation are taken over")
    min_window_steps: int = Field(default=64, ge=2, description="fewer of them: only what is not finite is bad")
    sigmas: float = Field(default=6.0, gt=0, description="loss and gradient norm both this far above the mean are bad")
    min_sigma_ratio: float = Field(default=0.02, ge=0, le=1, description="least deviation, as a share of the mean")
    recent_steps: int = Field(default=10, ge=1, description="steps looked back on for trouble")
    max_bad_steps: int = Field(default=3, ge=0, description="bad ones among them that are only skipped")
    distance_steps: int = Field(default=20, ge=0, description="from the checkpoint gone back to, to the first bad step")
    margin_steps: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        strict=False,
        default=(5, 10, 20, 40),
        description="steps passed over after the last bad one, by attempt; empty: halt at once",
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
        if self.max_bad_steps >= self.recent_steps:
            raise ValueError(
                f"max_bad_steps {self.max_bad_steps} is never exceeded within recent_steps {self.recent_steps}, so "
                f"that training could not roll back; give at most {self.recent_steps - 1}"
            )
        return self


class PhaseRun(BaseModel, frozen=True, extra="forbid"):
    """All that decides the result of one phase beside its data; this is what the training dataset's key is made of."""

    model: ModelConfig
    phase: PhaseConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    stability: StabilityConfig = StabilityConfig()
    precision: Literal["bf16", "fp32"] = "bf16"
    seed: int = Field(default=1, ge=0, lt=2**63)
    take: Literal["state", "weights"] = Field(  # of the checkpoint that the phase continues
        default="state", json_schema_extra={"neutral": "state"}
    )
    max_epochs: float = Field(default=4.0, gt=0, exclude=True)  # a guard: no part of any key

    @property
    def rope_base(self) -> float:
        """Base of the rotary frequencies: the phase's, else the model's."""
        return self.phase.rope_base or self.model.rope_base


class WeightsSource(BaseModel, frozen=True, extra="forbid", strict=True):
    """Weights that a training starts from."""

    path: str = Field(
        description="folder of this machine that transformers saved: config.json, safetensors, tokenizer.json"
    )


class TrainConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Training as a recipe states it; the phases form a tree by `after`."""

    phases: tuple[PhaseConfig, ...] = Field(strict=False, min_length=1)
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
        """A phase of several lengths becomes several; one that names no `after` continues the one before it."""
        given_phases = given.get("phases") if isinstance(given, dict) else None
        if not isinstance(given_phases, (list, tuple)) or not all(isinstance(phase, dict) for phase in given_phases):
            return given
        phases: list[dict[str, Any]] = []
        for index, phase in enumerate(given_phases):
            try:
                phases += spread_lengths(phase)
            except ValueError as error:
                raise ValueError(f"phases[{index}]: {error}") from error
        linked: list[dict[str, Any]] = []
        bases: dict[Any, Any] = {}  # a phase that follows a longer one keeps the base that the weights know
        for phase in phases:
            after = {"after": linked[-1].get("name")} | phase if linked else phase
            parent = after.get("after")
            base = after.get("rope_base") or (bases.get(parent) if isinstance(parent, str) else None)
            linked.append(after | ({"rope_base": base} if base else {}))
            bases[str(phase.get("name"))] = base
        return given | {"phases": linked}

    @model_validator(mode="after")
    def _check_tree(self) -> Self:
        seen: list[str] = []
        for index, phase in enumerate(self.phases):
            if phase.name in seen:
                raise ValueError(f"phases[{index}].name {phase.name!r} is used twice")
            if phase.parent is not None and phase.parent not in seen:
                raise ValueError(f"phases[{index}].after {phase.parent!r} must be an earlier phase: {seen or 'none'}")
            seen.append(phase.name)
        return self

    def run_of(self, phase_name: str, model: ModelConfig) -> PhaseRun:
        """Everything that decides one phase, in one frozen value."""
        phase = next(phase for phase in self.phases if phase.name == phase_name)
        fork = phase.fork
        if fork:  # what it begins with is known by its digest, whatever run made it
            phase = phase.model_copy(update={"after": None})
        return PhaseRun(
            model=model,
            phase=phase,
            take=fork.take if fork else "state",
            optimizer=self.optimizer,
            stability=self.stability,
            precision=self.precision,
            seed=self.seed,
            max_epochs=self.max_epochs,
        )

    def ancestors_of(self, phase_name: str) -> list[str]:
        """The phases of this recipe that a phase continues, the first one first, itself left out."""
        parents = {phase.name: phase.parent for phase in self.phases}
        chain: list[str] = []
        name = parents[phase_name]
        while name is not None:
            chain.insert(0, name)
            name = parents[name]
        return chain
