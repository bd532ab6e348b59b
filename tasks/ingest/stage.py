"""Raw files to documents: one part per unit of a source; what cannot be read goes to the ledger with its place.

Reads: the files of every source (sources.py), cut into units (units.py).
Writes: documents (doc_id, source, text, url, timestamp, raw_ref, meta) and a ledger of errors and repairs.
Invariant, per part: records read = documents + errors + skipped (by kind).
"""

import logging
from typing import get_args

import pyarrow as pa
from pydantic import BaseModel, Field

from tasks.dataset import Dataset, Workspace
from tasks.documents import DOCUMENT_SCHEMA, document_id, meta_json
from tasks.errors import DataError
from tasks.ingest.charset import wide_charset
from tasks.ingest.extract import shared_extractor
from tasks.ingest.mediawiki import read_mediawiki
from tasks.ingest.pages import read_file
from tasks.ingest.records import (
    EditReason,
    ErrorReason,
    Outcome,
    Outcomes,
    Record,
    Rejected,
    Skipped,
    sound,
    sound_meta,
)
from tasks.ingest.sources import IngestConfig, InputFile, InputFiles, SourceConfig, check_unchanged, format_of
from tasks.ingest.streams import read_pieces
from tasks.ingest.tabular import outcomes_of_lines, read_lines, read_parquet
from tasks.ingest.units import Range, cut_units
from tasks.ingest.warc import read_warc
from tasks.manifest import Manifest
from tasks.parts import ROW_GROUP_BYTES, PartWriter, Unit
from tasks.storage import Storage

logger = logging.getLogger(__name__)

RESULT_PACKAGES = ("pyarrow", "orjson", "fastwarc", "zstandard")

REASONS = frozenset(get_args(ErrorReason) + get_args(EditReason))
DAMAGES = frozenset({"truncated", "corrupt_member", "corrupt_record", "corrupt_file", "wide_charset"})


class PartConfig(BaseModel, frozen=True, extra="forbid"):
    """What a worker needs to read a unit; where the files lie and when they changed is no part of the key."""

    source: SourceConfig
    place: str = Field(exclude=True)
    modified: tuple[float, ...] = Field(exclude=True)


def ingest_sources(files: InputFiles, *, into: Workspace, config: IngestConfig) -> Manifest:
    """Documents of all sources, source by source in the recipe's order, from the files that `list_inputs` found.

    Raises DataError when a file is no longer what was listed, or is damaged where the source says `on_damage: fail`.
    """
    dataset = into.dataset(
        "ingest", config.reading(), inputs={}, module=__name__, schema=DOCUMENT_SCHEMA,
        conservation="records", reasons=REASONS, external=files.identity(config.sources),
    )  # fmt: skip
    if found := dataset.find():
        return found
    with dataset.lease():
        units, places = [], []
        for name, source in config.sources.items():
            for ranges in cut_units(files.sources[name], source, config.part_bytes):
                units.append(_unit(dataset, name, source, ranges))
                first, last = ranges[0], ranges[-1]
                places.append([first.file.key, last.file.key, first.start, last.end])
        receipts = dataset.compute(units, ingest_part)
        # why a document went missing is looked up by its file: [first key, last key, first byte, end] of each part
        return dataset.publish(receipts, extra={"places": places})


def _unit(dataset: Dataset, name: str, source: SourceConfig, ranges: list[Range]) -> Unit:
    modified = tuple(piece.file.modified for piece in ranges)
    config = PartConfig(source=source.reading(), place=source.storage(dataset.storage).url, modified=modified)
    files = [[r.file.key, r.file.size, r.file.etag, r.file.sha256, r.start, r.end] for r in ranges]
    return dataset.unit(
        source=name, config=config, arguments={"files": files, "bytes": sum(piece.size for piece in ranges)}
    )


