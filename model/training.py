"""What is trained, and how it is saved and found again: weights, moments, clock, position, events, memory.

Where it begins: the newest sound checkpoint of this dataset; else the parent's last one; else weights drawn by name.
"""

import logging
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from model.batches import Batch, PackReader
from model.checkpoint import Checkpoints, Loaded, training_tensors
from model.checkpoint_files import TrainState, read_state
from model.distribute import build_model, replicate
from model.held_out import HeldOut
from model.initialization import initialize
from model.job import METRICS_SCHEMA, Job, Settings, belongs_to_another, order_of, settings_changed
from model.loss import TokenLosses
from model.optimizer import build_optimizer
from model.ranks import Ranks
from model.saving import SaveFailed, Saver, host_copy
from model.schedule import Events
from model.stability import Memory

logger = logging.getLogger(__name__)

MAX_SAVING_RATIO = 0.05  # of the time may go into checkpoints; a slow store stretches the interval
PROBE_TOLERANCE = 1e-3  # of the loss; other ranks or threads round differently, a wrong load is off by far more


def compute_of(settings: Settings, ranks: Ranks) -> dict[str, Any]:
    """What may change rounding: two runs that agree in it agree in every bit."""
    is_cuda = settings.device == "cuda"
    return {
        "ranks": ranks.count,
        "micro_batch_rows": settings.micro_batch_rows,
        "device": torch.cuda.get_device_name() if is_cuda else f"cpu, {torch.get_num_threads()} threads",
        "parallel": settings.parallel,
        "shard_ranks": settings.shard_ranks,
        "recompute": settings.recompute,
        "compile_blocks": settings.compile_blocks,
        "torch": str(torch.__version__),
    }


