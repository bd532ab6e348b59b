"""What is trained, without the loop: begun, measured, saved, gone back to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.architecture import ModelConfig
from model.checkpoint import load_weights, training_tensors
from model.checkpoint_files import list_steps, read_manifest, set_aside, step_key
from model.config import PhaseRun
from model.job import Job, Settings
from model.ranks import Ranks
from model.stability import BadStep, Memory
from model.training import Training
from tasks.storage import Storage


@pytest.fixture
def job(store: Storage, make_pack: Any, tmp_path: Path) -> Job:
    phase = {
        "name": "main", "tokens": 2560, "weights": {"web": 1}, "batch": 2, "sequence_length": 32, "schedule": {"lr": 1},
    }  # fmt: skip
    model = ModelConfig.of_size("tiny", width=32, mlp_width=64, vocab_size=256)
    stability = {"checkpoint_steps": 2, "distance_steps": 1, "recent_steps": 1, "max_bad_steps": 0}
    run = PhaseRun.model_validate({"model": model, "phase": phase, "precision": "fp32", "stability": stability})
    settings = Settings(threads=1, keep_checkpoints=1)
    return Job(run, (make_pack("web", [90]),), store, "train/x", "a1", str(tmp_path), settings)


def snapshot(training: Training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training_tensors(training.model, training.optimizer).items()}


def disturb(training: Training, step: int) -> None:
    """As if steps had been made: other weights and moments, a later clock."""
    for tensor in training_tensors(training.model, training.optimizer).values():
        tensor.add_(0.01 * step)
    training.step, training.position, training.tokens = step, 2 * step, 64 * step


def test_going_back_finds_the_state_that_was_saved(job: Job) -> None:
    training = Training(job, Ranks())
    saved = {}
    for step in (1, 2, 4, 5):
        disturb(training, step)
        training.memory = Memory(losses=(float(step),))
        training.save(is_last=False)
        assert training.settle() is None
        saved[step] = snapshot(training)
    memory = training.restore(3)
    assert (training.step, training.position, training.tokens, memory.losses) == (2, 4, 128, (2.0,))
    assert all(torch.equal(tensor, saved[2][name]) for name, tensor in snapshot(training).items())
    assert Training(replace(job, attempt="a2"), Ranks()).began.startswith("resumed from step 2")  # later ones are void


def test_a_checkpoint_that_is_to_stay_is_set_aside_when_it_becomes_void(job: Job) -> None:
    """Its history is no longer this training's, but a fork may name it, and a new one of that step must not mix in."""
    training = Training(replace(job, settings=job.settings.model_copy(update={"keep_steps": (4,)})), Ranks())
    for step in (2, 4, 6):
        disturb(training, step)
        training.save(is_last=False)
        assert training.settle() is None
    weights = load_weights(job.store, step_key(job.checkpoints_folder, 4))[0]
    training.restore(3)
    aside = set_aside(job.checkpoints_folder)
    assert list_steps(job.store, aside) == [4]
    training.step = 4
    training.save(is_last=False)
    assert training.settle() is None
    kept, state = load_weights(job.store, step_key(aside, 4))
    assert state.position == 8
    assert all(torch.equal(kept[name], weights[name]) for name in weights)
    assert Training(replace(job, attempt="a2"), Ranks()).step == 4


def test_going_back_before_the_first_checkpoint_begins_anew(job: Job) -> None:
    training = Training(job, Ranks())
    first = snapshot(training)
    disturb(training, 2)
    training.save(is_last=False)
    assert training.settle() is None
    assert training.restore(1) == Memory()
    assert (training.step, training.position, training.applied) == (0, 0, 0)
    assert all(torch.equal(tensor, first[name]) for name, tensor in snapshot(training).items())


def saved_at(training: Training, steps: range, unhealthy: int | None = None) -> list[int]:
    """The steps whose checkpoints are there, newest first, after one was saved at each of these."""
    for step in steps:
        training.step = step
        bad = BadStep(step=step, tokens=0, position_from=0, position_to=2, is_finite=True)
        training.memory = Memory(bad_steps=(bad,) if step == unhealthy else ())
        training.save(is_last=False)
        assert training.settle() is None
    store, folder = training.job.store, training.job.checkpoints_folder
    return [step for step in list_steps(store, folder) if not isinstance(read_manifest(store, folder, step), str)]


def test_checkpoints_to_go_back_to_are_kept_beyond_the_newest(job: Job) -> None:
    assert saved_at(Training(job, Ranks()), range(1, 10)) == [9, 8, 6]  # trouble found at step 10 goes back to 7


def test_a_healthy_checkpoint_to_go_back_to_stays_however_old(job: Job) -> None:
    """Step 6 was saved right after a bad step: going back from step 9 would else begin the phase anew."""
    training = Training(job, Ranks())
    assert saved_at(training, range(1, 10), unhealthy=6) == [9, 8, 4]
    training.restore(7)
    assert training.step == 4
    assert saved_at(training, range(10, 13)) == [12, 10]


def test_the_rotary_base_is_that_of_the_phase(job: Job) -> None:
    phase = job.run.phase.model_copy(update={"rope_base": 5e5})
    long = replace(job, run=job.run.model_copy(update={"phase": phase}))
    assert [Training(each, Ranks()).model.rope_base for each in (job, long)] == [10_000, 500_000]


def test_measuring_drops_nothing_and_leaves_the_model_in_training(job: Job) -> None:
    training = Training(job, Ranks())
    losses = training.measure(training.probe)
    assert losses.shape == training.probe.ids_BT.shape
    assert float(losses.sum()) / training.probe.num_targets == pytest.approx(5.55, abs=0.2)
    assert training.model.training
