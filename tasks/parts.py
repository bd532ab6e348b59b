"""One part: its key, the worker's side of computing it, and the receipt that makes it exist.

    <stage>/parts/<key>.parquet          rows (no file when there are none)
    <stage>/parts/<key>.ledger.parquet   what was dropped, edited or unreadable (no file when nothing was)
    <stage>/parts/<key>.json             the receipt, written last: the part exists if and only if this file does

A part function is undecorated, module level, `(unit, writer) -> None`; it reads `unit.inputs`, writes tables and ledger
rows, and returns. The key is a hash of everything that decides the result, so a finished part is found by any run.
"""

import hashlib
import io
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from tasks.codedigest import code_digest
from tasks.config import fingerprint_of, resolved
from tasks.digest import file_digest, table_digest
from tasks.documents import split_rows, text_bytes
from tasks.errors import DataError
from tasks.ledger import LEDGER_SCHEMA, Ledger
from tasks.storage import Storage, sha256_of

FORMAT_VERSION = 1
KEY_HEX_DIGITS = 32
ROW_GROUP_BYTES = 8 << 20  # text per row group: what a worker holds at once; never depends on workers or memory
COMPRESSION = {"compression": "zstd", "compression_level": 2}  # 1.5 times as fast as 3, files 5 to 10 % larger
REPEATING = ["source", "action", "reason", "split", "language"]  # columns worth a dictionary

Conservation = Literal["documents", "rows", "records", "none"]


@dataclass(frozen=True)
class Part:
    """A finished part of a dataset; `stage` is the folder it lies in, `bytes` the size of its file."""

    stage: str
    key: str
    rows: int | None
    bytes: int
    sha256: str
    digest: str
    source: str | None

    @property
    def path(self) -> str:
        """Key of the Parquet file in the storage."""
        return f"{self.stage}/parts/{self.key}.parquet"

    @property
    def ledger_path(self) -> str:
        """Key of the ledger file in the storage (absent when nothing was dropped, edited or unreadable)."""
        return f"{self.stage}/parts/{self.key}.ledger.parquet"

    @property
    def receipt_path(self) -> str:
        """Key of the receipt in the storage."""
        return f"{self.stage}/parts/{self.key}.json"


@dataclass(frozen=True)
class Unit:
    """The work that makes one part: everything a worker needs, and everything that decides the key."""

    storage: Storage
    stage: str
    source: str | None
    inputs: tuple[Part, ...]
    config: BaseModel | None
    arguments: dict[str, Any]
    module: str
    code: str
    schema: pa.Schema
    conservation: Conservation = "none"
    reasons: frozenset[str] | None = None
    generation: int = 0

    @property
    def key(self) -> str:
        """32 hex digits over what decides the result; input parts count by their content."""
        identity: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "stage": self.stage,
            "source": self.source,
            "config": resolved(self.config),
            "code": self.code,
            "inputs": [[part.source, part.digest] for part in self.inputs],
            "arguments": self.arguments,
        }
        if self.generation:
            identity["generation"] = self.generation
        return fingerprint_of(identity)[:KEY_HEX_DIGITS]

    @property
    def input_bytes(self) -> int:
        """Bytes of the input files: the measure of a unit's size."""
        return sum(part.bytes for part in self.inputs) or int(self.arguments.get("bytes", 0))


