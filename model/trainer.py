"""The training loop of one phase: exact, resumable, the same in one process, under torchrun and under Ray Train.

A step: plan -> rows -> count targets -> forward and backward -> global gradient norm -> one decision that all ranks
share (apply, skip; then go on, roll back or halt: model/stability.py) -> optimizer. Only "apply" touches weights and
moments. A roll-back voids the checkpoints after the one it goes back to; killed meanwhile, a rerun decides it again.
The loss is the sum over tokens divided by the number of targets of the whole global batch, so it does not depend on
ranks or micro-batches. Random numbers are seeded anew at each step from (seed, phase, position, rank): a resumed run
draws what an undisturbed one does.
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
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from model.batches import Batch, Loader, PackReader, StepBatch
from model.distribute import check_sums, loss_factor, reduce_gradients
from model.experts import update_router_biases
from model.held_out import Figures
from model.incident import numerical_report, positions_of, write_incident
from model.job import Job, Outcome, Status
from model.live import LiveView
from model.optimizer import clip_gradients, gradient_norm, set_step
from model.ranks import Ranks
from model.saving import RETRY_SECONDS
from model.schedule import Decision
from model.stability import (
    BadStep,
    after_roll_back,
    calm_tokens_of,
    is_bad,
    is_level_shift,
    next_move,
    with_applied,
    with_bad,
    with_level_accepted,
    with_roll_back,
)
from model.training import Training
from model.watch import Watch

logger = logging.getLogger(__name__)

STOP_POLL_SECONDS = 1.0
NUM_LOSSES = 4  # summed over the ranks at each step: nll, z, balance, router z

Action = Literal["apply", "skip"]

TERMINATED = threading.Event()  # set where this process was sent SIGTERM: it saves at the next step, and ends


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
        job.settings.check_shard_ranks(ranks.count)
        check_sums(ranks, torch.device(job.settings.device))
        with _sigterm_noted() as terminated:
            trainer = Trainer(job, ranks, terminated.is_set, should_stop)
            try:
                outcome = trainer.run()
            finally:
                trainer.training.saver.close()
        ranks.wait()
        return outcome
    finally:
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()  # gloo aborts at exit otherwise


class Trainer:
    """The loop over the steps of one phase on one rank."""

    def __init__(self, job: Job, ranks: Ranks, terminated: Callable[[], bool], should_stop: Callable[[], bool]) -> None:
        self.job, self.ranks, self.terminated, self.should_stop = job, ranks, terminated, should_stop
        self.training = Training(job, ranks)
        self.watch = Watch(job, ranks, self.training)
        self.live = LiveView(job.store, job.live_prefix if ranks.is_first else None, job.attempt)
        self.next_poll = 0.0

    def run(self) -> Outcome:
        """Steps until the phase ends, a stop is asked for, or training halts itself."""
        logger.info("phase %s: %s", self.job.run.phase.name, self.training.began)
        self.live.add({"event": "begin", "message": self.training.began, "tokens": self.training.tokens})
        self.live.close_segment()  # said at once
        reader = PackReader(self.job.store, self.training.order, self.job.settings.cache_bytes)
        status: Status = "rolled back"
        while status == "rolled back":
            loader = Loader(
                reader,
                self.job.run,
                self.training.events,
                tokens=self.training.tokens,
                position=self.training.position,
                rank=self.ranks.rank,
                ranks=self.ranks.count,
            )
            try:
                status = self._run_steps(iter(loader))
            finally:
                loader.close()
                self.live.close_segment()
        self._settle()
        self.live.close_segment()
        logger.info("phase %s: %s at step %d", self.job.run.phase.name, status, self.training.step)
        return Outcome(status, self.training.step, self.training.began)

    def _run_steps(self, steps: Iterator[StepBatch]) -> Status:
        begun, config = time.perf_counter(), self.job.run.stability
        for item in steps:
            self.watch.begin_step()
            action = self._train_step(item, begun, time.perf_counter() - begun)
            self.watch.end_step(is_last=item.plan.is_last)
            if action == "skip" and (status := self._recover(item)):
                return status
            stops, is_due = self._agree()
            stops = stops and not item.plan.is_last
            is_due = is_due or self.training.step % config.checkpoint_steps == 0
            if item.plan.is_last or stops or is_due:
                self._save(item.plan.is_last, must_wait=item.plan.is_last or stops)
            if stops:
                return "stopped"
            begun = time.perf_counter()
        return "finished"

    def _train_step(self, item: StepBatch, begun: float, data_seconds: float) -> Action:
        plan, training, config = item.plan, self.training, self.job.run.stability
        self._seed(item)
        targets = self.ranks.sum([item.batch.num_targets], training.device)[0]
        sums = self.ranks.sum(self._backward(item.batch, max(1.0, targets)), training.device)
        loss, z_loss, balance, router_z = (total / max(1.0, targets) for total in sums[:NUM_LOSSES])
        loads_LE = torch.tensor(sums[NUM_LOSSES:]).view(self.job.run.model.num_layers, -1)
        gradient = gradient_norm(training.parameters)
        norm = float(gradient)
        training.step, training.tokens, training.position = training.step + 1, plan.end_tokens, item.position_to
        action: Action = "skip" if is_bad(training.memory, loss, norm, config) else "apply"
        if action == "apply":
            clip_gradients(training.parameters, gradient, plan.clip)
            set_step(training.optimizer, self.job.run.optimizer, plan.lr, plan.weight_decay)
            training.optimizer.step()
            update_router_biases(training.model, loads_LE.to(training.device))
            training.applied += 1
            training.memory = with_applied(training.memory, loss, norm, plan.end_tokens, config)
        else:
            bad = BadStep(
                step=training.step, tokens=plan.tokens_in_phase, position_from=item.position_from,
                position_to=item.position_to, is_finite=math.isfinite(loss) and math.isfinite(norm),
            )  # fmt: skip
            training.memory = with_bad(training.memory, bad)
        training.optimizer.zero_grad(set_to_none=True)
        noted: dict[str, Any] = {"targets": int(targets), "loss": loss, "z_loss": z_loss}
        noted |= {"grad_norm": norm, "action": action}
        if loads_LE.numel():
            shares = loads_LE / loads_LE.sum(1, keepdim=True).clamp(min=1)
            noted |= {"balance_loss": balance, "router_z_loss": router_z, "expert_loads": shares.tolist()}
        self._note(item, noted | {"seconds": time.perf_counter() - begun, "data_seconds": data_seconds})
        return action

    def _backward(self, batch: Batch, targets: float) -> list[float]:
        """Gradients of the whole step; returns this rank's sums: losses, z, balance, router z, loads of all experts."""
        replica = self.training.replica
        pieces = list(batch.micro_batches(self.job.settings.micro_batch_rows))
        losses_4 = torch.zeros(NUM_LOSSES, dtype=torch.float64, device=self.training.device)
        loads_LE: Tensor | None = None
        for index, piece in enumerate(pieces):
            reduce_gradients(replica, index == len(pieces) - 1)
            losses = self.training.forward(piece)
            (losses.objective / targets * loss_factor(replica)).backward()
            losses_4[:2] += torch.stack((losses.nll_BT.sum(), losses.z_BT.sum()))
            if losses.balance is not None and losses.router_z is not None and losses.loads_LE is not None:
                losses_4[2:] += torch.stack((losses.balance, losses.router_z))
                loads_LE = losses.loads_LE if loads_LE is None else loads_LE + losses.loads_LE
        return losses_4.tolist() + ([] if loads_LE is None else loads_LE.flatten().tolist())

    def _seed(self, item: StepBatch) -> None:
        text = f"{self.job.run.seed}/{item.plan.phase}/{item.position_from}/{self.ranks.rank}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1)

    def _note(self, item: StepBatch, measured: dict[str, Any]) -> None:
        planned = {
            "step": self.training.step,
            "phase": item.plan.phase,
            "tokens": self.training.tokens,
            "position_from": item.position_from,
            "position_to": item.position_to,
            "rows": item.plan.batch_rows,
            "lr": item.plan.lr,
        }
        row: dict[str, Any] = planned | measured
        self.training.rows.append(row)
        line = row | self.watch.of_step(row)
        if row["action"] != "apply":
            line["message"] = (
                f"step {row['step']} skipped: loss {row['loss']:.4g}, gradient norm {row['grad_norm']:.4g}"
            )
            if self.ranks.is_first:
                logger.warning("phase %s: %s", row["phase"], line["message"])
        self.live.add(line)

    def _save(self, is_last: bool, must_wait: bool) -> None:
        training = self.training
        self._settle()
        is_due = is_last or training.step % self.job.run.stability.checkpoint_steps == 0
        if is_due and training.held_out.batches:
            figures = training.held_out.figures(training.measure, training.device)
            event: dict[str, Any] = {"event": "held-out loss", "step": training.step, "phase": self.job.run.phase.name}
            for name in Figures._fields:
                event[name] = {source: getattr(own, name) for source, own in figures.items()}
            self.live.add(event)
            if sample := self.watch.sample():
                self.live.add(sample)
        training.save(is_last)
        while must_wait and not self._settle():
            time.sleep(RETRY_SECONDS)
            training.save(is_last)
        self.live.close_segment()

    def _settle(self) -> bool:
        """Wait for the checkpoint that is being written; whether there is none that failed. Raises SaveFailed."""
        if failed := self.training.settle():
            logger.warning("phase %s: a checkpoint could not be saved: %s", self.job.run.phase.name, failed)
            facts = {"tokens": self.training.tokens, "in_a_row": self.training.saver.failures}
            self.live.add({"event": "save failed", "message": str(failed)} | facts)
        return failed is None

    def _agree(self) -> tuple[bool, bool]:
        """Whether any rank was told to stop, and whether a checkpoint is due; the same answers on all ranks.

        A checkpoint that was written meanwhile is settled.
        """
        asked, now = self.terminated(), time.monotonic()
        if self.ranks.is_first and now >= self.next_poll:
            self.next_poll = now + STOP_POLL_SECONDS
            asked = asked or self.should_stop()
        is_due = self.ranks.is_first and now >= self.training.next_save and not self.training.saver.is_pending
        is_written = self.ranks.is_first and self.training.saver.is_written
        asks, due, written = self.ranks.sum([float(asked), float(is_due), float(is_written)], self.training.device)
        if written:
            self._settle()
        return asks > 0, due > 0 or self.job.settings.is_due(self.training.step)

    # --- trouble -------------------------------------------------------------------------------------------------

    def _recover(self, item: StepBatch) -> Status | None:
        """What follows a bad step: None to go on, "rolled back", or "halted"."""
        training, config = self.training, self.job.run.stability
        move = next_move(training.memory, training.step, config)
        if move == "go on":
            return None
        if move == "roll back":
            self._roll_back(item)
            return "rolled back"
        held_out = training.held_out.mean_loss(training.measure, training.device)
        if not is_level_shift(training.memory, training.step, held_out, config):
            self._report_halt(item, held_out)
            return "halted"
        bad = tuple(step.step for step in training.memory.recent(training.step, config))
        decision = Decision(kind="level shift", step=training.step, bad_steps=bad)
        decisions = (*training.events.decisions, decision)
        training.events = training.events.model_copy(update={"decisions": decisions})
        self._tell(decision)
        training.memory = with_level_accepted(training.memory, training.step)
        return None

    def _roll_back(self, item: StepBatch) -> None:
        """Go back to a healthy checkpoint, with events that pass over the rows of the trouble."""
        training, config, before = self.training, self.job.run.stability, self.training.memory
        self._settle()
        bad = before.recent(training.step, config)
        numbers = numerical_report(training, item.batch, item.plan.lr)
        distance_rows = config.distance_steps * item.plan.batch_rows
        positions = positions_of(bad, distance_rows, list(training.events.skips), self.ranks.count)
        restored = training.restore(bad[0].step - config.distance_steps)
        reference = training.held_out.mean_loss(training.measure, training.device)
        training.memory = after_roll_back(restored, before, calm_tokens_of(bad[0], item.plan, config), reference)
        training.events = with_roll_back(training.events, before, item.plan, config, training.step)
        decision = training.events.decisions[-1]
        self._tell(decision)
        write_incident(training, decision, positions, numbers)

    def _tell(self, decision: Decision) -> None:
        if self.ranks.is_first:
            logger.warning("phase %s: %s", self.job.run.phase.name, decision)
        facts = decision.model_dump(mode="json", exclude={"kind"})
        self.live.add({"event": decision.kind, "message": str(decision)} | facts)

    def _report_halt(self, item: StepBatch, held_out: float | None) -> None:
        if not self.ranks.is_first:
            return
        config, memory = self.job.run.stability, self.training.memory
        reason = (
            f"more than {config.max_bad_steps} bad steps within {config.recent_steps} after {memory.attempts} "
            f"roll-backs; the last one, step {self.training.step}, read positions {item.position_from} to "
            f"{item.position_to}; held-out loss {held_out}, {memory.reference_loss} at the state gone back to"
        )
        facts = {"step": self.training.step, "tokens": self.training.tokens}
        self.live.add({"event": "halted", "message": reason} | facts)
        report = {
            "step": self.training.step,
            "reason": reason,
            "bad_steps": [bad.step for bad in memory.bad_steps],
            "decisions": [decision.model_dump(mode="json") for decision in self.training.events.decisions],
            "metrics": self.training.rows,
        }
        self.job.store.write_bytes(self.job.halted_key, json.dumps(report, indent=2).encode())


@contextmanager
def _sigterm_noted() -> Iterator[threading.Event]:
    """An event that SIGTERM sets; in another thread than the main one, who runs that one has to see to it."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, lambda number, frame: TERMINATED.set())
    try:
        yield TERMINATED
    finally:
        TERMINATED.clear()
        if before is not None:
            signal.signal(signal.SIGTERM, before)
