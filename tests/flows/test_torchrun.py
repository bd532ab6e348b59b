"""The train stage of a run under plain torchrun, as a user types it; the run then goes on from what it made."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from flows.torchrun import train
from tasks.errors import ConfigError
from tasks.manifest import load_manifest
from tasks.runs import RunRecord, load_record
from tasks.storage import Storage


def torchrun(root: str, run_id: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "BASEMILL_TRAIN": json.dumps({"checkpoint_steps": 8, "threads": 1}),
    }
    return subprocess.run(
        [*command, "-m", "flows.torchrun", run_id, "--root", root],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_phases_are_trained_and_the_run_goes_on(
    execute: Any, first: RunRecord, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"pack code train 64 does not exist yet; .* {first.run_id} --until pack"):
        train(Storage(root), first)
    state, record = execute(until_stage="pack")
    assert state.is_completed()
    done = torchrun(root, record.run_id)
    assert done.returncode == 0, done.stderr
    record = load_record(Storage(root), record.run_id)
    assert [attempt.state for attempt in record.attempts] == ["completed", "completed"]
    [trained] = record.datasets_of("train")
    assert f"train main: {trained.reference}" in done.stderr
    assert "train main: fresh start" in done.stderr
    state, after = execute(until_stage="train")
    assert (after.datasets_of("train")[0].reference, after.datasets_of("train")[0].cached) == (trained.reference, True)
    train(Storage(root), record)  # nothing to train, so no other rank is needed
    assert f"train main: {trained.reference} (cached)" in capsys.readouterr().err


def test_a_fork_is_taken_and_trained_and_the_run_goes_on(
    execute: Any, first: RunRecord, root: str, recipe_values: dict[str, Any]
) -> None:
    """The other run is still training: it has a checkpoint and no manifest."""
    storage = Storage(root)
    _, parent = execute(until_stage="train")
    usual = recipe_values["train"]["phases"][0]
    fork = {"name": "tail", "after": {"run": parent.run_id, "take": "weights"}, "tokens": 2048}
    long = {"name": "long", "tokens": 1024}
    train_values = recipe_values["train"] | {"phases": [usual | fork, usual | long]}
    values = recipe_values | {"train": train_values, "export": {"enabled": False}}
    _, record = execute(until_stage="pack", recipe=values)
    storage.delete(f"{parent.datasets_of('train')[0].reference}/manifest.json")
    done = torchrun(root, record.run_id)
    assert done.returncode == 0, done.stderr
    record = load_record(storage, record.run_id)
    assert [line.label for line in record.datasets if line.stage in ("fork", "train")] == [
        "fork tail", "train tail", "train long",
    ]  # fmt: skip
    tail, long_after = (load_manifest(storage, line.reference) for line in record.datasets_of("train"))
    assert (tail.extra["fork"]["run"], tail.extra["fork"]["phase"]) == (parent.run_id, "main")
    assert tail.extra["compute"]["ranks"] == 2
    assert "moments" in tail.extra["fork"]["fresh"]
    assert long_after.inputs[-1] == {"role": "parent"} | {
        "stage": "train", "fingerprint": tail.fingerprint, "digest": tail.digest,
    }  # fmt: skip
    state, after = execute(run_id=record.run_id, until_stage="train", recipe=values)
    assert state.is_completed(), state.message
    assert [line.cached for line in after.datasets if line.stage in ("fork", "train")] == [True] * 3
