"""The training loop of one phase: exact, resumable, the same in one process, under torchrun and under Ray Train.

A step: plan -> rows -> count targets -> forward and backward -> global gradient norm -> one decision that all ranks
share (apply, skip, halt) -> optimizer. Only "apply" touches weights and moments. The loss is the sum over tokens
divided by the number of targets of the whole global batch, so it does not depend on ranks or micro-batches. Random
numbers are seeded anew at each step from (seed, phase, position, rank): a resumed run draws what an undisturbed one
does.

Where it begins: the newest sound checkpoint of this dataset; else the parent's last one; else weights drawn by name.
"""

import hashlib
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from model.batches import Batch, Loader, PackReader, StepBatch
from model.checkpoint import Checkpoints, Loaded, training_tensors
from model.checkpoint_files import TrainState, read_state
from model.config import StabilityConfig
from model.distribute import build_model, check_sums, loss_factor, reduce_gradients, replicate
from model.experts import update_router_biases
from model.initialization import initialize
from model.job import METRICS_SCHEMA, Job, Outcome, Settings, Status, order_of
from model.live import LiveView
from model.loss import TokenLosses
from model.optimizer import build_optimizer, clip_gradients, gradient_norm, set_step
from model.ranks import Ranks
from model.schedule import Events

logger = logging.getLogger(__name__)

PROBE_TOLERANCE = 1e-3  # of the loss; other ranks or threads round differently, a wrong load is off by far more
STOP_POLL_SECONDS = 1.0
MAX_SAVING_RATIO = 0.05  # of the time may go into checkpoints; a slow store stretches the interval

NUM_LOSSES = 4  # summed over the ranks at each step: nll, z, balance, router z

Action = Literal["apply", "skip", "halt"]


