"""JSONL, plain lines and Parquet to records: declared columns, everything else into meta.

Positions: the byte offset of the line in the uncompressed stream; the row number in a Parquet file.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.charset import Decoded, decode_bytes, wide_charset
from tasks.ingest.records import Outcome, Outcomes, Record, Rejected, Skipped, note_decoding
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import Damage, Pieces

BATCH_BYTES = 16 << 20  # of a row group, decoded at once
BATCH_ROWS = 1_024
SHOWN_BYTES = 120  # of a bad line, in its ledger row
MISSING = object()


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `data` is None where it was too long to hold. `closed`: a line feed ended it; `damage`: what cut it."""

    offset: int
    data: bytes | None
    size: int
    closed: bool = True
    damage: Damage | None = None


def read_lines(pieces: Pieces, start: int, end: int | None, limit_bytes: int) -> Iterator[Line]:
    """The lines that begin in [start, end) of a stream; for start > 0 its pieces begin one byte earlier.

    A damage is one line, which holds what it cut off; behind it reading goes on as at a new line.
    """
    offset, size, skipping = max(0, start - 1), 0, start > 0
    held: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, Damage):
            yield Line(offset, None, size, damage=piece)
            offset, size, held = offset + size, 0, []
            continue
        *whole, rest = piece.data.split(b"\n")
        for data in whole:
            size += len(data)
            if not skipping:
                yield Line(offset, _joined([*held, data], size, limit_bytes), size)
            offset, size, held, skipping = offset + size + 1, 0, [], False
            if end is not None and offset >= end:
                return
        size += len(rest)
        if skipping and end is not None and offset + size >= end:
            return  # one line covers the whole range
        held = [*held, rest] if size <= limit_bytes else []  # of a line that is too long only the size is kept
    if size and not skipping:
        yield Line(offset, _joined(held, size, limit_bytes), size, closed=False)


def _joined(pieces: list[bytes], size: int, limit_bytes: int) -> bytes | None:
    return b"".join(pieces) if size <= limit_bytes else None


def wide_lines(charset: str) -> Rejected:
    """A file of lines in UTF-16 or UTF-32; none of them is read."""
    name = charset.upper()
    error = f"{name}: lines must be UTF-8; convert the file with: iconv -f {name[:-3]}{name[-2:]} -t UTF-8"
    return Rejected("0:damage", "wide_charset", {"charset": charset, "error": error})


def outcomes_of_lines(lines: Iterator[Line], config: SourceConfig, *, is_json: bool) -> Outcomes:
    """Records of JSONL, or one record per plain line."""
    for line in lines:
        position = str(line.offset)
        if line.damage:
            yield damaged(position, line.damage)
        elif line.data is None:
            yield Rejected(position, "too_large", value=line.size, threshold=config.max_record_bytes)
        else:
            data = line.data
            if line.offset == 0:
                if charset := wide_charset(data):
                    yield wide_lines(charset)
                    return
                data = data.removeprefix(BOM_UTF8)
            if not data.strip():
                yield Skipped("blank_line")
            else:
                yield parse_json(data, position, config, line.closed) if is_json else plain_record(data, position)


def damaged(position: str, damage: Damage) -> Rejected:
    """The row of a damage; its position is that of no record."""
    detail = {"member": damage.member, "error": damage.error}
    return Rejected(f"{position}:damage@{damage.member}", damage.reason, detail)


def plain_record(data: bytes, position: str) -> Record:
    """One line of text."""
    decoded = decode_bytes(data.removesuffix(b"\r"))
    record = Record(position, decoded.text)
    note_decoding(record, decoded)
    return record


