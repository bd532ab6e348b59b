"""The processes that train together, or the one that trains alone: every question that they must answer alike.

Works without a process group (one process), under torchrun and under Ray Train; all of them set RANK, WORLD_SIZE,
LOCAL_RANK and LOCAL_WORLD_SIZE.
"""

import os
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """This process among its peers; `local`: those of this host. `group`: how they talk; None: the default."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of_this_process(cls) -> "Ranks":
        """From the process group where there is one."""
        if not dist.is_initialized():
            return cls()
        rank, count = dist.get_rank(), dist.get_world_size()
        return cls(rank, count, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", count)))

    def apart(self) -> "Ranks":
        """The same processes with a gloo group of their own, for a thread beside the training. Collective.

        Two threads that share a group mix their messages up: gloo aborts, or one reads what was meant for the other.
        """
        return replace(self, group=dist.new_group(backend="gloo")) if self.count > 1 else self

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in order, on every rank."""
        if self.count == 1:
            return [value]
        values: list[Value | None] = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values  # type: ignore[return-value]  # every entry is filled now

    def from_first(self, value: Value) -> Value:
        """The value of rank 0, on every rank."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Element-wise sums over the ranks, in float64: equal on every rank to the bit."""
        total = torch.tensor(values, dtype=torch.float64, device=device)
        self.sum_tensor(total)
        return total.tolist()

    def sum_tensor(self, total: Tensor) -> None:
        """Sum a tensor over the ranks, in place."""
        if self.count > 1:
            dist.all_reduce(total, op=dist.ReduceOp.SUM, group=self.group)

    def wait(self) -> None:
        """Until every rank is here."""
        if self.count > 1:
            dist.barrier(group=self.group)
