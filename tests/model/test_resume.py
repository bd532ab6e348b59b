"""Killed at random points and resumed, with a ramp, two phases, dropout and a skip list in play: not a bit changes.

A training of two phases is killed ten times (`make chaos`; twice in every test run): in a forward pass, after an
optimizer's step, at a write of a checkpoint. What is compared with the undisturbed training on the same compute: every
loss, gradient norm and row position to the last bit, and the digest of weights and moments.
"""

import itertools
import json
import math
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from model.architecture import ModelConfig
from model.checkpoint import Checkpoints
from model.checkpoint_files import find_last, list_steps, read_metrics, read_state, step_key
from model.config import StabilityConfig
from model.job import EXACT_METRICS, Job
from model.ranks import Ranks
from model.schedule import Events, Factor, SkipRange
from model.trainer import train
from tests.conftest import LIMIT_SECONDS
from tests.model.test_trainer import LENGTH, MODEL, ROWS, WORKER, make_job, phase_of, tensors_of

__all__ = ["make_job"]
RAMP = {0: 4, 16 * 4 * LENGTH: ROWS}  # 16 steps of 4 rows first
STEPS = {"main": 50, "anneal": 40}
SKIPS = {"main": ((30, 45), (150, 151)), "anneal": ((8, 30),)}
COMPUTES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "fp32": ("fp32", 1, {}),
    "bf16": ("bf16", 1, {}),
    "bf16 compiled": ("bf16", 1, {"compile_blocks": True}),
    "bf16 on two ranks": ("bf16", 2, {}),
}


def tokens_of(steps: int) -> int:
    return (16 * 4 + (steps - 16) * ROWS) * LENGTH


def make_phase(make_job: Any, folder: str, name: str, precision: str, dropout: float, settings: dict[str, Any]) -> Job:
    """A phase of the training in `folder`; `anneal` continues `main`, with another mixture."""
    phase = phase_of(name=name, batch=RAMP, tokens=tokens_of(STEPS[name]))
    phase |= {"weights": {"web": 1, "code": 1}} if name == "anneal" else {}
    job: Job = make_job(
        precision,
        folder=f"{folder}/{name}",
        phase=phase,
        settings={"checkpoint_steps": 3, "micro_batch_rows": 2} | settings,
    )
    model = ModelConfig.model_validate(MODEL.model_dump() | {"dropout": dropout})
    return replace(job, run=job.run.model_copy(update={"model": model}))


def end_of(job: Job) -> str:
    """The key of the checkpoint that the phase ended with."""
    last = find_last(job.store, job.checkpoints_folder)
    assert last is not None
    return last[0]


def with_skips(job: Job, ranks: Any, count: int) -> Job:
    """The job with a first checkpoint whose events hold a skip list and a gentler stretch, as after a roll-back."""
    first = replace(job, attempt="skips")
    train(first, lambda: True) if count == 1 else ranks.run(WORKER, count, JOB=first, STOP=True)
    step = list_steps(job.store, job.checkpoints_folder)[0]
    key = step_key(job.checkpoints_folder, step)
    name = job.run.phase.name
    skips = tuple(SkipRange(phase=name, start=start, stop=stop) for start, stop in SKIPS[name])
    events = Events(skips=skips, factors=(Factor(kind="lr", factor=0.5, from_tokens=4096, to_tokens=8192),))
    state = read_state(job.store, key).model_copy(update={"events": events})
    checkpoints = Checkpoints(job.store, job.checkpoints_folder, Path(job.scratch), "skips", Ranks())
    checkpoints.save(tensors_of(job, step), state, read_metrics(job.store, key), healthy=True)
    return job


class Training:
    """Both phases in one folder, trained in processes that may be killed."""

    def __init__(self, make_job: Any, ranks: Any, folder: str, compute: str, dropout: float = 0.1) -> None:
        precision, self.count, settings = COMPUTES[compute]
        self.ranks = ranks
        self.phases = [make_phase(make_job, folder, name, precision, dropout, settings) for name in STEPS]
        self.attempts = itertools.count()
        self.kills = 0

    def run(self, points: list[tuple[str, int]]) -> "Training":
        """Train to the end; each attempt is killed at the next of these points, if it comes so far."""
        points = list(points)
        for index, job in enumerate(self.phases):
            if index:
                job = self.phases[index] = replace(job, parent=end_of(self.phases[index - 1]))
            with_skips(job, self.ranks, self.count)
            while find_last(job.store, job.checkpoints_folder) is None:
                self.attempt(job, points)
        return self

    def attempt(self, job: Job, points: list[tuple[str, int]]) -> None:
        job = replace(job, attempt=f"a{next(self.attempts)}")
        if not points and self.count == 1:
            train(job)  # here: nothing is killed
            return
        values = disturbance(points[0], self.kills % self.count) if points else {}
        processes = self.ranks.start(WORKER, self.count, JOB=job, **values)
        victim = processes[self.kills % self.count]
        victim.join(LIMIT_SECONDS)
        if victim.exitcode == -signal.SIGKILL:
            points.pop(0)
            self.kills += 1
            for process in processes:
                process.kill()
        for process in processes:
            process.join(LIMIT_SECONDS)

    def metrics(self) -> list[pa.Table]:
        return [read_metrics(job.store, end_of(job)).select(EXACT_METRICS) for job in self.phases]

    def digests(self) -> list[str]:
        found = [find_last(job.store, job.checkpoints_folder) for job in self.phases]
        return [last[1].digest for last in found if last]


