"""The train stage of a run under plain torchrun, as a user types it; the run then goes on from what it made."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from flows.torchrun import train
from tasks.errors import ConfigError
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
    state, after = execute(until_stage="train")
    assert (after.datasets_of("train")[0].reference, after.datasets_of("train")[0].cached) == (trained.reference, True)
    train(Storage(root), record)  # nothing to train, so no other rank is needed
    assert f"train main: {trained.reference} (cached)" in capsys.readouterr().err