def train(job: Job, should_stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Train a phase to its end, or to a saved stop. Destroys the process group, if there is one, in any case.

    `should_stop` is asked on rank 0, once a second; SIGTERM on any rank stops as well. Raises NoSoundCheckpoint,
    ValueError (data or parent can't carry the phase), and what the store raises.
    """
    threads = torch.get_num_threads()
    try:
        if job.settings.threads is not None:
            torch.set_num_threads(job.settings.threads)
        ranks = Ranks.of_this_process()
        job.run.phase.check_ranks(ranks.count)
        check_sums(ranks, torch.device(job.settings.device))
        with _sigterm_noted() as terminated:
            outcome = Trainer(job, ranks, terminated.is_set, should_stop).run()
        ranks.wait()
        return outcome
    finally:
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()  # gloo aborts at exit otherwise


def decide(bad_steps: tuple[int, ...], step: int, is_finite: bool, config: StabilityConfig) -> Action:
    """What happens to a step, given the bad ones before it."""
    if is_finite:
        return "apply"
    recent = [bad for bad in bad_steps if bad > step - config.window_steps]
    return "skip" if len(recent) < config.max_bad_steps else "halt"


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


class Trainer:
    """One phase on one rank. `step`, `tokens`, `position`: what is done of the phase; `applied`: of all phases."""

    def __init__(self, job: Job, ranks: Ranks, terminated: Callable[[], bool], should_stop: Callable[[], bool]) -> None:
        self.job, self.ranks, self.terminated, self.should_stop = job, ranks, terminated, should_stop
        self.compute, self.device = compute_of(job.settings, ranks), torch.device(job.settings.device)
        self.model = build_model(job.run.model, job.run.precision, self.device, job.settings)
        self.model.rope_base = job.run.phase.rope_base or job.run.model.rope_base
        self.replica = replicate(self.model, job.settings)  # what is called in training; the model itself unless DDP
        self.optimizer = build_optimizer(self.model, job.run.optimizer)
        self.parameters = list(self.model.parameters())
        self.checkpoints = Checkpoints(job.store, job.checkpoints_folder, Path(job.scratch), job.attempt, ranks)
        self.live = LiveView(job.store, job.live_prefix if ranks.is_first else None, job.attempt)
        self.used = read_state(job.store, job.parent).ordinals if job.parent else {}
        self.order = order_of(job.run, job.packs, self.used)
        self.probe = PackReader(job.store, self.order).read(np.zeros(1, dtype=np.int64))
        self.step = self.applied = self.tokens = self.position = 0
        self.bad_steps: tuple[int, ...] = ()
        self.events = Events()
        self.rows: list[dict[str, Any]] = []
        self.next_poll = 0.0
        self.next_save = time.monotonic() + job.settings.checkpoint_seconds
        self.began = self._begin()

    # --- where it begins -----------------------------------------------------------------------------------------

    def _begin(self) -> str:
        """Load or draw the weights; says in words what was done."""
        tensors = training_tensors(self.model, self.optimizer)
        if loaded := self.checkpoints.load_newest(tensors, self._check_probe):
            state = loaded.state
            self.step, self.tokens, self.position = state.step, state.tokens, state.position
            self.bad_steps, self.events = state.bad_steps, state.events
            self._set_applied(state.applied_steps)
            return f"resumed from step {state.step}" + _told(loaded) + _changed(state, self.compute)
        if self.job.parent is None:
            initialize(self.model, self.job.run.model, self.job.run.seed)
            self._set_applied(0)
            return "fresh start: this training has no checkpoint yet"
        if not read_state(self.job.store, self.job.parent).has_moments:
            tensors = training_tensors(self.model, None)  # the optimizer's stay 0
        parent = self.checkpoints.load(self.job.parent, tensors)
        if isinstance(parent, str):
            raise ValueError(f"checkpoint {self.job.parent} of the phase before can't be continued: {parent}")
        self._set_applied(parent.state.applied_steps)
        taken = "weights and moments are its own" if parent.state.has_moments else "the weights are its own"
        return f"fresh start from {self.job.parent}: {taken}, hyper-parameters the recipe's"

    def _set_applied(self, applied: int) -> None:
        """AdamW's own step counter, which its bias correction reads."""
        self.applied = applied
        for parameter in self.parameters:
            self.optimizer.state[parameter]["step"] = torch.tensor(float(applied), device=self.device)

    def _check_probe(self, state: TrainState) -> str | None:
        wanted, got = state.probe_loss, self._probe_loss()
        if wanted is None or abs(got - wanted) <= PROBE_TOLERANCE * max(1.0, abs(wanted)):
            return None
        return f"the loss of its probe row is {got:.6f}, {wanted:.6f} was saved with it"

    def _probe_loss(self) -> float:
        """Nats per token of the phase's first row, under the weights as they are now, nothing dropped."""
        self.model.eval()
        with torch.no_grad():
            losses = self._forward(self.probe)
        self.model.train()
        for unit in (*self.model.blocks, self.model):
            if isinstance(unit, FSDPModule):
                unit.reshard()  # no backward follows to do so: the next load or step would meet stale whole weights
        return float(losses.nll_BT.sum()) / max(1, self.probe.num_targets)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Steps until the phase ends, a stop is asked for, or training halts itself."""
        logger.info("phase %s: %s", self.job.run.phase.name, self.began)
        self.live.add({"event": "begin", "message": self.began})
        self.live.close_segment()  # said at once
        reader = PackReader(self.job.store, self.order, self.job.settings.cache_bytes)
        loader = Loader(
            reader,
            self.job.run,
            self.events,
            tokens=self.tokens,
            position=self.position,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
        )
        try:
            status = self._run_steps(iter(loader))
        finally:
            loader.close()
            self.live.close_segment()
        logger.info("phase %s: %s at step %d", self.job.run.phase.name, status, self.step)
        return Outcome(status, self.step, self.began)

    def _run_steps(self, steps: Iterator[StepBatch]) -> Status:
        begun = time.perf_counter()
        for item in steps:
            action = self._train_step(item, begun, time.perf_counter() - begun)
            if action == "halt":
                self._report_halt(item)
                return "halted"
            stops, is_due = self._agree()
            stops = stops and not item.plan.is_last
            if item.plan.is_last or stops or is_due:
                self._save(is_last=item.plan.is_last)
            if stops:
                return "stopped"
            begun = time.perf_counter()
        return "finished"

    def _train_step(self, item: StepBatch, begun: float, data_seconds: float) -> Action:
        plan = item.plan
        self._seed(item)
        targets = self.ranks.sum([item.batch.num_targets], self.device)[0]
        sums = self.ranks.sum(self._backward(item.batch, max(1.0, targets)), self.device)
        loss, z_loss, balance, router_z = (total / max(1.0, targets) for total in sums[:NUM_LOSSES])
        loads_LE = torch.tensor(sums[NUM_LOSSES:]).view(self.job.run.model.num_layers, -1)
        norm = gradient_norm(self.parameters)
        is_finite = math.isfinite(loss) and bool(torch.isfinite(norm))
        action = decide(self.bad_steps, self.step + 1, is_finite, self.job.run.stability)
        if action == "apply":
            clip_gradients(self.parameters, norm, plan.clip)
            set_step(self.optimizer, self.job.run.optimizer, plan.lr, plan.weight_decay)
            self.optimizer.step()
            update_router_biases(self.model, loads_LE.to(self.device))
            self.applied += 1
        else:
            self.bad_steps = (*self.bad_steps, self.step + 1)
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens, self.position = self.step + 1, plan.end_tokens, item.position_to
        measured: dict[str, Any] = {"targets": int(targets), "loss": loss, "z_loss": z_loss}
        measured |= {"grad_norm": float(norm), "action": action}
        if loads_LE.numel():
            shares = loads_LE / loads_LE.sum(1, keepdim=True).clamp(min=1)
            measured |= {"balance_loss": balance, "router_z_loss": router_z, "expert_loads": shares.tolist()}
        self._note(item, measured | {"seconds": time.perf_counter() - begun, "data_seconds": data_seconds})
        return action

    def _backward(self, batch: Batch, targets: float) -> list[float]:
        """Gradients of the whole step; returns this rank's sums: losses, z, balance, router z, loads of all experts."""
        pieces = list(batch.micro_batches(self.job.settings.micro_batch_rows))
        losses_4 = torch.zeros(NUM_LOSSES, dtype=torch.float64, device=self.device)
        loads_LE: Tensor | None = None
        for index, piece in enumerate(pieces):
            reduce_gradients(self.replica, index == len(pieces) - 1)
            losses = self._forward(piece)
            (losses.objective / targets * loss_factor(self.replica)).backward()
            losses_4[:2] += torch.stack((losses.nll_BT.sum(), losses.z_BT.sum()))
            if losses.balance is not None and losses.router_z is not None and losses.loads_LE is not None:
                losses_4[2:] += torch.stack((losses.balance, losses.router_z))
                loads_LE = losses.loads_LE if loads_LE is None else loads_LE + losses.loads_LE
        return losses_4.tolist() + ([] if loads_LE is None else loads_LE.flatten().tolist())

    def _forward(self, batch: Batch) -> TokenLosses:
        ids_BT, targets_BT = batch.ids_BT.to(self.device), batch.targets_BT.to(self.device)
        model = self.replica if self.model.training else self.model  # DDP's hooks are for steps alone
        losses = model(ids_BT, batch.document_starts, targets_BT, self.job.run.optimizer.z_loss)
        assert isinstance(losses, TokenLosses)
        return losses

    def _seed(self, item: StepBatch) -> None:
        text = f"{self.job.run.seed}/{item.plan.phase}/{item.position_from}/{self.ranks.rank}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1)

    def _note(self, item: StepBatch, measured: dict[str, Any]) -> None:
        planned = {
            "step": self.step,
            "phase": item.plan.phase,
            "tokens": self.tokens,
            "position_from": item.position_from,
            "position_to": item.position_to,
            "rows": item.plan.batch_rows,
            "lr": item.plan.lr,
        }
        row: dict[str, Any] = planned | measured
        self.rows.append(row)
        speed = item.plan.batch_rows * item.plan.sequence_length / row["seconds"]
        self.live.add(row | {"tokens_per_second": speed, "data_wait_ratio": row["data_seconds"] / row["seconds"]})
        if row["action"] != "apply":
            logger.warning("bad step: %s", row)

    # --- saving and stopping -------------------------------------------------------------------------------------

    def _save(self, is_last: bool) -> None:
        begun, probe_loss = time.monotonic(), self._probe_loss()
        state = TrainState(
            phase=self.job.run.phase.name,
            step=self.step,
            applied_steps=self.applied,
            tokens=self.tokens,
            position=self.position,
            ordinals=self.used | self.order.ordinals_until(self.position),
            events=self.events,
            bad_steps=self.bad_steps,
            probe_loss=probe_loss,
            config=self.job.run.model_dump(mode="json"),
            compute=self.compute,
        )
        self.checkpoints.save(
            training_tensors(self.model, self.optimizer),
            state,
            pa.Table.from_pylist(self.rows, METRICS_SCHEMA),
            healthy=math.isfinite(probe_loss) and self.step not in self.bad_steps,
            is_last=is_last,
        )
        self.rows.clear()
        now = time.monotonic()
        self.next_save = now + max(self.job.settings.checkpoint_seconds, (now - begun) / MAX_SAVING_RATIO)
        if self.ranks.is_first:
            self.live.close_segment()
            self.checkpoints.retain(self.job.settings.keep_checkpoints, self.job.settings.keep_steps)

    def _agree(self) -> tuple[bool, bool]:
        """Whether any rank was told to stop, and whether a checkpoint is due; the same answers on all ranks."""
        asked, now = self.terminated(), time.monotonic()
        if self.ranks.is_first and now >= self.next_poll:
            self.next_poll = now + STOP_POLL_SECONDS
            asked = asked or self.should_stop()
        is_due = self.ranks.is_first and now >= self.next_save
        asks, due = self.ranks.sum([float(asked), float(is_due)], self.device)
        steps = self.job.settings.checkpoint_steps
        return asks > 0, due > 0 or (steps is not None and self.step % steps == 0)

    def _report_halt(self, item: StepBatch) -> None:
        if self.ranks.is_first:
            config = self.job.run.stability
            reason = (
                f"more than {config.max_bad_steps} bad steps within {config.window_steps}; the last one, "
                f"step {self.step}, read positions {item.position_from} to {item.position_to}"
            )
            report = {"step": self.step, "reason": reason, "bad_steps": self.bad_steps, "metrics": self.rows}
            self.job.store.write_bytes(self.job.halted_key, json.dumps(report, indent=2).encode())


@contextmanager
def _sigterm_noted() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, where this thread may say so (a thread of Ray Train may not)."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(loaded: Loaded) -> str:
    reasons = "; ".join(f"step {step}: {reason}" for step, reason in loaded.passed_over)
    return f"; passed over {reasons}" if reasons else ""


def _changed(state: TrainState, compute: dict[str, Any]) -> str:
    changes = [
        f"{name} {state.compute.get(name)} -> {now}" for name, now in compute.items() if state.compute.get(name) != now
    ]
    return (
        f"; computed otherwise than before ({', '.join(changes)}), so losses agree within rounding" if changes else ""
    )