def ingest_part(unit: Unit, writer: PartWriter) -> None:
    """Read the ranges of one unit."""
    config = unit.config
    if not isinstance(config, PartConfig) or unit.source is None:
        raise TypeError("a unit of ingest has a PartConfig and a source")
    place = Storage(config.place)
    documents = Documents(unit.source, writer)
    for (key, size, etag, sha256, start, end), modified in zip(unit.arguments["files"], config.modified, strict=True):
        check_unchanged(InputFile(key=key, size=size, etag=etag, sha256=sha256, modified=modified), place)
        writer.bytes_in += (size if end is None else end) - start
        for outcome in read_range(place, key, start, end, config.source):
            if config.source.on_damage == "fail" and isinstance(outcome, Rejected) and outcome.reason in DAMAGES:
                raise DataError(
                    f"{place.url}: {key}#{outcome.position} is damaged ({outcome.reason}): {outcome.detail}"
                )
            documents.add(key, outcome)
    documents.flush()


def read_range(place: Storage, key: str, start: int, end: int | None, config: SourceConfig) -> Outcomes:
    """Every record of a file that begins in [start, end)."""
    kind = format_of(key, config)
    with place.open_input(key) as file:
        if kind == "parquet":
            yield from read_parquet(file, start, end, config)
        elif kind in ("jsonl", "lines"):
            if start and wide_charset(file.read(4)):
                return  # said where the file begins
            # one byte earlier: a line begins at `start` only where a line feed stands before it
            pieces = read_pieces(file, max(0, start - 1))
            lines = read_lines(pieces, start, end, config.max_record_bytes)
            yield from outcomes_of_lines(lines, config, is_json=kind == "jsonl")
        elif kind == "mediawiki":
            yield from read_mediawiki(file, start, end, config)
        elif kind in ("warc", "wet"):
            yield from read_warc(file, start, end, config, shared_extractor())
        else:
            yield from read_file(read_pieces(file), config, shared_extractor() if kind == "html" else None)


class Documents:
    """Collects outcomes into row groups of documents, ledger rows and counts."""

    def __init__(self, source: str, writer: PartWriter) -> None:
        self.source = source
        self.writer = writer
        self._rows: list[tuple[str, str, str, str | None, str | None, str, str]] = []
        self._bytes = 0

    def add(self, key: str, outcome: Outcome) -> None:
        """Count one record of the file `key`, and keep it or say why not."""
        self.writer.rows_in += 1
        if isinstance(outcome, Record):
            outcome = sound(outcome)
        if isinstance(outcome, Skipped):
            self.writer.skipped[outcome.kind] += 1
        elif isinstance(outcome, Rejected):
            self._reject(key, outcome)
        else:
            self._keep(key, outcome)

    def _reject(self, key: str, rejected: Rejected) -> None:
        raw_ref = f"{key}#{rejected.position}"
        detail = sound_meta({"raw_ref": raw_ref, **rejected.detail})
        self.writer.ledger.error(
            document_id(self.source, raw_ref), self.source, rejected.reason,
            value=rejected.value, threshold=rejected.threshold, detail=detail,
        )  # fmt: skip
        self.writer.not_reproducible |= rejected.reason in ("timeout", "extractor_crashed")

    def _keep(self, key: str, record: Record) -> None:
        raw_ref = f"{key}#{record.position}"
        doc_id = document_id(self.source, raw_ref)
        for reason, count in record.edits.items():
            self.writer.ledger.edit(doc_id, self.source, reason, value=count)
        size = len(record.text.encode("utf-8"))
        if self._rows and self._bytes + size > ROW_GROUP_BYTES:
            self.flush()
        meta = meta_json(sound_meta(record.meta))
        self._rows.append((doc_id, self.source, record.text, record.url, record.timestamp, raw_ref, meta))
        self._bytes += size

    def flush(self) -> None:
        """Write the rows held."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, DOCUMENT_SCHEMA, strict=True)]
            self.writer.write(pa.Table.from_arrays(arrays, schema=DOCUMENT_SCHEMA))
        self._rows, self._bytes = [], 0
