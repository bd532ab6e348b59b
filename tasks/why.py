"""The story of one document: what each stage of a run did with it, down to the raw record (`basemill why`).

Document stages keep parts 1:1 with their input, so once a document's part is found in ingest, one part per stage tells
the rest: its ledger (sorted by doc_id) names drops and edits with value, threshold and the document kept instead.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from tasks.documents import source_of
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, read_ledger, read_part
from tasks.runs import RunRecord, find_record
from tasks.splits import whole_source
from tasks.storage import Storage

DOCUMENT_STAGES = ("dedup-exact", "select", "dedup-near", "redact", "decontaminate")  # those that drop and edit
EXCERPT_CHARS = 300
NAME_CHARS = 200  # of what was asked for, in an error


class Fact(BaseModel, frozen=True):
    """What one stage did. `verdict`: read | kept | edited | dropped | unreadable | measured | placed."""

    stage: str
    verdict: str
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    matched_id: str | None = None
    detail: dict[str, Any] = {}


class Story(BaseModel, frozen=True):
    """A document's way through a run, in the order of the stages."""

    doc_id: str
    source: str
    run_id: str
    url: str | None
    raw_ref: str
    excerpt: str
    facts: list[Fact]

    @property
    def is_kept(self) -> bool:
        """Whether it is in the training data or the held-out text."""
        return not any(fact.verdict in ("dropped", "unreadable") for fact in self.facts)


def tell_story(storage: Storage, record: RunRecord, document: str) -> Story:
    """The story of a document, named by its doc_id or its URL.

    Raises ConfigError when the run has no such document; lists the ids when several have this URL.
    """
    ingest = _dataset(storage, record, "ingest")
    forks = [load_manifest(storage, line.reference) for line in record.datasets_of("fork")]
    try:
        if ingest is None:
            raise ConfigError(f"run {record.run_id} has no documents yet")
        doc_id = document if "://" not in document else _id_of_url(storage, ingest, document)
        index, row = _find(storage, ingest, doc_id)
    except ConfigError:
        if not forks:
            raise
        return tell_story(storage, find_record(storage, forks[0].extra["run"]), document)  # what its weights have read
    facts = [] if row is None else [Fact(stage="ingest", verdict="read", detail=json.loads(row["meta"]))]
    if row is None:
        facts = list(_decisions(storage, ingest, ingest.parts[index], doc_id))
        row = {"url": None, "raw_ref": str(facts[0].detail.get("raw_ref", "")), "text": ""}
    else:
        facts += _later_facts(storage, record, index, doc_id)
        facts += [fact for fork in forks for fact in _read_before(storage, record, fork, doc_id)]
    return Story(
        doc_id=doc_id,
        source=source_of(doc_id),
        run_id=record.run_id,
        url=row["url"],
        raw_ref=row["raw_ref"],
        excerpt=row["text"][:EXCERPT_CHARS],
        facts=facts,
    )


def _later_facts(storage: Storage, record: RunRecord, index: int, doc_id: str) -> Iterator[Fact]:
    """What the stages after ingest did, until the one that dropped it."""
    for stage in ("dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate", "mix"):
        manifest = _dataset(storage, record, stage)
        if manifest is None:
            return
        part = manifest.parts[index]
        if stage in DOCUMENT_STAGES:
            found = list(_decisions(storage, manifest, part, doc_id))
            yield from found or [Fact(stage=stage, verdict="kept")]
            if any(fact.verdict in ("dropped", "unreadable") for fact in found):
                return
        else:
            yield _row_fact(storage, stage, part, doc_id)
    yield from _placements(storage, record, doc_id)


def _decisions(storage: Storage, manifest: Manifest, part: Part, doc_id: str) -> Iterator[Fact]:
    verdicts = {"drop": "dropped", "edit": "edited", "error": "unreadable"}
    ledger = read_ledger(storage, part)
    for row in ledger.filter(pc.equal(ledger["doc_id"], doc_id)).to_pylist():
        yield Fact(
            stage=manifest.stage,
            verdict=verdicts[row["action"]],
            reason=row["reason"],
            value=row["value"],
            threshold=row["threshold"],
            matched_id=row["matched_id"],
            detail=json.loads(row["detail"]) if row["detail"] else {},
        )


