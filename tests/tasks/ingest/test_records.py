"""What becomes of text and meta before they are a document."""

import json
from typing import Any

import pytest

from tasks.ingest.charset import Decoded
from tasks.ingest.records import Record, Rejected, note_decoding, sound, sound_meta


def test_sound_text_is_left_alone() -> None:
    record = sound(Record("0", "  Größe 😀\r\n\ttext \u200b "))
    assert record == Record("0", "  Größe 😀\r\n\ttext \u200b ")


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\n", "\u00a0\u200b", "\ufeff", "\0\0", "\u3000", "\u00ad", "\u2028\u2029", "\u202e", "\x1b\x7f\x85"],
)
def test_what_prints_nothing_is_empty(text: str) -> None:
    assert sound(Record("7", text)) == Rejected("7", "empty", {"chars": len(text)})


@pytest.mark.parametrize("text", [".", "0", "\u0301", "\ufffd", "ก"])
def test_what_prints_anything_is_not(text: str) -> None:
    assert isinstance(sound(Record("7", text)), Record)


def test_five_million_spaces_are_judged_at_once() -> None:
    assert isinstance(sound(Record("0", " " * 5_000_000)), Rejected)
    assert isinstance(sound(Record("0", " " * 5_000_000 + "b")), Record)


def test_repairs_of_all_columns_are_counted_in_meta() -> None:
    record = sound(Record("0", "a\0b\0\ud800\udc00", url="http://\udfff/", timestamp="2024\ud9ff"))
    assert isinstance(record, Record)
    assert (record.text, record.url, record.timestamp) == ("ab\ufffd\ufffd", "http://\ufffd/", "2024\ufffd")
    assert record.edits == {"nul_bytes": 2, "lone_surrogate": 4}
    assert record.meta == {"repaired": {"nul_bytes": 2, "lone_surrogate": 4}}


@pytest.mark.parametrize(
    ("decoded", "meta", "edits"),
    [
        (Decoded("abcd", "utf-8"), {}, {}),
        (Decoded("abcd", "cp1251"), {"charset": "cp1251"}, {}),
        (Decoded("abc\ufffd", "utf-8", 1), {"replaced_ratio": 0.25}, {"decode_lossy": 1}),
        (Decoded("", "utf-8"), {}, {}),
    ],
)
def test_how_a_text_was_decoded_is_noted(decoded: Decoded, meta: dict[str, Any], edits: dict[str, int]) -> None:
    record = Record("0", decoded.text)
    note_decoding(record, decoded)
    assert (record.meta, record.edits) == (meta, edits)


def test_plain_meta_is_left_alone() -> None:
    meta = {"a": 1, "b": [True, None, 1.5, "ü"], "c": {"d": {}}, "big": 2**70}
    assert sound_meta(meta) is meta


def test_meta_is_bounded_and_valid_json() -> None:
    assert sound_meta({"a": float("inf"), "b\ud800": "\udfff", "c": {1: b"x\xff"}, "d": (1, object)}) == {
        "a": "inf", "b\ufffd": "\ufffd", "c": {"1": "x\ufffd"}, "d": [1, "<class 'object'>"],
    }  # fmt: skip
    assert sound_meta({"a": "x" * (2 << 20)}) == {"meta_left_out_bytes": (2 << 20) + 9}
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    assert "list left out: nested too deep" in json.dumps(sound_meta({"deep": deep}))
