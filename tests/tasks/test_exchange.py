"""The hash-range exchange: rows reach their partition, in order, and nothing is lost uncounted."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import exchange
from tasks.dataset import Dataset, Workspace
from tasks.errors import DataError
from tasks.exchange import (
    check_exchange,
    num_partitions,
    partition_of,
    partition_units,
    read_partition,
    remove_parts,
    row_hashes,
    spread,
    write_partitions,
)
from tasks.parts import PartWriter, Receipt, Unit

SCHEMA = pa.schema(
    [("key", pa.uint64()), ("name", pa.string()), ("size", pa.int64()), ("ratio", pa.float64()), ("data", pa.binary())]
)


def send(unit: Unit, writer: PartWriter) -> None:
    """Part function: random rows by seed."""
    rng = random.Random(unit.arguments["seed"])
    keys = [rng.getrandbits(64) for _ in range(unit.arguments["rows"])]
    columns = [keys, [f"row {key}" for key in keys], [-3] * len(keys), [None] * len(keys), [b"\x00\xff"] * len(keys)]
    table = pa.table(columns, schema=SCHEMA)
    write_partitions(writer, table, table["key"].to_numpy())


def receive(unit: Unit, writer: PartWriter) -> None:
    """Part function: write what came."""
    table = read_partition(unit, writer)
    if table is not None:
        writer.write(table)


@pytest.fixture
def sent(workspace: Workspace) -> tuple[Dataset, list[Receipt]]:
    dataset = workspace.dataset("sent", None, inputs={}, module=__name__, schema=SCHEMA, with_code=False)
    sizes = [300, 0, 1, 50]
    units = [dataset.unit(arguments={"seed": n, "rows": rows, "partitions": 7}) for n, rows in enumerate(sizes)]
    return dataset, dataset.compute(units, send)


def test_every_row_arrives_once_in_its_partition_in_part_order(
    workspace: Workspace, sent: tuple[Dataset, list[Receipt]]
) -> None:
    _, receipts = sent
    received = workspace.dataset("received", None, inputs={}, module=__name__, schema=SCHEMA, with_code=False)
    parts = [receipt.part for receipt in receipts]
    results = received.compute(partition_units(received, parts, 7), receive)
    check_exchange("received", receipts, results)
    manifest = received.publish(results)
    assert manifest.totals["rows_out"] == 351
    for number, part in enumerate(manifest.parts):
        with workspace.storage.open_input(part.path) as file:
            keys = pq.read_table(file)["key"].to_numpy()
        assert set(partition_of(keys, 7)) == {number}
        expected = [key for seed, rows in ((0, 300), (2, 1), (3, 50)) for key in seeded(seed, rows)]
        assert keys.tolist() == [key for key in expected if key * 7 >> 64 == number]


def seeded(seed: int, rows: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(64) for _ in range(rows)]


def test_a_lost_or_changed_row_is_found(sent: tuple[Dataset, list[Receipt]]) -> None:
    _, receipts = sent
    extra = receipts[0].extra
    lost = dataclasses.replace(receipts[0], extra=extra | {exchange.ROWS: extra[exchange.ROWS] - 1})
    changed = dataclasses.replace(receipts[0], extra=extra | {exchange.HASHES: extra[exchange.HASHES] ^ 1})
    for wrong in (lost, changed):
        with pytest.raises(DataError, match="lost or changed rows"):
            check_exchange("x", receipts, [wrong, *receipts[1:]])


def test_a_removed_exchange_file_is_an_error_not_an_empty_partition(
    workspace: Workspace, sent: tuple[Dataset, list[Receipt]]
) -> None:
    dataset, receipts = sent
    remove_parts(workspace.storage, receipts)
    assert workspace.storage.list_files("sent") == []
    units = partition_units(dataset, [receipt.part for receipt in receipts], 7)
    with pytest.raises(DataError, match="missing"):
        dataset.compute(units, receive)


def test_a_truncated_exchange_file_is_an_error(workspace: Workspace, sent: tuple[Dataset, list[Receipt]]) -> None:
    dataset, receipts = sent
    path = receipts[0].part.path
    workspace.storage.write_bytes(path, workspace.storage.read_bytes(path)[:-100])
    with pytest.raises(DataError, match="cannot be read"):
        dataset.compute(partition_units(dataset, [receipts[0].part], 7), receive)


def test_row_groups_stay_small(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ROW_GROUP_BYTES", 1000)
    dataset = workspace.dataset("sent", None, inputs={}, module=__name__, schema=SCHEMA, with_code=False)
    [receipt] = dataset.compute([dataset.unit(arguments={"seed": 1, "rows": 200, "partitions": 2})], send)
    with workspace.storage.open_input(receipt.part.path) as file:
        assert pq.ParquetFile(file).metadata.num_row_groups > 10
    results = dataset.compute(partition_units(dataset, [receipt.part], 2), receive)
    check_exchange("sent", [receipt], results)


def test_partitions_follow_bytes_and_cover_the_range() -> None:
    assert [num_partitions(size) for size in (0, 1, 256 << 20, (256 << 20) + 1)] == [1, 1, 1, 2]
    edges = np.array([0, (1 << 64) - 1, 1 << 63, (1 << 63) - 1], np.uint64)
    assert partition_of(edges, 1).tolist() == [0] * 4
    assert partition_of(edges, 2).tolist() == [0, 1, 1, 0]
    assert partition_of(edges, 1000).tolist() == [0, 999, 500, 499]


def test_spread_is_a_bijection_that_fills_the_high_bits() -> None:
    values = spread(np.arange(10_000, dtype=np.uint64))
    assert len(np.unique(values)) == 10_000
    assert np.bincount(partition_of(values, 10)).min() > 900


def test_row_hashes_differ_by_value_and_place() -> None:
    numbers = pa.array([1, 2, 3], pa.int32())
    table = pa.table({"a": ["x", "y", "x"], "b": ["y", "x", None], "c": [1.5, 1.5, 1.5], "d": numbers})
    assert len(set(row_hashes(table).tolist())) == 3
    assert row_hashes(table.slice(1)).tolist() == row_hashes(table).tolist()[1:]