def _row_fact(storage: Storage, stage: str, part: Part, doc_id: str) -> Fact:
    """The row that signals or mix hold of the document."""
    row = _row(storage, part, doc_id)
    if row is None:
        raise DataError(f"{part.path} has no row of {doc_id}: the stages before it kept it")
    facts = {name: value for name, value in row.items() if name not in ("doc_id", "source") and value is not None}
    return Fact(stage=stage, verdict="measured" if stage == "signals" else "placed", detail=facts)


def _placements(storage: Storage, record: RunRecord, doc_id: str) -> Iterator[Fact]:
    """The packed rows that hold the document."""
    for line in record.datasets_of("pack"):
        yield from _placement(storage, line.reference, line.label, doc_id)


def _read_before(storage: Storage, record: RunRecord, fork: Manifest, doc_id: str) -> Iterator[Fact]:
    """The rows that hold it in packs which the run that was forked was trained on, and this one was not."""
    own = {line.reference for line in record.datasets_of("pack")}
    for entry in fork.inputs:
        reference = f"{entry['stage']}/{entry['fingerprint']}"
        if entry["stage"] == "pack" and reference not in own:
            yield from _placement(storage, reference, f"{entry['role']} of run {fork.extra['run']}", doc_id)


def _placement(storage: Storage, reference: str, label: str, doc_id: str) -> Iterator[Fact]:
    rows = []
    for part in load_manifest(storage, reference).parts:
        if whole_source(part.source or "") == source_of(doc_id):
            rows += [{"part": part.key, "row": row} for row in _rows_holding(storage, part, doc_id)]
    if rows:
        yield Fact(stage="pack", verdict="placed", reason=label, value=len(rows), detail={"rows": rows[:20]})


def _rows_holding(storage: Storage, part: Part, doc_id: str) -> list[int]:
    found, start = [], 0
    for table in read_part(storage, part, ["doc_ids"]):
        names = table["doc_ids"].combine_chunks()
        parents = pc.list_parent_indices(names).filter(pc.equal(names.flatten(), doc_id))
        found += [start + row for row in dict.fromkeys(parents.to_pylist())]
        start += table.num_rows
    return found


def _dataset(storage: Storage, record: RunRecord, stage: str) -> Manifest | None:
    lines = record.datasets_of(stage)
    return load_manifest(storage, lines[0].reference) if lines else None


def _find(storage: Storage, ingest: Manifest, doc_id: str) -> tuple[int, dict[str, Any] | None]:
    """Index of the ingest part, and the document's row; no row when ingest could not read the record."""
    candidates = [(i, part) for i, part in enumerate(ingest.parts) if part.source == source_of(doc_id)]
    for index, part in candidates:
        if any(pc.any(pc.equal(table["doc_id"], doc_id)).as_py() for table in read_part(storage, part, ["doc_id"])):
            return index, _row(storage, part, doc_id)
    for index, part in candidates:
        if doc_id in read_ledger(storage, part)["doc_id"].to_pylist():
            return index, None
    sources = ", ".join(ingest.sources)
    raise ConfigError(f"document {doc_id[:NAME_CHARS]!r}: not in this run ({ingest.reference}; sources: {sources})")


def _row(storage: Storage, part: Part, doc_id: str) -> dict[str, Any] | None:
    for table in read_part(storage, part):
        found: pa.Table = table.filter(pc.equal(table["doc_id"], doc_id))
        if found.num_rows:
            row: dict[str, Any] = found.to_pylist()[0]
            return row
    return None


def _id_of_url(storage: Storage, ingest: Manifest, url: str) -> str:
    ids = []
    for part in ingest.parts:
        for table in read_part(storage, part, ["doc_id", "url"]):
            ids += table.filter(pc.equal(table["url"], url))["doc_id"].to_pylist()
    if not ids:
        raise ConfigError(f"URL {url[:NAME_CHARS]!r}: no document of this run has it")
    if len(ids) > 1:
        raise ConfigError(
            f"URL {url[:NAME_CHARS]!r}: {len(ids)} documents have it; give one of their ids: {', '.join(ids[:10])}"
        )
    return str(ids[0])
