"""Verification reads all data again and names what differs."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset import Workspace
from tasks.manifest import Manifest
from tasks.parts import Part
from tasks.redact import RedactConfig, redact_personal_data
from tasks.runs import DatasetLine, RunRecord
from tasks.verify import verify_run

Damage = Callable[[Path], None]


def line_of(manifest: Manifest, **facts: Any) -> DatasetLine:
    values = {
        "label": manifest.stage, "stage": manifest.stage, "reference": manifest.reference, "digest": manifest.digest,
        "code": "", "made_by": "r", "cached": False, "attempt": 1, "seconds": 0.0,
    }  # fmt: skip
    return DatasetLine.model_validate(values | facts)


@pytest.fixture
def made(workspace: Workspace, make_documents: Callable[..., Manifest]) -> tuple[Manifest, Manifest]:
    """Redacted documents with ledgers, and a dataset of one file."""
    documents = make_documents([f"mail jo{n}@acme.org" for n in range(6)] + ["no data"])
    redacted = redact_personal_data(documents, into=workspace, config=RedactConfig())
    tokenizer = workspace.dataset("vocabulary", None, inputs={}, module="tasks.documents", schema=None)
    return redacted, tokenizer.publish_files({"tokenizer.json": b"{}"})


def faults_of(workspace: Workspace, *lines: DatasetLine) -> list[str]:
    record = RunRecord(run_id="r", created="", recipe={}, datasets=list(lines))
    return [
        f"{finding.check}: {finding.detail}" for finding in verify_run(workspace.storage, record) if not finding.is_ok
    ]


def write_rows_again(path: Path) -> None:
    pq.write_table(pq.read_table(path), path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_sound_data_passes_with_a_line_per_dataset(workspace: Workspace, made: tuple[Manifest, Manifest]) -> None:
    record = RunRecord(run_id="r", created="", recipe={}, datasets=[line_of(manifest) for manifest in made])
    findings = list(verify_run(workspace.storage, record))
    assert [(finding.check, finding.is_ok) for finding in findings] == [("redact", True), ("vocabulary", True)]
    assert findings[0].detail.startswith(f"{len(made[0].parts)} parts, ")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("path", Path.unlink, "is missing"),
        ("path", lambda path: os.truncate(path, 9), "has 9 bytes of"),
        ("path", flip, "another sha256"),
        ("receipt_path", Path.unlink, "is missing"),
        ("ledger_path", Path.unlink, "is not the ledger that was written"),
        ("ledger_path", write_rows_again, "is not the ledger that was written"),
    ],
)
def test_a_damaged_part_is_named(
    workspace: Workspace, made: tuple[Manifest, Manifest], name: str, damage: Damage, message: str
) -> None:
    part = made[0].parts[0]
    key = getattr(part, name)
    damage(Path(workspace.storage.path(key)))
    [fault] = faults_of(workspace, *map(line_of, made))
    assert fault.startswith(f"redact: {key} ")
    assert message in fault


def test_other_rows_under_a_receipt_that_names_their_bytes_are_found(
    workspace: Workspace, made: tuple[Manifest, Manifest]
) -> None:
    """Every file agrees with the others, only the digest tells: the rows are not what the fingerprint stands for."""
    part = made[0].parts[0]
    path = Path(workspace.storage.path(part.path))
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, table.schema.field(1), pa.array(["x"] * len(table))), path)
    data = path.read_bytes()
    forged = Part(**(vars(part) | {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}))
    for key in (part.receipt_path, f"{made[0].reference}/manifest.json"):
        file = Path(workspace.storage.path(key))
        text = file.read_text().replace(part.sha256, forged.sha256).replace(f": {part.bytes},", f": {forged.bytes},")
        file.write_text(text)
    assert faults_of(workspace, line_of(made[0])) == [f"redact: {part.path} holds other rows than its digest names"]


def test_files_and_manifests_are_compared_too(workspace: Workspace, made: tuple[Manifest, Manifest]) -> None:
    Path(workspace.storage.path(made[1].file_path("tokenizer.json"))).write_bytes(b"[]")
    Path(workspace.storage.path(f"{made[0].reference}/manifest.json")).unlink()
    missing, other, file = faults_of(workspace, line_of(made[0]), line_of(made[1], digest="0" * 64))
    assert missing.startswith("redact: ")
    assert "not complete" in missing
    assert (
        other == f"vocabulary: {made[1].file_path('tokenizer.json')} has another sha256 than the file that was written"
    )
    assert "not 000000000000 as in the run" in file
