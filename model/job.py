"""What a training is given, how it ends, and what it notes of each step. No torch here: `plan` reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import BaseModel, Field, PositiveInt, field_validator, model_validator

from model.config import PhaseRun
from model.order import DataOrder, Pack, slots_of
from model.store import Store

METRICS_SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "phase": pa.string(),
        "tokens": pa.int64(),  # the clock after the step
        "position_from": pa.int64(),
        "position_to": pa.int64(),
        "rows": pa.int64(),
        "targets": pa.int64(),
        "lr": pa.float64(),
        "loss": pa.float64(),  # nats per target
        "z_loss": pa.float64(),  # mean logsumexp squared, before its weight
        "balance_loss": pa.float64(),  # before its weight; 1 where loads are even; null without experts
        "router_z_loss": pa.float64(),  # mean logsumexp squared of the routers, before its weight
        "expert_loads": pa.list_(pa.list_(pa.float64())),  # per layer, the share of each expert in all pairs
        "grad_norm": pa.float64(),  # before clipping
        "action": pa.string(),
        "seconds": pa.float64(),
        "data_seconds": pa.float64(),  # of them, waiting for data
    }
)
# Columns that follow from recipe, data and compute alone: two runs on the same compute have the same bytes in them
EXACT_METRICS = METRICS_SCHEMA.names[: METRICS_SCHEMA.get_field_index("seconds")]

CACHE_BYTES = 1 << 30  # row groups held: a run of 64 groups of 4,096 tokens is 134 MB per source, and two may be open

Status = Literal["finished", "stopped", "halted", "rolled back"]


class Settings(BaseModel, frozen=True, extra="forbid", strict=True):
    """How a phase is computed on this machine: decides speed and rounding, never rows, order or schedule."""

    micro_batch_rows: int = Field(default=8, ge=1, description="rows of one forward pass on one rank")
    checkpoint_seconds: float = Field(
        default=60, ge=0, description="between two checkpoints; more where saving is slow"
    )
    checkpoint_steps: int | None = Field(
        default=None, ge=1, description="steps between two checkpoints, whatever the time"
    )
    keep_checkpoints: int = Field(default=3, ge=1, description="newest checkpoints that stay")
    keep_steps: tuple[PositiveInt, ...] = Field(
        strict=False, default=(), description="steps whose checkpoints are made and stay, e.g. for a fork"
    )
    keep_every_steps: int | None = Field(
        default=None, ge=1, description="a checkpoint that stays is made every so many steps, e.g. to study the run"
    )
    ranks: int | None = Field(default=None, ge=1, description="processes; None: the GPUs, else two where CPUs allow")
    threads: int | None = Field(default=None, ge=1, description="torch threads of each rank; None: cores / ranks")
    device: Literal["cpu", "cuda"] = "cpu"
    parallel: Literal["fsdp", "ddp"] = Field(
        default="fsdp", description="fsdp: weights and moments are sharded over the ranks; ddp: each rank holds all"
    )
    shard_ranks: int | None = Field(
        default=None,
        ge=1,
        description="ranks that share one copy, e.g. those of a host (hybrid sharding); None: all",
    )
    recompute: bool = Field(default=False, description="activation checkpointing: less memory, a third more work")
    compile_blocks: bool = Field(default=False, description="torch.compile for each block")
    background_saves: bool = Field(
        default=True,
        description="training goes on while a copy of weights and moments is written (12 bytes per parameter)",
    )
    profile_steps: tuple[PositiveInt, PositiveInt] | None = Field(
        strict=False,
        default=None,
        description="first and last step of a torch profile, written below profiles/ of the dataset",
    )
    cache_bytes: int = Field(default=CACHE_BYTES, ge=1, description="row groups of packs held in memory by each rank")

    @field_validator("profile_steps")
    @classmethod
    def _check_profile(cls, steps: tuple[int, int] | None) -> tuple[int, int] | None:
        if steps and not 1 <= steps[0] <= steps[1]:
            raise ValueError(f"profile_steps {list(steps)}: give the first and the last step, from 1 on")
        return steps

    @model_validator(mode="after")
    def _check_shards(self) -> Self:
        if self.parallel == "ddp" and self.shard_ranks is not None:
            raise ValueError(f"shard_ranks {self.shard_ranks} with parallel ddp, where each rank holds all")
        if self.ranks is not None:
            self.check_shard_ranks(self.ranks)
        return self

    def check_shard_ranks(self, ranks: int) -> None:
        """Raises ValueError, naming what would fit, when `shard_ranks` is no divisor of so many ranks."""
        if self.shard_ranks is not None and ranks % self.shard_ranks:
            fitting = ", ".join(str(size) for size in range(1, ranks + 1) if ranks % size == 0)
            raise ValueError(f"shard_ranks {self.shard_ranks} does not divide {ranks} ranks; use {fitting}")

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of a step is made, and stays."""
        return step in self.keep_steps or (self.keep_every_steps is not None and step % self.keep_every_steps == 0)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is made at a step, whatever the time."""
        return self.keeps(step) or (self.checkpoint_steps is not None and step % self.checkpoint_steps == 0)


@dataclass(frozen=True)
class Job:
    """One phase to train, for every rank alike. `folder`: of the training dataset; `parent`: key of a checkpoint."""

    run: PhaseRun
    packs: tuple[Pack, ...]
    store: Store
    folder: str
    attempt: str
    scratch: str  # shared by the ranks of a host
    settings: Settings = field(default_factory=Settings)
    parent: str | None = None
    live_prefix: str | None = None
    code: str = ""  # digest of the trainer's code: no part of a training's key, kept in each checkpoint
    held_out: tuple[Pack, ...] = ()  # rows that judge the model while it is trained, by source
    token_bytes: str | None = None  # key of a JSON list: bytes of text that each token stands for
    decode: Callable[[list[int]], str] | None = None  # ids to text, for samples in the live view

    @property
    def checkpoints_folder(self) -> str:
        """Where its checkpoints lie."""
        return f"{self.folder}/checkpoints"

    @property
    def incidents_folder(self) -> str:
        """Where the reports on roll-backs lie."""
        return f"{self.folder}/incidents"

    @property
    def halted_key(self) -> str:
        """The report that a training leaves when it halts itself; while it exists nothing is tried again."""
        return f"{self.folder}/halted.json"


def live_segment(prefix: str, attempt: str, number: int) -> str:
    """Where a segment of the live view lies, JSON lines; see model/live.py."""
    return f"{prefix}/{attempt}-{number:05d}.jsonl"


@dataclass(frozen=True)
class Outcome:
    """How a training ended, and in words how it began."""

    status: Status
    step: int
    began: str


def settings_changed(before: Mapping[str, Any], run: PhaseRun) -> dict[str, tuple[Any, Any]]:
    """Settings in which a phase differs from what it continues (a run as JSON): path -> (there, here).

    Hyper-parameters, and the data: mixture, length of the rows, shortest document, base of the rotary frequencies.
    """
    then, now = (_settings_of(values) for values in (before, run.model_dump(mode="json")))
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}


def belongs_to_another(before: Mapping[str, Any], run: PhaseRun) -> str | None:
    """Why a checkpoint (its run as JSON) is of another training, or None. Fields that it lacks are younger than it."""
    now = run.model_dump(mode="json")
    groups = [(name, before.get(name), now[name]) for name in ("model", "optimizer", "stability", "precision", "seed")]
    then_phase = before.get("phase", {})
    groups += [(name, then_phase.get(name), now["phase"][name]) for name in ("weights", "tokens", "batch", "schedule")]
    found = [change for name, then, here in groups if then is not None for change in _changes(name, then, here)]
    return f"it is of another training: {', '.join(found)}" if found else None


def _changes(path: str, then: Any, now: Any) -> list[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        return [line for key in then if key in now for line in _changes(f"{path}.{key}", then[key], now[key])]
    return [f"{path} {then} -> {now}"] if then != now else []


def _settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    phase, model = values.get("phase", {}), values.get("model", {})
    groups = {"optimizer": values.get("optimizer", {}), "schedule": phase.get("schedule", {})}
    flat = {f"{group}.{name}": value for group, fields in groups.items() for name, value in fields.items()}
    flat |= {"precision": values["precision"]} if "precision" in values else {}
    flat |= {name: phase[name] for name in ("weights", "sequence_length", "min_document_tokens") if name in phase}
    if "batch" in phase:
        steps = {step["from_tokens"]: step["rows"] for step in phase["batch"]}
        flat["batch"] = steps if len(steps) > 1 else steps[0]
    if model.get("positions") == "rope":
        flat["rope_base"] = phase.get("rope_base") or model["rope_base"]
    return flat


def order_of(run: PhaseRun, packs: Sequence[Pack], used: Mapping[str, int]) -> DataOrder:
    """The data order of a phase; `used`: rows that earlier phases drew, by pack key."""
    return DataOrder(run.seed, run.phase.name, slots_of(run.phase.weights), packs, used)
