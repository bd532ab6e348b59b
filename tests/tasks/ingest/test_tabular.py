"""JSONL, plain lines and Parquet: every broken line is named, nothing else is lost."""

import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.ingest.records import Outcome, Record, Rejected, Skipped, sound, sound_meta
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import read_pieces
from tasks.ingest.tabular import outcomes_of_lines, read_lines, read_parquet

CONFIG = SourceConfig(base="x")


def read_json_lines(
    data: bytes, start: int = 0, end: int | None = None, config: SourceConfig = CONFIG, is_json: bool = True
) -> list[Outcome]:
    pieces = read_pieces(io.BytesIO(data), max(0, start - 1))
    return list(outcomes_of_lines(read_lines(pieces, start, end, config.max_record_bytes), config, is_json=is_json))


def one(line: str | bytes, **settings: Any) -> Outcome:
    data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    (outcome,) = read_json_lines(data + b"\n", config=SourceConfig(base="x", **settings))
    return sound(outcome) if isinstance(outcome, Record) else outcome


def test_a_range_inside_one_line_reads_no_further_than_itself() -> None:
    file = io.BytesIO(b"x" * (50 << 20) + b"\n{}\n")  # at 250 ranges, whole lines would be 6 GB
    assert list(read_lines(read_pieces(file, 999_999), 1_000_000, 2_000_000, 1 << 30)) == []
    assert file.tell() < 4 << 20


def test_declared_columns_and_the_rest_into_meta() -> None:
    row = {"id": 7, "text": "hello", "url": "http://a/", "timestamp": 1700000000, "score": 1.5, "tags": ["a", None]}
    record = one(json.dumps(row))
    assert isinstance(record, Record)
    assert (record.position, record.text, record.url, record.timestamp) == ("0", "hello", "http://a/", "1700000000")
    assert record.meta == {"id": 7, "score": 1.5, "tags": ["a", None]}


def test_keys_can_be_named_and_reach_into_objects() -> None:
    line = json.dumps({"body": {"raw": "hello"}, "uid": "x1", "metadata": {"url": "http://a/"}, "text": 5})
    record = one(line, text_key="body.raw", url_key="metadata.url", id_key="uid")
    assert isinstance(record, Record)
    assert (record.text, record.url) == ("hello", "http://a/")
    assert record.meta == {"body": {"raw": "hello"}, "metadata": {"url": "http://a/"}, "id": "x1", "text": 5}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "cut in ha', "invalid_json"),
        ("plain words", "invalid_json"),
        ('{"text": "a"} {"text": "b"}', "invalid_json"),
        ("\0\0\0\0" + '{"text": "a"}', "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ('{"text": ' + "1" * 5_000 + "}", "invalid_json"),
        ('["text"]', "not_object"),
        ('"text"', "not_object"),
        ("null", "not_object"),
        ("17", "not_object"),
        ('{"body": "a"}', "missing_text"),
        ('{"text": 17}', "wrong_type"),
        ('{"text": ["a"]}', "wrong_type"),
        ('{"text": {"en": "a"}}', "wrong_type"),
        ('{"text": true}', "wrong_type"),
        ('{"text": null}', "empty"),
        ('{"text": ""}', "empty"),
        ('{"text": " \\n\\t"}', "empty"),
        ('{"text": "\\u00a0\\u200b\\ufeff"}', "empty"),
        ('{"text": "\\u0000"}', "empty"),
    ],
)
def test_bad_lines_are_named(line: str, reason: str) -> None:
    outcome = one(line)
    assert isinstance(outcome, Rejected)
    assert (outcome.position, outcome.reason) == ("0", reason)


@pytest.mark.parametrize(
    ("line", "text", "edits"),
    [
        ('{"text": "a\\ud800b"}', "a\ufffdb", {"lone_surrogate": 1}),
        ('{"text": "a\\ud83d\\ude00b"}', "a😀b", {}),
        ('{"text": "a\\u0000b"}', "ab", {"nul_bytes": 1}),
        (b'{"text": "a\tb"}', "a\tb", {}),  # a raw tab: not strict, but clear
        (b'{"text": "caf\xe9 au lait, na\xefve r\xe9sum\xe9"}', "café au lait, naïve résumé", {}),
        ('{"text": "zażółć "}'.encode()[:-2] + b"\xff" + b'"}', "zażółć \ufffd", {"decode_lossy": 1}),
        (b'{"text": "a\xed\xa0\x80b"}', "a\ufffdb", {"decode_lossy": 1}),
        (b'{"text": "a\xed\xa0\xbd\xed\xb8\x80b"}', "a😀b", {}),
        ('{"text": "a", "score": NaN}', "a", {}),
        ('{"text": "a", "url": {"href": "x"}}', "a", {"column_type": 1}),
        ('\ufeff{"text": "a"}', "a", {}),
        ('{"text": "first", "text": "a"}', "a", {}),
        ('{"text": "a"}\r', "a", {}),
    ],
)
def test_repairs_are_counted_and_the_document_stays(line: str | bytes, text: str, edits: dict[str, int]) -> None:
    record = one(line)
    assert isinstance(record, Record)
    assert (record.text, record.edits) == (text, edits)
    assert record.meta.get("repaired", {}) == edits
    json.dumps(sound_meta(record.meta), allow_nan=False).encode("utf-8")


