"""Run in ranks: trains the given job; may poison a loss, or be killed, terminated or refused at a write."""

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from model.job import Job
from model.loss import TokenLosses
from model.trainer import train
from model.transformer import Transformer
from tasks.errors import StorageError
from tasks.storage import Storage

GIVEN: dict[str, Any] = globals()


class DisturbedStorage(Storage):
    """A storage that counts what its process writes: at some writes it dies, is told to end, or is refused."""

    def __init__(self, url: str, kill_at: int, terminate_at: int, refuse_at: list[int]) -> None:
        super().__init__(url)
        self.writes = 0
        self.kill_at, self.terminate_at, self.refuse_at = kill_at, terminate_at, refuse_at

    def write_bytes(self, key: str, data: bytes) -> None:
        self._count()
        super().write_bytes(key, data)

    def publish_file(self, local_path: str | Path, key: str) -> None:
        self._count()
        super().publish_file(local_path, key)

    def _count(self) -> None:
        self.writes += 1
        if self.writes == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # as by a power cut
        if self.writes == self.terminate_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.writes in self.refuse_at:
            raise StorageError("refused")


def poison(factors: dict[int, float]) -> None:
    """Multiply the loss of these forward passes (counted from 1, probe rows included)."""
    seen = 0

    def hook(module: nn.Module, given: object, output: Any) -> Any:
        nonlocal seen
        if isinstance(module, Transformer):
            seen += 1
            if factor := factors.get(seen):
                shown = output.nll_BT * factor if math.isfinite(factor) else output.nll_BT  # inf x 0 would be no number
                return TokenLosses(output.objective * factor, shown, output.z_BT)
        return output

    register_module_forward_hook(hook)


def kill_in(kind: str, count: int) -> None:
    """Die at the end of the so many-th forward pass (of a micro-batch or a probe) or of an optimizer's step."""
    left = count

    def hook(*given: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if kind == "optimizer":
        register_optimizer_step_post_hook(hook)
        return
    forward = Transformer.forward

    def counted(*given: Any, **named: Any) -> Any:
        output = forward(*given, **named)
        hook()
        return output

    # Not a hook of all modules: compiled blocks would hold it, and be compiled anew at each count until torch gives up
    Transformer.forward = counted  # type: ignore[method-assign]


def main(rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    job: Job = GIVEN["JOB"]
    kill_at, terminate_at = (GIVEN.get(name, {}).get(rank, 0) for name in ("KILL_AT", "TERMINATE_AT"))
    store = DisturbedStorage(job.store.url, kill_at, terminate_at, GIVEN.get("REFUSE_AT", {}).get(rank, []))  # type: ignore[attr-defined]
    job = replace(job, store=store)
    if point := GIVEN.get("KILL_IN", {}).get(rank):
        kill_in(*point)
    poison(GIVEN.get("POISON", {}).get(rank, {}))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=GIVEN["INIT_METHOD"], rank=rank, world_size=ranks)
    outcome = train(job, lambda: bool(GIVEN.get("STOP")))
    Path(job.scratch, f"outcome-{job.attempt}-{rank}.json").write_text(json.dumps(vars(outcome)))


main(GIVEN["RANK"], GIVEN["RANKS"])
