"""The same job under Ray Train and under torchrun; what those who start ranks are told."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.job import Settings
from tasks.dataset import Workspace
from tasks.errors import ConfigError
from tasks.manifest import Manifest
from tasks.train_ranks import cpus_under_torchrun, is_under_torchrun, settings_under_torchrun
from tests.tasks.test_train import LENGTH, ROWS, SETTINGS, make_run, packs, ray_workspace, train

__all__ = ["packs", "ray_workspace"]
SCRIPT = """
import os, pickle, sys
from tasks.dataset import Workspace
from tasks.train import train_phase
from tasks.train_ranks import dismiss, follow

if int(os.environ["RANK"]):
    follow()
else:
    packs, storage, generations, runs, settings = pickle.load(open(sys.argv[1], "rb"))
    into = Workspace(storage, "torchrun", workers=-1, generations=generations)
    manifests = []
    for run in runs:
        manifests.append(train_phase(*packs, *manifests[-1:], into=into, config=run, settings=settings))
    dismiss()
    print(*(manifest.digest for manifest in manifests))
"""


def under_torchrun(folder: Path, packs: list[Manifest], into: Workspace, *runs: Any, **settings: Any) -> list[str]:
    """The digests of phases, each the parent of the next, trained by two processes of torchrun."""
    (folder / "script.py").write_text(SCRIPT)
    given = (packs, into.storage, dict(into.generations), runs, SETTINGS.model_copy(update=settings))
    (folder / "given").write_bytes(pickle.dumps(given))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [*command, str(folder / "script.py"), str(folder / "given")], env=environment, capture_output=True, timeout=200
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode().split()


def test_torchrun_and_ray_give_the_same_bits(ray_workspace: Workspace, packs: list[Manifest], tmp_path: Path) -> None:
    """Two phases, so that a second process group is made; on Ray the second one only, since it costs as much."""
    first, second = make_run(), make_run(name="anneal", tokens=2 * ROWS * LENGTH)
    digests = under_torchrun(tmp_path, packs, replace(ray_workspace, generations={"train": 2}), first, second)
    parent = train(packs, replace(ray_workspace, generations={"train": 2}), first)
    assert (parent.digest, parent.run_id) == (digests[0], "torchrun")  # found, not trained again
    child = train([*packs, parent], ray_workspace, second)
    assert child.digest == digests[1]
    assert child.extra["compute"]["ranks"] == 2


def test_ranks_are_those_that_torchrun_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_under_torchrun()
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert is_under_torchrun()
    assert settings_under_torchrun(Settings(threads=3)).model_copy(update={"device": "cpu"}) == Settings(
        ranks=8, threads=3
    )
    assert cpus_under_torchrun() == 2 * (os.cpu_count() or 1)
    with pytest.raises(ConfigError, match="BASEMILL_TRAIN asks for 2 ranks, torchrun started 8; leave ranks out"):
        settings_under_torchrun(Settings(ranks=2))
