"""The same job under Ray Train and under torchrun; what those who start ranks are told."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint_files import list_steps
from model.job import Settings
from tasks.dataset import Workspace
from tasks.errors import ConfigError
from tasks.manifest import Manifest
from tasks.train.ranks import cpus_under_torchrun, is_under_torchrun, settings_under_torchrun
from tests.conftest import LIMIT_SECONDS, free_ports
from tests.tasks.test_train import LENGTH, ROWS, SETTINGS, make_run, packs, ray_workspace, train

__all__ = ["packs", "ray_workspace"]
SCRIPT = """
import os, pickle, sys
from tasks.dataset import Workspace
from tasks.train import train_phase
from tasks.train.ranks import dismiss, follow

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


def start_torchrun(folder: Path, packs: list[Manifest], into: Workspace, *runs: Any) -> list[subprocess.Popen[str]]:
    """Two hosts of one process each, as far as torchrun can tell, training phases of which each continues the last."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "given").write_bytes(pickle.dumps((packs, into.storage, dict(into.generations), runs, SETTINGS)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_ports(1)[0])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return [
        subprocess.Popen(
            [*command, "--node-rank", str(host), str(folder / "script.py"), str(folder / "given")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for host in (0, 1)
    ]  # fmt: skip


def test_torchrun_and_ray_give_the_same_bits_and_train_like_one(
    ray_workspace: Workspace, workspace: Workspace, packs: list[Manifest], tmp_path: Path
) -> None:
    """Two phases, so that torchrun makes a second process group; on Ray the second one, since it costs as much."""
    first, second = make_run(), make_run(name="anneal", tokens=2 * ROWS * LENGTH)
    torchrun = replace(ray_workspace, generations={"train": 2})
    hosts = start_torchrun(tmp_path, packs, torchrun, first, second)
    outputs = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    parent = train(packs, torchrun, first)
    assert parent.run_id == "torchrun"  # found, not trained again
    child = train([*packs, parent], ray_workspace, second)
    assert [parent.digest, child.digest] == outputs[0][0].split()
    one = train([*packs, train(packs, workspace, first)], workspace, second)
    assert (child.extra["compute"]["ranks"], one.extra["compute"]["ranks"]) == (2, 1)
    assert child.extra["loss_last"] == pytest.approx(one.extra["loss_last"], abs=1e-5)
    assert child.extra["ordinals"] == one.extra["ordinals"]
    names = {file.key.rsplit("/", 1)[1] for file in workspace.storage.list_files(child.extra["checkpoint"])}
    assert len([name for name in names if name.endswith(".safetensors")]) == 2
    assert any(file.key.endswith(".jsonl") for file in workspace.storage.list_files("runs/test/live/train-anneal"))


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_host_that_is_terminated_saves_and_the_rest_follows(
    workspace: Workspace, packs: list[Manifest], tmp_path: Path
) -> None:
    """Both agents end as failed; started again they resume, and the result is that of an undisturbed training."""
    run = make_run(tokens=500 * ROWS * LENGTH)
    quiet = start_torchrun(tmp_path, packs, replace(workspace, generations={"train": 2}), run)
    [wanted, _] = [host.communicate()[0].split() for host in quiet]
    hosts = start_torchrun(tmp_path, packs, workspace, run)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not any(list_steps(workspace.storage, f"{folder}/checkpoints") for folder in trained(workspace)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    hosts[1].terminate()
    outputs = [host.communicate() for host in hosts]
    assert all(host.returncode != 0 for host in hosts)
    assert "stopped from outside before its end; it resumes from the newest checkpoint" in outputs[0][1]
    again = [host.communicate()[0].split() for host in start_torchrun(tmp_path, packs, workspace, run)]
    assert again[0] == wanted


def trained(into: Workspace) -> set[str]:
    """Folders of trainings that are not finished."""
    folders = {"/".join(file.key.split("/")[:2]) for file in into.storage.list_files("train")}
    return {folder for folder in folders if not into.storage.exists(f"{folder}/manifest.json")}


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