def parse_json(data: bytes, position: str, config: SourceConfig, closed: bool = True) -> Record | Rejected:
    """The record of one JSON line. orjson first; what it refuses (NaN, lone surrogates) is tried with json."""
    decoded = None
    try:
        row = orjson.loads(data)
    except orjson.JSONDecodeError:
        decoded = decode_bytes(data)
        try:
            row = json.loads(decoded.text, strict=False, parse_constant=str)
        except (ValueError, RecursionError) as error:
            detail = {
                "error": str(error)[:200],
                "bytes": len(data),
                "line": data[:SHOWN_BYTES].decode("utf-8", "replace"),
            }
            return Rejected(position, "invalid_json" if closed else "truncated", detail)
    if not isinstance(row, dict):
        return Rejected(position, "not_object", {"type": type(row).__name__})
    return record_of(row, position, config, decoded)


def record_of(
    row: dict[str, Any], position: str, config: SourceConfig, decoded: Decoded | None = None
) -> Record | Rejected:
    """A record from named values; `row` becomes its meta."""
    text = _take(row, config.text_key)
    if text is MISSING:
        return Rejected(position, "missing_text", {"key": config.text_key, "keys": sorted(row)[:20]})
    if text is None:
        return Rejected(position, "empty", {"text": None})
    if isinstance(text, bytes):
        decoded = decode_bytes(text)
        text = decoded.text
    if not isinstance(text, str):
        return Rejected(position, "wrong_type", {"key": config.text_key, "type": type(text).__name__})
    record = Record(position, text, meta=row)
    record.url = _column(record, config.url_key)
    record.timestamp = _column(record, config.timestamp_key)
    if config.id_key in row and "id" not in row:
        row["id"] = row.pop(config.id_key)
    if decoded:
        note_decoding(record, decoded)
    return record


def _take(row: dict[str, Any], key: str) -> Any:
    """Take a value out of a row; with a dotted key, read it inside (it stays there). MISSING where there is none."""
    if key in row:
        return row.pop(key)
    found: Any = row
    for step in key.split("."):
        if not isinstance(found, dict) or step not in found:
            return MISSING
        found = found[step]
    return found


def _column(record: Record, key: str) -> str | None:
    """A text column: numbers and dates become text; what is no text stays in meta, and that is noted."""
    value = _take(record.meta, key)
    if value is MISSING or value is None or value == "":
        return None
    text = _as_text(value)
    if text is None:
        record.meta.setdefault(key, value)
        record.edits["column_type"] = record.edits.get("column_type", 0) + 1
    return text


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, date):  # datetime is one
        return value.isoformat()
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_parquet(file: BinaryIO, start: int, end: int | None, config: SourceConfig) -> Outcomes:
    """Rows of the row groups whose first byte lies in [start, end)."""
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        if start == 0:
            yield Rejected("0:damage", "corrupt_file", {"error": str(error)[:300]})
        return
    row = 0
    for index in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(index)
        if start <= _first_byte(group) and (end is None or _first_byte(group) < end):
            yield from _row_group(parquet, index, row, config)
        row += group.num_rows


def _first_byte(group: Any) -> int:
    """Where a row group begins in its file; a table without columns has none."""
    columns = [group.column(index) for index in range(group.num_columns)]
    return min((c.dictionary_page_offset or c.data_page_offset for c in columns), default=0)


def _row_group(parquet: Any, index: int, row: int, config: SourceConfig) -> Outcomes:
    group = parquet.metadata.row_group(index)
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
    last = row + group.num_rows
    try:
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[index], use_threads=False):
            for values in _rows(batch):
                yield _parquet_record(values, str(row), config)
                row += 1
    except (pa.ArrowException, OSError) as error:
        yield Rejected(f"{row}:damage", "corrupt_file", {"error": str(error)[:300], "rows": last - row})


def _parquet_record(values: dict[str, Any], position: str, config: SourceConfig) -> Outcome:
    record = record_of(values, position, config)
    if isinstance(record, Record) and len(record.text) > config.max_record_bytes:
        return Rejected(position, "too_large", value=len(record.text), threshold=config.max_record_bytes)
    return record


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The batch as Python values; text that is not UTF-8 comes as bytes."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        columns = [
            column.cast(pa.large_binary()) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            else column
            for column in batch.columns
        ]  # fmt: skip
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows
