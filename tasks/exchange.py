"""The hash-range exchange between the map and the reduce tasks of a global stage.

A map task writes one file with its partitions in order, one row group or more each; which row groups belong to which
partition stands in the file's footer. A partition task reads its row groups of every file, in part order, so the rows
and their order never depend on workers. The number of partitions follows from bytes (manifests), never from workers.
Nothing is lost: rows and the sum of their hashes are equal on both sides, else DataError.

Worked: 10 million keys of 24 bytes = 240 MB = 1 partition; 200 million = 18 partitions.
Exchange files serve one computation (the fingerprint of the stage is in their keys) and are removed once
the dataset made from them has its manifest; parts that later runs reuse (keys, signatures) are ordinary parts.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.kernels.xxhash64 import hash_values
from tasks.parts import ROW_GROUP_BYTES, Part, PartWriter, Receipt, Unit
from tasks.storage import Storage

PARTITION_BYTES = 256 << 20
FOOTER = "basemill.partitions"  # JSON: partition -> [first row group, row groups]
ROWS, HASHES = "exchanged_rows", "exchanged_hashes"  # in the receipts of both sides
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def num_partitions(num_bytes: int) -> int:
    """Partitions for so many bytes of keys."""
    return max(1, -(-num_bytes // PARTITION_BYTES))


def partition_of(keys: np.ndarray, partitions: int) -> np.ndarray:
    """The hash range that each uint64 key falls in, 0 .. partitions - 1; keys must be spread evenly."""
    high = keys.astype(np.uint64) >> np.uint64(32)
    return ((high * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def spread(values: np.ndarray) -> np.ndarray:
    """A bijection of uint64 that spreads numbers which are not hashes."""
    mixed = (values ^ (values >> np.uint64(32))) * MULTIPLIER
    return np.asarray((mixed ^ (mixed >> np.uint64(29))) * MULTIPLIER)


def write_partitions(writer: PartWriter, table: pa.Table, keys: np.ndarray) -> None:
    """The map side: write the rows partition by partition (`keys`: one per row); their order within one is kept."""
    partitions = int(writer.unit.arguments["partitions"])
    places = partition_of(keys, partitions)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(partitions + 1))
    index: dict[int, list[int]] = {}
    total = 0
    for partition in np.flatnonzero(np.diff(starts)):
        rows = table.take(pa.array(order[starts[partition] : starts[partition + 1]]))
        first = total
        for piece in _pieces(rows):
            count(writer, piece)
            writer.write_row_group(piece)
            total += 1
        index[int(partition)] = [first, total - first]
    writer.add_footer({FOOTER: json.dumps(index)})


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Row groups of about ROW_GROUP_BYTES; depends on the rows alone."""
    rows = max(1, int(table.num_rows * ROW_GROUP_BYTES // max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def partition_pieces(unit: Unit) -> Iterator[pa.Table]:
    """The reduce side: the row groups of the unit's partition, in the order of its input parts."""
    for part in unit.inputs:
        if part.rows:
            yield from _read_partition(unit.storage, part, int(unit.arguments["partition"]))


def read_partition(unit: Unit, writer: PartWriter) -> pa.Table | None:
    """The unit's whole partition, counted; None where it is empty."""
    tables = []
    for table in partition_pieces(unit):
        count(writer, table)
        tables.append(table)
    return pa.concat_tables(tables) if tables else None


def _read_partition(storage: Storage, part: Part, partition: int) -> Iterator[pa.Table]:
    try:
        with storage.open_input(part.path) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            index = json.loads(file.metadata.metadata[FOOTER.encode()])
            first, number = index.get(str(partition), (0, 0))
            for group in range(first, first + number):
                yield file.read_row_group(group, use_threads=False)
    except FileNotFoundError as error:
        raise DataError(f"{part.path} is missing, an exchange file of this run: run the stage again") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{part.path} cannot be read: {error}") from error


def rows_between(storage: Storage, part: Part, low: int, high: int) -> Iterator[pa.Table]:
    """The row groups of an ordinary part whose first column, by which it is sorted, can hold low <= value < high."""
    if not part.rows:
        return
    with storage.open_input(part.path) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
        for group in range(file.metadata.num_row_groups):
            limits = file.metadata.row_group(group).column(0).statistics
            if limits.min < high and limits.max >= low:
                yield file.read_row_group(group, use_threads=False)


def count(writer: PartWriter, table: pa.Table) -> None:
    """Add rows and the sum of their hashes (modulo 2**64) to the receipt."""
    writer.extra[ROWS] = writer.extra.get(ROWS, 0) + table.num_rows
    writer.extra[HASHES] = (writer.extra.get(HASHES, 0) + int(row_hashes(table).sum(dtype=np.uint64))) % (1 << 64)


def row_hashes(table: pa.Table) -> np.ndarray:
    """A hash of each row's values, uint64; a null counts as empty or zero."""
    total = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            values = pc.fill_null(column, pa.scalar(0, kind)).combine_chunks().to_numpy(zero_copy_only=False)
            hashes = values.astype(np.float64).view(np.uint64) if values.dtype.kind == "f" else values.astype(np.uint64)
        else:
            hashes = hash_values(column)
        total = spread(total + hashes)
    return total


def check_exchange(stage: str, mapped: Sequence[Receipt], reduced: Sequence[Receipt]) -> None:
    """Rows and the sum of their hashes must be equal on both sides. Raises DataError."""
    sides = [
        (sum(r.extra.get(ROWS, 0) for r in side), sum(r.extra.get(HASHES, 0) for r in side) % (1 << 64))
        for side in (mapped, reduced)
    ]
    if sides[0] != sides[1]:
        raise DataError(f"{stage}: the exchange lost or changed rows: (rows, hashes) {sides[0]} sent, {sides[1]} came")


def partition_units(dataset: Dataset, parts: Sequence[Part], partitions: int, **arguments: object) -> list[Unit]:
    """One unit per partition of the exchange that these parts hold."""
    inputs = tuple(parts)
    return [
        dataset.unit(inputs, arguments={**arguments, "partition": partition, "partitions": partitions})
        for partition in range(partitions)
    ]


def remove_parts(storage: Storage, receipts: Sequence[Receipt]) -> None:
    """Remove exchange files that have served: the receipts first, so that no part is half there."""
    for receipt in receipts:
        storage.delete(receipt.part.receipt_path)
        storage.delete(receipt.part.path)
