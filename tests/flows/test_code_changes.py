"""A change to the code: what `basemill plan` says of it, in a process of its own, and what a run then computes again.

The packages are copied, so that they can be changed; the datasets were made by the unchanged ones.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.runs import RunRecord

PROJECT = Path(__file__).parents[2]
CURATION = ["ingest", "dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate", "mix"]
CONSTANT = "GUARDED_DOCUMENTS = 1000"  # of the stage select; the tiny recipe has fewer documents, before and after


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, with what numba has compiled of it."""
    folder = tmp_path_factory.mktemp("project")
    for package in ("flows", "tasks", "model"):
        shutil.copytree(PROJECT / package, folder / package)
    return folder


@pytest.fixture
def project(copied: Path) -> Any:
    """The copy, unchanged when the test begins."""
    before = (copied / "tasks/select/__init__.py").read_bytes()
    yield copied
    (copied / "tasks/select/__init__.py").write_bytes(before)


def change(project: Path, old: str, new: str) -> None:
    path = project / "tasks/select/__init__.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def basemill(project: Path, *arguments: str) -> Any:
    """What the copy's command prints with --json."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments, "--json"],
        cwd=project, env=os.environ | {"PYTHONPATH": str(project)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def planned(project: Path, recipe_path: Path, root: str, *arguments: str) -> dict[str, str]:
    """Label -> verdict (detail) of every dataset up to mix."""
    lines = basemill(project, "plan", str(recipe_path), "--root", root, "--until", "mix", *arguments)
    return {line["label"]: f"{line['verdict']} ({line['detail']})".removesuffix(" ()") for line in lines}


def verdicts(first: RunRecord, cause: str) -> dict[str, str]:
    """Cached up to signals, select for this cause, the rest if changed."""
    cached = dict.fromkeys(CURATION[:3], f"cached (run {first.run_id})")
    return cached | {"select": f"run ({cause})"} | dict.fromkeys(CURATION[4:], "if changed")


def test_a_comment_costs_nothing(project: Path, recipe_path: Path, first: RunRecord, root: str) -> None:
    change(project, CONSTANT, f"# a reason\n{CONSTANT}  # documents")
    assert planned(project, recipe_path, root) == dict.fromkeys(CURATION, f"cached (run {first.run_id})")


def test_a_changed_constant_is_named_and_its_stage_runs_again(
    project: Path, recipe_path: Path, first: RunRecord, root: str, server_url: str
) -> None:
    """Where the result stays as it was, nothing after it runs."""
    change(project, CONSTANT, "GUARDED_DOCUMENTS = 1001")
    assert planned(project, recipe_path, root) == verdicts(first, "code of tasks.select changed")
    done = basemill(project, "run", str(recipe_path), "--root", root, "--until", "select")
    assert {line["label"]: line["cached"] for line in done["datasets"]} == {
        "ingest": True, "dedup-exact": True, "signals": True, "select": False,
    }  # fmt: skip
    after = planned(project, recipe_path, root)
    assert after.pop("select") == f"cached (run {done['run_id']})"
    assert set(after.values()) == {f"cached (run {first.run_id})"}


def test_a_threshold_is_named(project: Path, recipe_path: Path, first: RunRecord, root: str) -> None:
    option = ("--set", "select.gopher_quality.min_words=40")
    cause = "gopher_quality.min_words: 50.0 -> 40.0"
    assert planned(project, recipe_path, root, *option) == verdicts(first, cause)
