"""Look at documents: a few that a stage kept, or that it dropped or edited for a reason (`basemill sample`).

The choice is fixed by the documents' ids, so that two people see the same ones. Edited documents are shown as they are
after the edit: what redact replaced must not come back through a report.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BaseModel

from tasks.errors import ConfigError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, read_ledger, read_part
from tasks.runs import RunRecord
from tasks.storage import Storage

DOCUMENT_STAGES = ("ingest", "dedup-exact", "select", "dedup-near", "redact", "decontaminate")
DEFAULT_COUNT = 5
EXCERPT_CHARS = 800


class Sample(BaseModel, frozen=True):
    """One document, with the ledger's facts when it was dropped, edited or unreadable."""

    doc_id: str
    source: str
    action: str  # keep | drop | edit | error
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    matched_id: str | None = None
    detail: str | None = None
    text: str = ""


def sample_stage(
    storage: Storage, record: RunRecord, stage: str, reason: str | None = None, count: int = DEFAULT_COUNT
) -> list[Sample]:
    """`count` documents of a stage: with a reason, those it dropped or edited so; without, those it kept.

    Raises ConfigError when the run has no such stage, it holds no documents, or it never gave the reason.
    """
    lines = record.datasets_of(stage)
    if not lines:
        done = ", ".join(dict.fromkeys(line.stage for line in record.datasets))
        raise ConfigError(f"run {record.run_id} has no dataset of stage {stage!r}; it has: {done}")
    manifest = load_manifest(storage, lines[0].reference)
    if "text" not in {column["name"] for column in manifest.schema}:
        raise ConfigError(f"stage {stage} holds no documents; those that do: {', '.join(_document_stages(record))}")
    if reason is None:
        return _kept(storage, manifest, count)
    if reason not in manifest.reasons:
        raise ConfigError(f"stage {stage} never gave the reason {reason!r}; its reasons: {_reasons(manifest)}")
    return sample_reasons(storage, manifest, [reason], count)


def _kept(storage: Storage, manifest: Manifest, count: int) -> list[Sample]:
    best: list[tuple[int, Part, str]] = []
    for part in manifest.parts:
        ids = [name for table in read_part(storage, part, ["doc_id"]) for name in table["doc_id"].to_pylist()]
        best = sorted([*best, *((rank_of(name), part, name) for name in ids)], key=lambda entry: entry[0])[:count]
    texts = read_texts(storage, [(part, name) for _, part, name in best])
    return [Sample(doc_id=name, source=part.source or "", action="keep", text=texts[name]) for _, part, name in best]


def sample_reasons(storage: Storage, manifest: Manifest, reasons: list[str], count: int) -> list[Sample]:
    """`count` documents that a stage dropped or edited for each reason; the ledgers are read once."""
    before = _input_parts(storage, manifest)
    best: dict[str, list[tuple[int, Part | None, dict[str, Any]]]] = {reason: [] for reason in reasons}
    for index, part in enumerate(manifest.parts):
        ledger = read_ledger(storage, part)
        origin = before[index] if index < len(before) else None
        for reason in reasons:
            rows = ledger.filter(pc.equal(ledger["reason"], reason)).to_pylist()
            found = [(rank_of(row["doc_id"]), part if row["action"] == "edit" else origin, row) for row in rows]
            best[reason] = sorted([*best[reason], *found], key=lambda entry: entry[0])[:count]
    chosen = [entry for reason in reasons for entry in best[reason]]
    texts = read_texts(storage, [(part, row["doc_id"]) for _, part, row in chosen if part is not None])
    return [Sample(**row, text=texts.get(row["doc_id"], "")) for _, _, row in chosen]


def _input_parts(storage: Storage, manifest: Manifest) -> list[Part]:
    """The parts of the documents that the stage read, 1:1 with its own; none for ingest."""
    for entry in manifest.inputs:
        if entry["role"] == "documents":
            return load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}").parts
    return []


def read_texts(storage: Storage, wanted: list[tuple[Part, str]]) -> dict[str, str]:
    """Beginning of the texts of documents, by id."""
    by_part: dict[Part, list[str]] = {}
    for part, name in wanted:
        by_part.setdefault(part, []).append(name)
    texts: dict[str, str] = {}
    for part, names in by_part.items():
        for table in read_part(storage, part, ["doc_id", "text"]):
            found = table.filter(pc.is_in(table["doc_id"], pa.array(names)))
            cut = pc.utf8_slice_codeunits(found["text"], 0, EXCERPT_CHARS)
            texts.update(zip(found["doc_id"].to_pylist(), cut.to_pylist(), strict=True))
    return {name: texts.get(name, "") for _, name in wanted}


def rank_of(doc_id: str) -> int:
    """A place in an order that nobody chose."""
    return xxhash.xxh3_64_intdigest(doc_id.encode())


def _document_stages(record: RunRecord) -> list[str]:
    """The stages of a run whose rows are documents."""
    return [stage for stage in DOCUMENT_STAGES if record.datasets_of(stage)]


def _reasons(manifest: Manifest) -> str:
    return ", ".join(f"{name} ({number})" for name, number in manifest.reasons.items()) or "none"
