"""Document ids, row groups that do not depend on anything but the rows."""

import pyarrow as pa
import pytest

from tasks.documents import document_id, meta_json, source_of, split_rows, text_bytes


def test_an_id_follows_from_source_and_reference_alone() -> None:
    first = document_id("web", "a/b.jsonl#0")
    assert first == document_id("web", "a/b.jsonl#0")
    assert first.startswith("web:")
    assert len(first) == len("web:") + 32
    assert len({first, document_id("web", "a/b.jsonl#1"), document_id("docs", "a/b.jsonl#0")}) == 3
    assert source_of(first) == "web"
    assert source_of("odd:name:0123") == "odd:name"
    assert document_id("web", "bad\udcff#0") != document_id("web", "bad#0")


def test_text_bytes_are_utf8() -> None:
    assert text_bytes(pa.table({"text": pa.array(["é", "", "abc"], pa.large_string())})) == 5
    assert text_bytes(pa.table({"text": pa.array([], pa.large_string())})) == 0


@pytest.mark.parametrize(("limit", "groups"), [(10_000, [4]), (170, [2, 1, 1]), (1, [1, 1, 1, 1])])
def test_rows_are_cut_by_their_bytes(limit: int, groups: list[int]) -> None:
    table = pa.table({"text": pa.array(["x" * 20, "y" * 20, "z" * 100, "w"], pa.large_string())})
    pieces = list(split_rows(table, limit))
    assert [piece.num_rows for piece in pieces] == groups
    assert pa.concat_tables(pieces).equals(table)


def test_tables_without_text_are_cut_evenly() -> None:
    table = pa.table({"n": pa.array(range(1000), pa.int64())})
    assert [piece.num_rows for piece in split_rows(table, 4000)] == [500, 500]
    assert list(split_rows(table.slice(0, 0), 100)) == []


def test_meta_is_canonical() -> None:
    assert meta_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
