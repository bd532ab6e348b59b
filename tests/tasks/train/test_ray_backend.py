"""SIGTERM to a worker of Ray Train; that Ray installs it is held by a chaos test of tests/tasks/test_train.py."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from model.checkpoint_files import list_steps
from model.trainer import TERMINATED
from tasks.dataset import Workspace
from tasks.errors import WorkerLost
from tasks.manifest import Manifest
from tasks.train.ray_backend import SavingTorchConfig, note_sigterm
from tests.tasks.test_train import handling_sigterm, packs, train

__all__ = ["packs"]


class Workers(list[object]):
    """Workers of Ray Train, as far as a backend can tell."""

    def execute(self, function: object, *arguments: object) -> None:
        """Note what the main thread of every worker would run."""
        self.append(function)


def test_a_sigterm_saves_what_trains_in_another_thread_and_a_second_one_is_for_the_handler_before(
    workspace: Workspace, packs: list[Manifest]
) -> None:
    undisturbed = train(packs, replace(workspace, generations={"train": 1}))
    seen: list[int] = []
    terminated = replace(workspace, on_progress=lambda *_: signal.raise_signal(signal.SIGTERM))
    with handling_sigterm(lambda number, frame: seen.append(number)), ThreadPoolExecutor(1) as thread:
        note_sigterm()
        training = thread.submit(train, packs, terminated, checkpoint_steps=100)
        while not training.done():
            time.sleep(0.001)  # handlers run in this thread, once it runs
        with pytest.raises(WorkerLost, match="stopped from outside before its end; it resumes from the newest"):
            training.result()
    assert seen
    assert not TERMINATED.is_set()  # the next training of this process goes on
    resumed = train(packs, workspace, keep_checkpoints=9, checkpoint_steps=100)
    assert min(list_steps(workspace.storage, f"{resumed.reference}/checkpoints")) in (1, 2, 3)
    assert resumed.digest == undisturbed.digest


def test_the_handler_is_set_before_ray_trains() -> None:
    workers, config = Workers(), SavingTorchConfig(backend="gloo")
    config.backend_cls().on_training_start(workers, config)
    assert workers[-1] is note_sigterm
