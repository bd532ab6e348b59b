"""Content digests: equal for equal rows whatever the layout, different for every other difference."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.digest import dataset_digest, file_digest, table_digest

ROWS = {
    "id": pa.array(["a", None, "ü\x00", ""], pa.string()),
    "text": pa.array(["", "long " * 9, None, "x"], pa.large_string()),
    "value": pa.array([1.5, float("nan"), None, -0.0]),
    "flag": pa.array([True, None, False, True]),
    "ids": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.uint16(), 2)),
    "names": pa.array([["a"], [], None, ["b", "cc"]], pa.list_(pa.string())),
    "pair": pa.array([{"x": 1, "y": "p"}, {"x": 2, "y": "q"}, {"x": None, "y": ""}, {"x": 4, "y": None}]),
}


@pytest.fixture
def table() -> pa.Table:
    return pa.table(ROWS)


def test_is_the_documented_hash_for_plain_columns() -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int64()), "s": pa.array(["ab", ""])})
    wanted = hashlib.sha256()
    wanted.update(b"n\0int64\x002\0" + np.array([1, 2], np.int64).tobytes())
    wanted.update(b"s\0string\x002\0" + np.array([2, 0], np.int64).tobytes() + b"ab")
    assert table_digest(table) == wanted.hexdigest()


def test_does_not_depend_on_chunks_or_slices(table: pa.Table) -> None:
    wanted = table_digest(table)
    assert table_digest(pa.concat_tables([table.slice(0, 1), table.slice(1)])) == wanted
    padded = pa.concat_tables([table.slice(2), table, table.slice(1)])
    assert table_digest(padded.slice(2, 4)) == wanted
    assert table_digest(padded.combine_chunks().slice(2, 4)) == wanted


def test_does_not_depend_on_what_lies_under_a_null() -> None:
    validity = pa.py_buffer(bytes([0b101]))
    values = [pa.py_buffer(np.array([7, junk, 9], np.int64).tobytes()) for junk in (0, 123)]
    tables = [pa.table({"n": pa.Array.from_buffers(pa.int64(), 3, [validity, value])}) for value in values]
    assert table_digest(tables[0]) == table_digest(tables[1])


def test_every_nan_is_the_same() -> None:
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    assert table_digest(pa.table({"v": other})) == table_digest(pa.table({"v": np.array([np.nan])}))


@pytest.mark.parametrize("options", [{"compression": "snappy"}, {"row_group_size": 1}, {"use_dictionary": False}])
def test_a_file_has_the_digest_of_its_table(table: pa.Table, options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "t", **options)
    with pq.ParquetFile(tmp_path / "t") as file:
        assert file_digest(file) == table_digest(table)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("id", pa.array(["a", "", "ü\x00", ""])),  # a null is not an empty value
        ("id", pa.array(["a", None, "ü\x00x", ""])),
        ("value", pa.array([1.5, float("nan"), None, 0.0])),
        ("flag", pa.array([True, None, False, False])),
        ("ids", pa.array([[1, 2], [3, 4], [5, 6], [7, 9]], pa.list_(pa.uint16(), 2))),
        ("names", pa.array([["a"], ["b"], None, ["cc"]], pa.list_(pa.string()))),
    ],
)
def test_another_value_gives_another_digest(table: pa.Table, name: str, column: pa.Array) -> None:
    changed = table.set_column(table.schema.get_field_index(name), name, column)
    assert table_digest(changed) != table_digest(table)


def test_order_of_rows_and_names_of_columns_count(table: pa.Table) -> None:
    assert table_digest(table.take([1, 0, 2, 3])) != table_digest(table)
    assert table_digest(table.rename_columns([*table.column_names[:-1], "other"])) != table_digest(table)


def test_a_split_between_values_counts() -> None:
    assert table_digest(pa.table({"s": ["ab", "c"]})) != table_digest(pa.table({"s": ["a", "bc"]}))


def test_a_dataset_digest_covers_schema_rows_and_order() -> None:
    schema = pa.schema([("n", pa.int64())])
    parts: list[tuple[int | None, str]] = [(1, "a"), (2, "b")]
    assert dataset_digest(schema, parts) == dataset_digest(schema, list(parts))
    assert dataset_digest(schema, parts[::-1]) != dataset_digest(schema, parts)
    assert dataset_digest(pa.schema([("m", pa.int64())]), parts) != dataset_digest(schema, parts)
    assert dataset_digest(None, [(None, "a")]) != dataset_digest(None, [(0, "a")])