def test_a_column_of_another_type_stays_in_meta() -> None:
    record = one('{"text": "a", "url": ["b"], "timestamp": false}')
    assert isinstance(record, Record)
    assert (record.url, record.timestamp) == (None, None)
    assert {"url": ["b"], "timestamp": False}.items() <= record.meta.items()
    assert record.edits == {"column_type": 2}


def test_positions_are_byte_offsets_and_blank_lines_are_skipped() -> None:
    lines = ['{"text": "ä"}', "", '{"text": "b"}', "   ", '{"text": "c"}']
    outcomes = read_json_lines("\n".join(lines).encode())
    assert [o.position for o in outcomes if isinstance(o, Record)] == ["0", "16", "34"]
    assert [o for o in outcomes if isinstance(o, Skipped)] == [Skipped("blank_line")] * 2


@pytest.mark.parametrize("is_json", [True, False])
def test_a_byte_order_mark_is_no_part_of_the_first_line(is_json: bool) -> None:
    [first] = read_json_lines(b'\xef\xbb\xbf{"text": "one"}\n', is_json=is_json)
    assert isinstance(first, Record)
    assert first.text == ("one" if is_json else '{"text": "one"}')


@pytest.mark.parametrize("data", ['{"text": "ä"}\n'.encode("utf-16"), '{"text": "ä"}\n'.encode("utf-16-be")])
@pytest.mark.parametrize("is_json", [True, False])
def test_lines_of_wide_characters_are_one_rejection_that_says_what_to_do(data: bytes, is_json: bool) -> None:
    [rejected] = read_json_lines(data * 3, is_json=is_json)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "wide_charset"
    assert "convert the file with: iconv -f UTF-16" in rejected.detail["error"]


def test_a_last_line_cut_off_is_truncated_not_invalid() -> None:
    outcomes = read_json_lines(b'{"text": "a"}\n{"text": "b')
    assert isinstance(outcomes[1], Rejected)
    assert (outcomes[1].position, outcomes[1].reason) == ("14", "truncated")


@pytest.mark.parametrize("step", [1, 5, 13, 100, 10_000])
def test_ranges_tile_the_lines(step: int) -> None:
    data = b"".join(b'{"text": "%s"}\n' % (b"x" * (n * 7 % 40)) for n in range(1, 60)) + b'\n\n{"text": "last"}'
    whole = read_json_lines(data)
    ranges = [read_json_lines(data, start, start + step) for start in range(0, len(data), step)]
    assert [outcome for part in ranges for outcome in part] == whole


def test_too_long_lines_cost_no_memory_and_are_named() -> None:
    data = b'{"text": "a"}\n{"text": "' + b"x" * 3_000_000 + b'"}\n{"text": "b"}\n'
    outcomes = read_json_lines(data, config=SourceConfig(base="x", max_record_bytes=1_000))
    assert [type(o) for o in outcomes] == [Record, Rejected, Record]
    assert outcomes[1] == Rejected("14", "too_large", value=3_000_012, threshold=1_000)


def test_five_million_spaces_and_fifty_megabytes_pass() -> None:
    spaces = "a" + " " * 5_000_000 + "b"
    big = "word " * 10_000_000
    outcomes = read_json_lines(f"{json.dumps({'text': spaces})}\n{json.dumps({'text': big})}\n".encode())
    kept = [sound(outcome) for outcome in outcomes if isinstance(outcome, Record)]
    assert [record.text == text for record, text in zip(kept, (spaces, big), strict=True)] == [True, True]  # type: ignore[union-attr]


def test_truncated_and_multi_member_gzip() -> None:
    rows = [json.dumps({"text": f"document {n} " * 20}).encode() + b"\n" for n in range(100)]
    members = [gzip.compress(b"".join(rows[n : n + 10])) for n in range(0, 100, 10)]
    assert len(read_json_lines(b"".join(members))) == 100
    outcomes = read_json_lines(b"".join(members)[:-60])
    assert all(isinstance(outcome, Record) for outcome in outcomes[:90])
    assert isinstance(outcomes[-1], Rejected)
    assert outcomes[-1].reason == "truncated"
    assert ":damage@" in outcomes[-1].position
    broken = members[4][:30] + b"\xff" * 8 + members[4][38:]
    outcomes = read_json_lines(b"".join([*members[:4], broken, *members[5:]]))
    texts = {o.text for o in outcomes if isinstance(o, Record)}
    assert {json.loads(row)["text"] for n, row in enumerate(rows) if not 40 <= n < 50} <= texts
    assert [o.reason for o in outcomes if isinstance(o, Rejected)] == ["corrupt_member"]


