"""What a training is given, how it ends, and what it notes of each step."""

from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, Field, JsonValue

from model.batches import CACHE_BYTES
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
        "grad_norm": pa.float64(),  # before clipping
        "action": pa.string(),
        "seconds": pa.float64(),
        "data_seconds": pa.float64(),  # of them, waiting for data
    }
)
# Columns that follow from recipe, data and compute alone: two runs on the same compute have the same bytes in them
EXACT_METRICS = METRICS_SCHEMA.names[: METRICS_SCHEMA.get_field_index("seconds")]

Status = Literal["finished", "stopped", "halted"]


class Settings(BaseModel, frozen=True, extra="forbid"):
    """How a phase is computed on this machine: decides speed and rounding, never rows, order or schedule."""

    micro_batch_rows: int = Field(default=8, ge=1, description="rows of one forward pass on one rank")
    checkpoint_steps: int = Field(default=500, ge=1, description="steps between two checkpoints")
    keep_checkpoints: int = Field(default=3, ge=1, description="newest checkpoints that stay")
    keep_steps: tuple[int, ...] = Field(default=(), description="steps whose checkpoints stay: other datasets use them")
    threads: int | None = Field(default=None, ge=1, description="torch threads of each rank; None: as torch finds them")
    device: Literal["cpu", "cuda"] = "cpu"
    recompute: bool = Field(default=False, description="activation checkpointing: less memory, a third more work")
    compile_blocks: bool = Field(default=False, description="torch.compile for each block")
    cache_bytes: int = Field(default=CACHE_BYTES, ge=1, description="row groups of packs held in memory by each rank")


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

    @property
    def checkpoints_folder(self) -> str:
        """Where its checkpoints lie."""
        return f"{self.folder}/checkpoints"

    @property
    def halted_key(self) -> str:
        """The report that a training leaves when it halts itself; while it exists nothing is tried again."""
        return f"{self.folder}/halted.json"

    def order(self, used: dict[str, int]) -> DataOrder:
        """The data order of the phase; `used` is what the parent's state says of each pack."""
        return DataOrder(self.run.seed, self.run.phase.name, slots_of(self.run.phase.weights), self.packs, used)

    def compute(self, ranks: int) -> dict[str, JsonValue]:
        """What may change rounding: two runs that agree in it agree in every bit."""
        settings = self.settings
        device = torch.cuda.get_device_name() if settings.device == "cuda" else f"cpu {torch.get_num_threads()} threads"
        return {
            "ranks": ranks,
            "micro_batch_rows": settings.micro_batch_rows,
            "device": device,
            "recompute": settings.recompute,
            "compile_blocks": settings.compile_blocks,
            "torch": str(torch.__version__),
        }


@dataclass(frozen=True)
class Outcome:
    """How a training ended, and in words how it began."""

    status: Status
    step: int
    began: str
