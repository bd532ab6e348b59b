"""Which of several alike documents is kept, and how the decisions reach the parts.

Keeper order, a total order: documents of an index, then of protected sources (both are never dropped), then source
priority (higher first), length in bytes (longer first), date (later first; without
a readable date last), doc_id. Partition tasks write verdicts (a document that goes, the one kept instead) sorted by the
number of the document part; each document part then gets its slice of them as a part of its own, so that an output part
is computed again only when its documents or its slice changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.exchange import rows_between
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, documents_of, read_part

PAIRS = "pairs"  # in the manifest of near dedup: reference of the dataset of its verdicts
UNDATED = np.iinfo(np.int64).min
INDEX_PRIORITY = np.iinfo(np.int64).max  # of documents that are there already
KEPT = "kept"  # reason of a verdict on a document that stays, with its number of documents: itself and those for it
PROTECTED_PRIORITY = INDEX_PRIORITY - 1  # from here on a document is never dropped

DECISION_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("matched_id", pa.string(), nullable=False),  # the document kept instead
        pa.field("value", pa.float64()),  # true Jaccard, where there is one
    ]
)
VERDICT_SCHEMA = pa.schema([pa.field("part", pa.int32(), nullable=False), *DECISION_SCHEMA])
KEEPER_FIELDS = [
    pa.field("doc_id", pa.string(), nullable=False),
    pa.field("part", pa.int32(), nullable=False),  # number of the document part, to send the verdict to
    pa.field("priority", pa.int64(), nullable=False),
    pa.field("length", pa.int64(), nullable=False),  # UTF-8 bytes of the text
    pa.field("date", pa.int64(), nullable=False),  # microseconds since 1970, UTC
]
KEEPER_ORDER = [("priority", "descending"), ("length", "descending"), ("date", "descending"), ("doc_id", "ascending")]


def dates_of(timestamps: pa.ChunkedArray) -> np.ndarray:
    """ISO 8601 timestamps as microseconds since 1970 UTC, int64; a missing or unreadable one as UNDATED."""
    return np.array([_microseconds(value) for value in timestamps.to_pylist()], np.int64)


def _microseconds(timestamp: str | None) -> int:
    if not timestamp:
        return int(UNDATED)
    try:
        parsed = datetime.fromisoformat(timestamp.strip())
    except ValueError:
        return int(UNDATED)
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    seconds = aware.replace(microsecond=0).timestamp()
    return int(seconds) * 1_000_000 + aware.microsecond


def lengths_of(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """UTF-8 bytes of each text, int64."""
    return pc.binary_length(texts.cast(pa.large_binary())).cast(pa.int64())


def priorities_of(documents: Manifest, given: Mapping[str, int], protected: Sequence[str]) -> dict[str, int]:
    """The priority of each source's documents; 0 where none is given."""
    highest = PROTECTED_PRIORITY - 1
    own = {source: min(given.get(source, 0), highest) for source in documents.sources}
    return own | {source: PROTECTED_PRIORITY for source in documents.sources if source in protected}


def decide_by_part(dataset: Dataset, name: str, documents: Manifest, verdicts: Mapping[str, Manifest]) -> Manifest:
    """A step with one part per document part: its slice of the verdicts."""
    step = dataset.step(name, DECISION_SCHEMA, inputs={"documents": documents, **verdicts}, config=None)
    if found := step.find():
        return found
    inputs = tuple(part for manifest in verdicts.values() for part in manifest.parts)
    units = [
        step.unit(inputs, source=part.source, arguments={"part": number}) for number, part in enumerate(documents.parts)
    ]
    return step.publish(step.compute(units, slice_verdicts))


def slice_verdicts(unit: Unit, writer: PartWriter) -> None:
    """Part function: what goes of one document part, sorted by doc_id. Reads only row groups that can hold some."""
    number = int(unit.arguments["part"])
    found = [table for part in unit.inputs for table in rows_between(unit.storage, part, number, number + 1)]
    if found:
        table = pa.concat_tables(found)
        is_own = pc.and_(pc.equal(table["part"], number), pc.not_equal(table["reason"], KEPT))
        writer.write(table.filter(is_own).select(DECISION_SCHEMA.names).sort_by("doc_id"))


def write_verdicts(writer: PartWriter, verdicts: pa.Table) -> None:
    """Write verdicts sorted by document part, so that row groups hold ranges of parts."""
    if verdicts.num_rows:
        writer.write(verdicts.select(VERDICT_SCHEMA.names).sort_by([("part", "ascending"), ("doc_id", "ascending")]))


def apply_by_part(dataset: Dataset, documents: Manifest, decisions: Manifest, **arguments: object) -> list[Receipt]:
    """The stage's own parts: documents without those that a decision drops."""
    units = [
        dataset.unit((part, decision), source=part.source, arguments=arguments)
        for part, decision in zip(documents.parts, decisions.parts, strict=True)
    ]
    return dataset.compute(units, apply_decisions)


def apply_decisions(unit: Unit, writer: PartWriter) -> None:
    """Part function: (documents, decisions) -> documents that stay; the ledger names what goes and the one kept."""
    for table, _ in documents_that_stay(unit, writer):
        writer.write(table)


def documents_that_stay(unit: Unit, writer: PartWriter) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """(documents, their rows in the part) of an input part (documents, decisions, ...), row group by row group."""
    decisions = {row["doc_id"]: row for table in read_part(unit.storage, unit.inputs[1]) for row in table.to_pylist()}
    threshold, base = unit.arguments.get("threshold"), 0
    for table in documents_of(unit, writer):
        doc_ids = table["doc_id"].to_pylist()
        stays = [doc_id not in decisions for doc_id in doc_ids]
        for doc_id, source, stay in zip(doc_ids, table["source"].to_pylist(), stays, strict=True):
            if not stay:
                row = decisions.pop(doc_id)
                value = row["value"]
                limit = None if value is None else threshold
                writer.ledger.drop(
                    doc_id, source, row["reason"], value=value, threshold=limit, matched_id=row["matched_id"]
                )
        yield table if all(stays) else table.filter(pa.array(stays)), base + np.flatnonzero(stays)
        base += table.num_rows
    if decisions:
        raise DataError(f"{unit.stage}: part {unit.key} lacks documents that decisions name: {sorted(decisions)[:3]}")