def disturbance(point: tuple[str, int], rank: int) -> dict[str, Any]:
    kind, count = point
    return {"KILL_AT": {rank: count}} if kind == "write" else {"KILL_IN": {rank: point}}


def random_points(seed: int, count: int) -> list[tuple[str, int]]:
    """Where each attempt is killed: a checkpoint is due every third step, and a step has up to four forward passes."""
    drawn = random.Random(seed)
    longest = {"forward": 40, "optimizer": 12, "write": 8}
    kinds = [drawn.choice(sorted(longest)) for _ in range(count)]
    return [(kind, drawn.randint(1, longest[kind])) for kind in kinds]


def check_kills(make_job: Any, ranks: Any, compute: str, seed: int, count: int) -> None:
    straight = Training(make_job, ranks, "train/straight", compute).run([])
    killed = Training(make_job, ranks, "train/killed", compute).run(random_points(seed, count))
    assert killed.kills == count
    for mine, theirs, phase in zip(killed.metrics(), straight.metrics(), killed.phases, strict=True):
        assert mine.equals(theirs)
        ranges = zip(mine["position_from"].to_pylist(), mine["position_to"].to_pylist(), strict=True)
        passed = {position for start, stop in ranges for position in range(start, stop)}
        skipped = {position for start, stop in SKIPS[phase.run.phase.name] for position in range(start, stop)}
        assert skipped < passed
        assert sum(mine["rows"].to_pylist()) == len(passed) - len(skipped)
    assert killed.digests() == straight.digests()


def test_two_kills_change_no_bit(make_job: Any, rank_processes: Any) -> None:
    """torchtitan#279, #291, #3907: the second resume is where data came again."""
    check_kills(make_job, rank_processes, "bf16", seed=2, count=2)


def test_two_bad_steps_are_skipped_once_through_a_resume(make_job: Any, rank_processes: Any) -> None:
    """OLMo-core#309, metaseq#521: an infinite gradient at step 22, ten times the loss at 34; killed between the two.

    The window of good steps comes through the resume, bad ones are never in it, and the moments' step counts good ones.
    """
    stability = StabilityConfig(window_steps=64, min_window_steps=16)
    settings = {"checkpoint_steps": 10, "background_saves": False}  # else the kill may come before step 30 is saved
    job = make_job(phase=phase_of(45), settings=settings)
    job = replace(job, run=job.run.model_copy(update={"stability": stability}))
    # Forward passes of a rank: one per step, one per probe: at each save and at the load
    trouble = {"POISON": {1: {24: math.inf}}, "KILL_IN": {0: ("optimizer", 32)}}
    rank_processes.run_until_killed(WORKER, 2, JOB=job, **trouble)
    again = replace(job, attempt="a2")
    rank_processes.run(WORKER, 2, JOB=again, POISON={0: {5: 10.0}, 1: {5: 10.0}})
    outcomes = [json.loads(Path(job.scratch, f"outcome-a2-{rank}.json").read_text()) for rank in (0, 1)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["began"] == "resumed from step 30"
    metrics, state = read_metrics(job.store, end_of(job)), read_state(job.store, end_of(job))
    assert [step for step, action in zip(metrics["step"].to_pylist(), metrics["action"].to_pylist(), strict=True)
            if action == "skip"] == [22, 34]  # fmt: skip
    assert (state.applied_steps, [bad.step for bad in state.memory.bad_steps]) == (43, [22, 34])
    good = [loss for loss, action in zip(metrics["loss"].to_pylist(), metrics["action"].to_pylist(), strict=True)
            if action == "apply"]  # fmt: skip
    assert list(state.memory.losses) == good


@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("compute", COMPUTES)
def test_ten_kills_change_no_bit(make_job: Any, rank_processes: Any, compute: str) -> None:
    check_kills(make_job, rank_processes, compute, seed=10, count=10)


@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2)])
def test_other_ranks_go_on_with_the_same_rows(make_job: Any, rank_processes: Any, before: int, after: int) -> None:
    """Without dropout: killed at a random point on some ranks, resumed on others, beside one undisturbed process."""
    straight = make_phase(make_job, "train/straight", "main", "fp32", 0.0, {})
    train(straight)
    job = make_phase(make_job, f"train/{before}-{after}", "main", "fp32", 0.0, {})
    point = ("optimizer", random.Random(f"{before}-{after}").randint(7, 45))
    rank_processes.run_until_killed(WORKER, before, before - 1, JOB=job, KILL_IN={before - 1: point})
    rank_processes.run(WORKER, after, JOB=replace(job, attempt="a2"))
    mine, theirs = (read_metrics(job.store, end_of(each)).select(EXACT_METRICS) for each in (job, straight))
    places = ["step", "tokens", "position_from", "position_to", "rows", "targets", "lr"]
    assert mine.select(places).equals(theirs.select(places))
    losses, wanted = (table["loss"].to_pylist() for table in (mine, theirs))
    resumed_at = point[1] // 3 * 3
    assert losses[: resumed_at + 10] == pytest.approx(wanted[: resumed_at + 10], abs=1e-5)
    assert losses[-1] == pytest.approx(wanted[-1], rel=0.005)
