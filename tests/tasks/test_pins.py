"""Pins: datasets by run or by fingerprint, taken as they are; what does not exist is named."""

from pathlib import Path
from typing import Any

import pytest

from tasks.dataset import Workspace
from tasks.errors import ConfigError
from tasks.journal import Run
from tasks.manifest import Manifest
from tasks.pins import pinned
from tasks.recipe import Recipe
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage

RUN_ID = "20260101-000000-abcd"


@pytest.fixture
def tokenizer(workspace: Workspace) -> Manifest:
    """A vocabulary dataset that a finished run made."""
    dataset = workspace.dataset("vocabulary", None, inputs={}, module="tasks.documents")
    made = dataset.publish_files({"tokenizer.json": b"{}"})
    record = RunRecord(run_id=RUN_ID, created="2026-01-01", recipe={})
    record.set_dataset(
        DatasetLine(
            label="vocabulary",
            stage="vocabulary",
            reference=made.reference,
            digest=made.digest,
            code="",
            made_by=RUN_ID,
            cached=False,
            attempt=1,
            seconds=0,
        )
    )
    record.save(workspace.storage)
    return made


def run_with(storage: Storage, folder: Path, pin: dict[str, Any]) -> Run:
    recipe = Recipe.parse(
        {
            "name": "pins",
            "ingest": {"sources": {"web": {"base": str(folder)}}},
            "vocabulary": {"size": 300},
            "model": {"size": "tiny"},
            "pin": pin,
            "train": {
                "phases": [
                    {
                        "name": "main",
                        "tokens": 64,
                        "weights": {"web": 1},
                        "sequence_length": 16,
                        "batch": 1,
                        "schedule": {"lr": 1e-3},
                    }
                ]
            },
        }
    )
    return Run(root=storage.url, run_id="now", recipe=recipe, is_dry=True)


@pytest.mark.parametrize("name", [RUN_ID, RUN_ID[:15], "latest", "fingerprint"])
def test_a_pin_names_a_run_or_a_fingerprint(
    name: str, tokenizer: Manifest, workspace: Workspace, tmp_path: Path
) -> None:
    pin = tokenizer.fingerprint[:12] if name == "fingerprint" else name
    run = run_with(workspace.storage, tmp_path, {"vocabulary": pin})
    assert pinned(run, "vocabulary", "vocabulary") == {"vocabulary": tokenizer.reference}
    assert [(line.label, line.verdict) for line in run.plan] == [("vocabulary", "cached")]


def test_what_is_not_pinned_is_left_to_the_graph(workspace: Workspace, tmp_path: Path) -> None:
    assert pinned(run_with(workspace.storage, tmp_path, {}), "vocabulary", "vocabulary") is None


@pytest.mark.parametrize(("stage", "name"), [("vocabulary", "0123456789"), ("vocabulary", "ab"), ("train", RUN_ID)])
def test_a_pin_to_nothing_is_an_error_with_its_path(
    stage: str, name: str, tokenizer: Manifest, workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"pin.{stage}"):
        pinned(run_with(workspace.storage, tmp_path, {stage: name}), stage, stage)
