"""Run in ranks by test_trainer.py: trains the given job; may poison a loss, or kill itself at a write to the store."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from model.job import Job
from model.loss import TokenLosses
from model.trainer import train
from model.transformer import Transformer
from tasks.storage import Storage

GIVEN: dict[str, Any] = globals()


class KillingStorage(Storage):
    """A storage whose process dies, as by a power cut, when it begins its n-th write."""

    def __init__(self, url: str, writes_left: int) -> None:
        super().__init__(url)
        self.writes_left = writes_left

    def write_bytes(self, key: str, data: bytes) -> None:
        self._count()
        super().write_bytes(key, data)

    def publish_file(self, local_path: str | Path, key: str) -> None:
        self._count()
        super().publish_file(local_path, key)

    def _count(self) -> None:
        self.writes_left -= 1
        if self.writes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def poison(calls: list[int]) -> None:
    """Make the loss of these forward passes (counted from 1, probe rows included) infinite."""
    seen = 0

    def hook(module: nn.Module, given: object, output: Any) -> Any:
        nonlocal seen
        if isinstance(module, Transformer):
            seen += 1
            if seen in calls:
                return TokenLosses(output.objective * torch.inf, output.nll_BT, output.z_BT)
        return output

    register_module_forward_hook(hook)


def main(rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    job: Job = GIVEN["JOB"]
    if writes := GIVEN.get("KILL_AT", {}).get(rank):
        object.__setattr__(job, "store", KillingStorage(job.store.url, writes))  # type: ignore[attr-defined]
    poison(GIVEN.get("POISON", {}).get(rank, []))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=GIVEN["INIT_METHOD"], rank=rank, world_size=ranks)
    outcome = train(job)
    Path(job.scratch, f"outcome-{job.attempt}-{rank}.json").write_text(json.dumps(vars(outcome)))


main(GIVEN["RANK"], GIVEN["RANKS"])