@dataclass(frozen=True)
class Receipt:
    """What is known of a finished part. `seconds`, `cpu_seconds` and `peak_memory_bytes` (of the process) are not part
    of any key or digest."""

    part: Part
    counts: dict[str, int]  # rows_in, rows_out, dropped, edited, errors, skipped, bytes_in, bytes_out
    reasons: dict[str, int]
    skipped: dict[str, int]
    ledger_sha256: str
    inputs: list[str]
    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    not_reproducible: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Canonical bytes of the receipt file."""
        value = {"format_version": FORMAT_VERSION, **asdict(self)}
        value |= value.pop("part")
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes) -> "Receipt":
        """Parse a receipt file. Raises DataError on another format."""
        value = orjson.loads(data)
        if value.pop("format_version", None) != FORMAT_VERSION:
            raise DataError(f"a receipt has another format than {FORMAT_VERSION}: remove it to compute the part again")
        part = Part(**{name: value.pop(name) for name in Part.__dataclass_fields__})
        return cls(part=part, **value)


class PartWriter:
    """Collects one part and publishes it. Part functions use `write`, `ledger`, `skipped` and `extra`."""

    def __init__(self, unit: Unit, scratch: Path) -> None:
        self.unit = unit
        self.storage = unit.storage
        self.ledger = Ledger(unit.reasons)
        self.rows_in = 0
        self.bytes_in = 0
        self.skipped: Counter[str] = Counter()
        self.extra: dict[str, Any] = {}
        self.not_reproducible = False
        self._rows = 0
        self._bytes_out = 0
        self._scratch = scratch
        self._file: pq.ParquetWriter | None = None
        self._started = (time.monotonic(), time.process_time())

    def write(self, table: pa.Table) -> None:
        """Append rows, cut into row groups of about ROW_GROUP_BYTES of text."""
        for piece in split_rows(table, ROW_GROUP_BYTES):
            self.write_row_group(piece)

    def write_row_group(self, table: pa.Table) -> None:
        """Append rows as exactly one row group. Raises DataError when the columns are not those of the schema."""
        wanted = self.unit.schema
        if table.schema.names != wanted.names:
            raise DataError(
                f"{self.unit.stage}: part {self.unit.key} has columns {table.schema.names}, not {wanted.names}"
            )
        if table.num_rows == 0:
            return
        table = _cast(table, self.unit)
        if self._file is None:
            dictionary = [name for name in wanted.names if name in REPEATING]
            self._file = pq.ParquetWriter(
                self._scratch / "part", wanted, use_dictionary=dictionary, write_page_checksum=True, **_codecs(wanted)
            )
        self._file.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        self._bytes_out += text_bytes(table)

    def add_footer(self, values: dict[str, str]) -> None:
        """Key-value metadata into the Parquet footer (no part of the digest)."""
        if self._file is not None:
            self._file.add_key_value_metadata(values)

    def finish(self) -> Receipt:
        """Check conservation, publish rows and ledger, write the receipt last."""
        counts = self._counts()
        check_conservation(f"{self.unit.stage}: part {self.unit.key}", counts, self.unit.conservation)
        part = self._publish_rows()
        ledger_sha256 = self._publish_ledger(part)
        receipt = Receipt(
            part=part,
            counts=counts,
            reasons=dict(sorted(self.ledger.reasons.items())),
            skipped=dict(sorted(self.skipped.items())),
            ledger_sha256=ledger_sha256,
            inputs=[part.key for part in self.unit.inputs],
            seconds=round(time.monotonic() - self._started[0], 3),
            cpu_seconds=round(time.process_time() - self._started[1], 3),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            not_reproducible=self.not_reproducible,
            extra=self.extra,
        )
        self.storage.write_bytes(part.receipt_path, receipt.to_json())
        return receipt

    def _counts(self) -> dict[str, int]:
        actions = self.ledger.actions
        return {
            "rows_in": self.rows_in,
            "rows_out": self._rows,
            "dropped": actions["drop"],
            "edited": self.ledger.num_edited,
            "errors": actions["error"],
            "skipped": sum(self.skipped.values()),
            "bytes_in": self.bytes_in,
            "bytes_out": self._bytes_out,
        }

    def _publish_rows(self) -> Part:
        unit = self.unit
        part = Part(unit.stage, unit.key, self._rows, 0, "", table_digest(unit.schema.empty_table()), unit.source)
        if self._file is None:
            return part
        self._file.close()
        path = self._scratch / "part"
        with pq.ParquetFile(path, memory_map=True) as written:  # checksums are for those who read it later
            digest = file_digest(written)
        with path.open("rb") as file:
            sha256 = sha256_of(file)
        self.storage.publish_file(path, part.path)
        return Part(unit.stage, unit.key, self._rows, path.stat().st_size, sha256, digest, unit.source)

    def _publish_ledger(self, part: Part) -> str:
        if not len(self.ledger):
            return ""
        path = self._scratch / "ledger"
        pq.write_table(
            self.ledger.table(),
            path,
            use_dictionary=["source", "action", "reason"],
            write_page_checksum=True,
            **COMPRESSION,
        )
        self.storage.publish_file(path, part.ledger_path)
        with path.open("rb") as file:
            return sha256_of(file)


PartFunction = Callable[[Unit, PartWriter], None]


def run_unit(function: PartFunction, unit: Unit) -> Receipt:
    """What a worker runs: compute one part and publish it. Refuses when the worker's code is not the driver's."""
    pa.set_cpu_count(1)  # a thread count must not reach results, and parts run side by side
    here = code_digest(unit.module).digest if unit.code else ""
    if here != unit.code:
        raise DataError(
            f"{unit.stage}: this worker has other code for {unit.module} ({here[:12]}, not {unit.code[:12]})"
        )
    with unit.storage.scratch_folder() as scratch:
        writer = PartWriter(unit, scratch)
        function(unit, writer)
        return writer.finish()


def find_receipt(unit: Unit) -> Receipt | None:
    """The receipt of a part that is finished already and whose file has the size it names; else None."""
    try:
        receipt = Receipt.from_json(unit.storage.read_bytes(f"{unit.stage}/parts/{unit.key}.json"))
    except FileNotFoundError:
        return None
    if receipt.part.rows and unit.storage.size(receipt.part.path) != receipt.part.bytes:
        return None
    return receipt


def read_published_file(storage: Storage, path: str, sha256: str) -> bytes:
    """A file of a dataset that holds no rows. Raises DataError when it is missing or not the file that was written."""
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: a manifest names it; run its stage again with --force") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(f"{path} is not the file that was written: its sha256 differs from {sha256[:12]}...")
    return data


def read_part(
    storage: Storage, part: Part, columns: list[str] | None = None, row_groups: list[int] | None = None
) -> Iterator[pa.Table]:
    """The rows of a part (of all row groups or of these), one table per row group; page checksums are verified.

    Raises DataError when it is missing, damaged or, by its rows or size, not the file that was written.
    """
    if not part.rows:
        return
    try:
        with storage.open_input(part.path) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            if file.metadata.num_rows != part.rows:
                raise DataError(f"{part.path} holds {file.metadata.num_rows} rows of {part.rows} that were written")
            if (size := raw.seek(0, io.SEEK_END)) != part.bytes:
                raise DataError(f"{part.path} has {size} bytes of {part.bytes}: not the file that was written")
            for index in range(file.metadata.num_row_groups) if row_groups is None else row_groups:
                yield file.read_row_group(index, columns=columns, use_threads=False)
    except FileNotFoundError as error:
        raise DataError(f"{part.path} is missing: a manifest names it; see `basemill doctor --verify RUN`") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{part.path} cannot be read: {error}") from error


def read_ledger(storage: Storage, part: Part) -> pa.Table:
    """The ledger of a part; empty where nothing was dropped, edited or unreadable."""
    try:
        with storage.open_input(part.ledger_path) as raw:
            return pq.read_table(raw, schema=LEDGER_SCHEMA, use_threads=False)
    except FileNotFoundError:
        return LEDGER_SCHEMA.empty_table()


def documents_of(
    unit: Unit, writer: PartWriter, index: int = 0, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """The row groups of an input part; those of input 0 are counted as rows in."""
    for table in read_part(unit.storage, unit.inputs[index], columns):
        if index == 0:
            writer.rows_in += table.num_rows
            writer.bytes_in += text_bytes(table)
        yield table


def check_conservation(place: str, counts: dict[str, int], rule: Conservation) -> None:
    """Nothing may be lost uncounted. Raises DataError."""
    out = {
        "none": counts["rows_in"],
        "rows": counts["rows_out"],
        "documents": counts["rows_out"] + counts["dropped"] + counts["errors"],
        "records": counts["rows_out"] + counts["dropped"] + counts["errors"] + counts["skipped"],
    }[rule]
    if counts["rows_in"] != out:
        raise DataError(f"{place}: {counts['rows_in']} rows in, but {out} accounted for ({counts})")


def _codecs(schema: pa.Schema) -> dict[str, Any]:
    """COMPRESSION, but none for columns of hashes (uint64, binary): no codec shortens random bits."""
    names = [field.name for field in schema if not (pa.types.is_uint64(field.type) or "binary" in str(field.type))]
    if len(names) == len(schema):
        return COMPRESSION
    codecs = dict.fromkeys(schema.names, "NONE") | dict.fromkeys(names, COMPRESSION["compression"])
    return {"compression": codecs, "compression_level": dict.fromkeys(names, COMPRESSION["compression_level"])}


def _cast(table: pa.Table, unit: Unit) -> pa.Table:
    try:
        return table if table.schema.equals(unit.schema) else table.cast(unit.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(f"{unit.stage}: part {unit.key}: {error}; the schema is {unit.schema}") from error
