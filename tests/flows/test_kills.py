"""SIGKILL of the whole process group at ten moments; `basemill rerun` must finish with the result of a quiet run.

Three of the ten run with every test; all of them, on Ray, and the demo recipe once with `make chaos`. What is compared:
every dataset's digest, every loss to the last bit, and that no part that was finished at the kill is computed again
(its receipt, which holds the seconds it took, keeps its bytes).
"""

import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.manifest import load_manifest
from tasks.runs import RunRecord, find_record, list_run_ids
from tasks.storage import Storage

MOMENTS = {  # name -> the run is killed as soon as so many files match
    "raw files are being read": ("ingest/parts/*.json", 1),
    "exact dedup decides": ("dedup-exact.*/parts/*.json", 2),
    "signals are measured": ("signals/parts/*.json", 2),
    "the near-dedup exchange is written": ("dedup-near.*/parts/*.json", 1),
    "near duplicates are decided": ("dedup-near.*/*/manifest.json", 2),
    "personal data is replaced": ("redact/parts/*.json", 1),
    "the tokenizer is trained": ("vocabulary.*/parts/*.json", 1),
    "rows are packed": ("pack/parts/*.json", 2),
    "a checkpoint is being written": ("train/*/checkpoints/*/*", 1),
    "training goes on after a checkpoint": ("train/*/checkpoints/*/manifest.json", 2),
}
IN_EVERY_TEST = ("the near-dedup exchange is written", "rows are packed", "a checkpoint is being written")


class Mill:
    """The command in processes of its own, on one root."""

    def __init__(self, folder: Path, recipe: dict[str, Any] | str, workers: int) -> None:
        self.folder, self.root = folder, folder / "lake"
        folder.mkdir(parents=True)
        if isinstance(recipe, str):  # one that ships, on as many workers and ranks as a user has
            self.recipe = recipe
            self.environment = os.environ | {"BASEMILL_TRAIN": json.dumps({"checkpoint_steps": 100})}
            return
        self.recipe = str(folder / "tiny.yaml")
        Path(self.recipe).write_text(json.dumps(recipe))
        self.environment = os.environ | {
            "BASEMILL_WORKERS": str(workers),
            "BASEMILL_TRAIN": json.dumps({"checkpoint_steps": 4, "ranks": 2 if workers else 1, "threads": 1}),
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flows.cli", *arguments, "--root", str(self.root)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, start_new_session=True)

    def run_to_end(self, *arguments: str) -> None:
        process = self.start(*arguments)
        assert process.wait() == 0, (self.folder / "log").read_text()[-3000:]

    def kill_when(self, pattern: str, count: int) -> None:
        """Start a run and kill its process group once `count` files match."""
        process = self.start("run", self.recipe)
        while self.count(pattern) < count:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def count(self, pattern: str) -> int:
        found = 0
        for folder, _, names in os.walk(self.root):  # unlike rglob it does not mind folders that vanish meanwhile
            keys = (Path(folder, name).relative_to(self.root).as_posix() for name in names)
            found += sum(fnmatch.fnmatch(key, pattern) and "/.tmp-" not in key for key in keys)
        return found

    def receipts(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.glob("*/parts/*.json")}


def result_of(root: Path | str) -> tuple[list[tuple[str, str]], bytes]:
    """Digest of every dataset by label, and the exact metrics of training, of the latest run."""
    storage = Storage(str(root))
    record = find_record(storage, "latest")
    assert record.state == "completed"
    [trained] = [line for line in record.datasets if line.stage == "train"]
    metrics = load_manifest(storage, trained.reference).read_file(storage, "metrics.parquet")
    return [(line.label, line.digest) for line in record.datasets], metrics


@pytest.fixture(scope="module")
def quiet_on_ray(server_url: str, raw_folder: Path, tiny_recipe: Any, tmp_path_factory: Any) -> Path:
    """The root of a run that was never disturbed; `server_url` stands in the environment of commands."""
    mill = Mill(tmp_path_factory.mktemp("quiet-ray") / "mill", tiny_recipe(raw_folder), -1)
    mill.run_to_end("run", mill.recipe)
    return mill.root


def check_kill(quiet: Path | str, mill: Mill, moment: str) -> None:
    mill.kill_when(*MOMENTS[moment])
    before = mill.receipts()
    mill.run_to_end("rerun", "latest")
    assert result_of(mill.root) == result_of(quiet)
    now = mill.receipts()
    assert all(now[key] == receipt for key, receipt in before.items())
    assert len(list_run_ids(Storage(str(mill.root)))) == 1


@pytest.mark.parametrize("moment", IN_EVERY_TEST)
def test_a_killed_run_is_finished_by_rerun(
    moment: str, finished: tuple[str, RunRecord], recipe_values: dict[str, Any], tmp_path: Path
) -> None:
    check_kill(finished[0], Mill(tmp_path / "mill", recipe_values, 0), moment)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_on_ray_is_finished_by_rerun(
    moment: str, quiet_on_ray: Path, recipe_values: dict[str, Any], tmp_path: Path
) -> None:
    check_kill(quiet_on_ray, Mill(tmp_path / "mill", recipe_values, -1), moment)


@pytest.mark.chaos
@pytest.mark.timeout(7200)  # 3 runs of 7 minutes each on two idle cores
def test_the_demo_killed_in_training_is_finished_by_rerun(server_url: str, tmp_path: Path) -> None:
    quiet = Mill(tmp_path / "quiet", "demo", -1)
    quiet.run_to_end("run", quiet.recipe)
    check_kill(quiet.root, Mill(tmp_path / "mill", "demo", -1), "training goes on after a checkpoint")