def test_plain_lines_are_documents() -> None:
    outcomes = read_json_lines("first\r\n\nzweite Zeile ä\n".encode(), is_json=False)
    assert [(o.position, o.text) for o in outcomes if isinstance(o, Record)] == [
        ("0", "first"),
        ("8", "zweite Zeile ä"),
    ]


def parquet(table: pa.Table, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file


def test_parquet_rows() -> None:
    table = pa.table(
        {
            "score": [1.5, float("nan"), None, 2.0],
            "text": ["a", "b", None, " "],
            "url": ["http://a/", None, None, None],
            "timestamp": [datetime(2024, 1, 2, 3, tzinfo=UTC), None, None, None],
            "day": [date(2024, 1, 2), None, None, None],
            "price": [Decimal("1.10"), None, None, None],
            "blob": [b"\xff\x00", None, None, None],
        }
    )
    outcomes = list(read_parquet(parquet(table), 0, None, CONFIG))
    first, second, third, fourth = [sound(o) if isinstance(o, Record) else o for o in outcomes]
    assert isinstance(first, Record)
    assert (first.position, first.text, first.url, first.timestamp) == (
        "0",
        "a",
        "http://a/",
        "2024-01-02T03:00:00+00:00",
    )
    meta = sound_meta(first.meta)
    assert meta == {"score": 1.5, "day": "2024-01-02", "price": "1.10", "blob": "\ufffd\0"}
    assert isinstance(second, Record)
    assert sound_meta(second.meta)["score"] == "nan"
    assert [third, fourth] == [Rejected("2", "empty", {"text": None}), Rejected("3", "empty", {"chars": 1})]


@pytest.mark.parametrize("step", [100, 1_000, 1 << 20])
def test_parquet_ranges_tile_the_row_groups(step: int) -> None:
    table = pa.table({"n": list(range(100)), "text": [f"text {n} {n * n}" for n in range(100)]})
    file = parquet(table, row_group_size=7, compression="none")
    size = len(file.getvalue())
    found = [o for start in range(0, size, step) for o in read_parquet(file, start, start + step, CONFIG)]
    assert [(o.position, o.text) for o in found if isinstance(o, Record)] == [
        (str(n), text) for n, text in enumerate(table["text"].to_pylist())
    ]


def test_damaged_parquet() -> None:
    table = pa.table({"text": [f"text {n} {n * n * 7919}" for n in range(3_000)]})
    data = parquet(
        table, row_group_size=1_000, compression="none", write_page_checksum=True, use_dictionary=False
    ).getvalue()
    (only,) = read_parquet(io.BytesIO(data[:-100]), 0, None, CONFIG)
    assert isinstance(only, Rejected)
    assert (only.position, only.reason) == ("0:damage", "corrupt_file")
    assert list(read_parquet(io.BytesIO(data[:-100]), 50, None, CONFIG)) == []  # the first range tells it
    at = data.index(b"text 1500 ")
    outcomes = list(read_parquet(io.BytesIO(data[:at] + b"TEXT" + data[at + 4 :]), 0, None, CONFIG))
    assert sum(isinstance(o, Record) for o in outcomes) == 2_000
    assert [(o.position, o.reason, o.detail["rows"]) for o in outcomes if isinstance(o, Rejected)] == [
        ("1000:damage", "corrupt_file", 1_000)
    ]


def test_parquet_with_another_schema_or_bytes() -> None:
    (missing,) = read_parquet(parquet(pa.table({"body": ["a"]})), 0, None, CONFIG)
    assert isinstance(missing, Rejected)
    assert (missing.reason, missing.detail) == ("missing_text", {"key": "text", "keys": ["body"]})
    (number,) = read_parquet(parquet(pa.table({"text": [1]})), 0, None, CONFIG)
    assert isinstance(number, Rejected)
    assert number.reason == "wrong_type"
    binary = pa.table({"text": pa.array(["añ".encode(), "naïve café".encode("cp1252")], pa.binary())})
    texts = [o.text for o in read_parquet(parquet(binary), 0, None, CONFIG) if isinstance(o, Record)]
    assert texts == ["añ", "naïve café"]
    not_utf8 = pa.table({"text": pa.array([b"ok", b"caf\xe9 na\xefve"], pa.binary()).view(pa.string())})
    texts = [o.text for o in read_parquet(parquet(not_utf8), 0, None, CONFIG) if isinstance(o, Record)]
    assert texts == ["ok", "café naïve"]