class Training:
    """One phase on one rank. `step`, `tokens`, `position`: what is done of the phase; `applied`: of all phases."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self.job, self.ranks = job, ranks
        self.compute, self.device = compute_of(job.settings, ranks), torch.device(job.settings.device)
        self.model = build_model(job.run.model, job.run.precision, self.device, job.settings)
        self.model.rope_base = job.run.rope_base
        self.replica = replicate(self.model, job.settings)  # what is called in training; the model itself unless DDP
        self.optimizer = build_optimizer(self.model, job.run.optimizer)
        self.parameters = list(self.model.parameters())
        apart = ranks.apart()  # saves run beside the training
        self.checkpoints = Checkpoints(job.store, job.checkpoints_folder, Path(job.scratch), job.attempt, apart)
        self.saver = Saver(job.settings.background_saves)
        self.used = read_state(job.store, job.parent).ordinals if job.parent else {}
        self.order = order_of(job.run, job.packs, self.used)
        self.probe = PackReader(job.store, self.order).read(np.zeros(1, dtype=np.int64))
        self.held_out = HeldOut(job, ranks)
        self.step = self.applied = self.tokens = self.position = 0
        self.memory, self.events = Memory(), Events()
        self.rows: list[dict[str, Any]] = []  # metrics since the newest checkpoint
        self.pending_rows = 0  # of them, those in the checkpoint that is being written
        self.next_save = time.monotonic() + job.settings.checkpoint_seconds
        self.began = self._begin()

    def _begin(self) -> str:
        """Load or draw the weights; says in words what was done."""
        tensors = training_tensors(self.model, self.optimizer)
        if loaded := self.checkpoints.load_newest(tensors, self._check):
            self._take(loaded.state)
            self.memory, self.events = loaded.state.memory, loaded.state.events
            return (
                f"resumed from step {loaded.state.step}"
                + _told(loaded)
                + _changed(loaded.state, self.compute, self.job.code)
            )
        return self._begin_phase(tensors)

    def _begin_phase(self, tensors: dict[str, Tensor]) -> str:
        """The weights and moments that a phase begins with."""
        self.step = self.tokens = self.position = 0
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                tensor.zero_()
        if self.job.parent is None:
            initialize(self.model, self.job.run.model, self.job.run.seed)
            self._set_applied(0)
            return "fresh start: this training has no checkpoint yet"
        has_moments = self.job.run.take == "state" and read_state(self.job.store, self.job.parent).has_moments
        if not has_moments:
            tensors = training_tensors(self.model, None)  # the optimizer's stay 0
        parent = self.checkpoints.load(self.job.parent, tensors)
        if isinstance(parent, str):
            raise ValueError(f"checkpoint {self.job.parent} of the phase before can't be continued: {parent}")
        self._set_applied(parent.state.applied_steps if has_moments else 0)
        taken = "weights and moments are its own" if has_moments else "the weights are its own, moments begin at 0"
        changes = settings_changed(parent.state.config, self.job.run)
        told = f" ({', '.join(f'{name} {old} -> {new}' for name, (old, new) in changes.items())})" if changes else ""
        return f"fresh start from {self.job.parent}: {taken}, the rest is the recipe's{told}" + _changed(
            parent.state, self.compute, self.job.code
        )

    def _take(self, state: TrainState) -> None:
        self.step, self.tokens, self.position = state.step, state.tokens, state.position
        self._set_applied(state.applied_steps)

    def _set_applied(self, applied: int) -> None:
        """AdamW's own step counter, which its bias correction reads."""
        self.applied = applied
        for parameter in self.parameters:
            self.optimizer.state[parameter]["step"] = torch.tensor(float(applied), device=self.device)

    def _check(self, state: TrainState) -> str | None:
        """What speaks against a checkpoint that was loaded."""
        return belongs_to_another(state.config, self.job.run) or self._check_probe(state)

    def _check_probe(self, state: TrainState) -> str | None:
        wanted, got = state.probe_loss, self._probe_loss()
        if wanted is None or abs(got - wanted) <= PROBE_TOLERANCE * max(1.0, abs(wanted)):
            return None
        return f"the loss of its probe row is {got:.6f}, {wanted:.6f} was saved with it"

    def _probe_loss(self) -> float:
        """Nats per token of the phase's first row, under the weights as they are now."""
        return float(self.measure(self.probe).sum()) / max(1, self.probe.num_targets)

    def measure(self, batch: Batch) -> Tensor:
        """Nats per token of this rank's rows, float32 (B, T) on the CPU, no gradients, no dropout. Collective."""
        rows = self.job.settings.micro_batch_rows
        self.model.eval()
        with torch.no_grad():
            losses = [self.forward(piece).nll_BT.float().cpu() for piece in batch.micro_batches(rows)]
        self.model.train()
        self.let_go()
        return torch.cat(losses)

    def let_go(self) -> None:
        """Drop gathered weights where no backward follows to do so: the next load or step would meet stale ones."""
        for unit in (*self.model.blocks, self.model):
            if isinstance(unit, FSDPModule):
                unit.reshard()

    def forward(self, batch: Batch) -> TokenLosses:
        """The losses of this rank's rows. Collective."""
        ids_BT, targets_BT = batch.ids_BT.to(self.device), batch.targets_BT.to(self.device)
        model = self.replica if self.model.training else self.model  # DDP's hooks are for steps alone
        losses = model(ids_BT, batch.document_starts, targets_BT, self.job.run.optimizer.z_loss)
        assert isinstance(losses, TokenLosses)
        return losses

    def save(self, is_last: bool) -> None:
        """Begin to write a checkpoint; `settle` says what came of it. The one before is settled. Collective."""
        begun, probe_loss = time.monotonic(), self._probe_loss()
        state = TrainState(
            phase=self.job.run.phase.name,
            step=self.step,
            applied_steps=self.applied,
            tokens=self.tokens,
            position=self.position,
            ordinals=self.used | self.order.ordinals_until(self.position),
            events=self.events,
            memory=self.memory,
            probe_loss=probe_loss,
            config=self.job.run.model_dump(mode="json"),
            compute=self.compute,
            code=self.job.code,
        )
        tensors = training_tensors(self.model, self.optimizer)
        write = partial(
            self._write,
            host_copy(tensors) if self.saver.in_background else tensors,
            state,
            pa.Table.from_pylist(self.rows, METRICS_SCHEMA),
            healthy=math.isfinite(probe_loss) and not self.memory.recent(self.step, self.job.run.stability),
            is_last=is_last,
        )
        self.pending_rows = len(self.rows)
        self.saver.start(write)
        now = time.monotonic()
        self.next_save = now + max(self.job.settings.checkpoint_seconds, (now - begun) / MAX_SAVING_RATIO)

    def _write(self, tensors: dict[str, Tensor], state: TrainState, metrics: pa.Table, **facts: bool) -> None:
        """Write a checkpoint and let go of those that nobody needs. Collective; on the saver's thread."""
        self.checkpoints.save(tensors, state, metrics, **facts)
        if self.ranks.is_first:
            try:
                self.checkpoints.retain(self.job.settings.keep_checkpoints, self._steps_that_stay)
            except self.job.store.errors as error:
                logger.warning("old checkpoints stay until the next save: %s", error)

    def settle(self) -> SaveFailed | None:
        """Wait for the checkpoint that is being written; its failure, or None. Raises the third in a row."""
        if not self.saver.is_pending:
            return None
        failed = self.saver.settle()
        if failed is None:
            del self.rows[: self.pending_rows]  # else the next checkpoint holds them
        return failed

    def restore(self, latest: int) -> Memory:
        """Load the newest healthy checkpoint to go back to, of step `latest` or before; else the phase's beginning."""
        tensors = training_tensors(self.model, self.optimizer)
        loaded = self.checkpoints.load_healthy(
            tensors, lambda step: step <= latest and step % self.job.run.stability.checkpoint_steps == 0,
            self._check, self.job.settings.keep_steps,
        )  # fmt: skip
        self.rows.clear()
        if loaded is None:
            self._begin_phase(tensors)
            return Memory()
        self._take(loaded.state)
        return loaded.state.memory

    def _steps_that_stay(self, healthy: dict[int, bool]) -> list[int]:
        """Of the steps with a checkpoint, newest first, those that the settings keep or a later roll-back may need.

        It goes to a healthy one at a multiple of `checkpoint_steps`; the newest such that no trouble can lie before
        stays for as long as there is no newer one, however old it is.
        """
        config = self.job.run.stability
        before = max(healthy) - config.distance_steps - config.recent_steps
        back = [step for step, is_healthy in healthy.items() if is_healthy and step % config.checkpoint_steps == 0]
        oldest = next((step for step in back if step <= before), 0)
        return [step for step in healthy if self.job.settings.keeps(step) or (step in back and step >= oldest)]


def _told(loaded: Loaded) -> str:
    reasons = "; ".join(f"step {step}: {reason}" for step, reason in loaded.passed_over)
    return f"; passed over {reasons}" if reasons else ""


def _changed(state: TrainState, compute: dict[str, Any], code: str) -> str:
    """What is another since a checkpoint beside the recipe: how it is computed, the trainer's code."""
    now = compute if state.compute else {}  # imported weights were not computed here
    changes = [f"{name} {state.compute.get(name)} -> {value}" for name, value in now.items()
               if state.compute.get(name) != value]  # fmt: skip
    told = (
        f"; computed otherwise than before ({', '.join(changes)}), so losses agree within rounding" if changes else ""
    )
    is_other_code = bool(state.code and code) and state.code != code
    return told + (f"; its code changed since: {state.code[:12]} -> {code[:12]}" if is_other_code else "")
