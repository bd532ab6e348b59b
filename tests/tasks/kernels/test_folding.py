"""Normalisation against a slow, independent definition."""

import re
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.folding import TABLE_SIZE, UNSPACED, fold_tables
from tasks.kernels.shingles import normalise_texts

SAMPLES = [
    ("", ""),
    (" \n\t ", ""),
    ("Hello,  World!", "hello world"),
    ("It's 3.14, or 1,234.56; not 1. 2", "it s 0 or 0 not 0 0"),
    ("v1.2.3-rc4 a1b22c", "v0 rc0 a0b0c"),
    ("Café CAFÉ Cafe\u0301", "cafe cafe cafe"),
    ("naïve\u00adsoft \ufeffbom zero\u200bwidth", "naivesoft bom zerowidth"),
    ("١٢٣ ٤.5 ४५६", "0 0 0"),
    ("Straße №5 ½ x²", "straße 0 ½ x²"),
    ("我们 like 寿司。", "我 们 like 寿 司"),
    ("ข้าวผัด", "ข า ว ผ ด"),
    ("한국어", unicodedata.normalize("NFD", "한국어")),
    ("İstanbul ΣΑΣ \u212b \u2126", "istanbul σασ a ω"),
    ("x\U000e0041\U000e0101y \U0001f600 z\U000f0000w", "xy z w"),
    ("snake_case a\x00b", "snake case a b"),
]


def slow_normalise(text: str) -> str:
    """The definition of tasks/kernels/folding.py, straight from the standard library."""
    text = re.sub(r"(?<=\d)[.,](?=[0-9])", "0", text)
    out: list[str] = []
    for character in text:
        kind, code = unicodedata.category(character), ord(character)
        if kind == "Nd":
            out.append("0")
        elif kind in ("Mn", "Me", "Cf") or 0xE0000 <= code < 0xE1000:
            continue
        elif kind in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "No", "Mc") and code < TABLE_SIZE:
            parts = unicodedata.normalize("NFD", character.lower())
            piece = "".join(part for part in parts if unicodedata.category(part) not in ("Mn", "Me", "Cf"))
            out.append(f" {piece} " if piece and any(low <= code < high for low, high in UNSPACED) else piece)
        else:
            out.append(" ")
    return " ".join(re.sub("0+", "0", "".join(out)).split())


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


@pytest.mark.parametrize(("text", "expected"), SAMPLES)
def test_normalises_as_documented(text: str, expected: str) -> None:
    assert normalise_texts(column([text])).to_pylist() == [expected]
    assert slow_normalise(text) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_unicode_normalises_like_the_slow_definition(texts: list[str]) -> None:
    assert normalise_texts(column(texts)).to_pylist() == [slow_normalise(text) for text in texts]


def test_blocks_of_64_bytes_begin_and_end_anywhere() -> None:
    piece = "1,234.5 .6 7. A--b  \u2019x \u0660.1 Q1.2."
    texts = ["w" * shift + piece + " z" * 20 + piece for shift in range(70)] + ["v 1" * 30 + "." + "7" * 130, ". " * 99]
    texts = [text + suffix for text in texts for suffix in ("", "3", "\u0663")]
    assert normalise_texts(column([*texts, "x" * 200])).to_pylist()[:-1] == [slow_normalise(text) for text in texts]


def test_every_character_normalises_like_the_slow_definition() -> None:
    texts = ["a" + chr(code) + "b" for code in range(1, 0x110000, 7) if not 0xD800 <= code < 0xE000]
    texts += ["a" + chr(code) + "1" for code in range(1, 0x3400)]
    assert normalise_texts(column(texts)).to_pylist() == [slow_normalise(text) for text in texts]


def test_no_piece_is_longer_than_the_output_has_room_for() -> None:
    entries, pieces = fold_tables()
    for code in range(0x80, TABLE_SIZE):
        if entries[code] >= 32:
            length = int(entries[code]) >> 1 & 15
            assert length + 2 * (int(entries[code]) & 1) <= 3 * len(chr(code).encode())
            assert int(entries[code] >> 5) + max(4, length) <= len(pieces)
