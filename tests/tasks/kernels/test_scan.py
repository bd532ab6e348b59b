"""Words, lines, paragraphs and sentences of small texts (test_signals.py compares all counts on any text)."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.scan import COUNTS, MAX_ITEMS, Items, scan_tables, scan_texts, word_hash

TABLES = scan_tables(("the", "of", "and"), 10)


def scan(*texts: str) -> tuple[Any, list[Items]]:
    counts, *items = scan_texts(*text_buffers(pa.array(texts, pa.large_string())), TABLES)
    return counts, items


def words_of(text: str) -> list[int]:
    return [int(value) for value in scan(text)[1][0][0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one two", ["one", "two"]),
        ("“(don't)”, well-known: C++ $5.00 …", ["don't", "well-known", "C", "5.00"]),
        ("ab\u00a0cd\u2003ef\u200bgh\x85ij", ["ab", "cd", "ef\u200bgh", "ij"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("naïve\r\ncafé\t12", ["naïve", "café", "12"]),
        ("-- *** |", []),
        ("x\0y \0", ["x\0y"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == [word_hash(word) for word in words]
    assert scan(text)[1][0][1].tolist() == [len(word) for word in words]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", 4),
        ("One... two", 1),
        ("He said. ” She said.) Then: x", 3),
        ("A line\nand another", 2),
        ("3.14 is e.g. this", 2),
        ("一。二！三", 3),
        ("「一。」二", 2),
        ("यह है। वह है।", 2),
        ("", 0),
    ],
)
def test_sentences(text: str, sentences: int) -> None:
    assert scan(text)[0][0][COUNTS.index("sentences")] == sentences


def test_lines_are_equal_without_the_space_around_them() -> None:
    _, (_, lines, paragraphs) = scan("  same line \nsame line\r\n\nsame  line\n\n same line\nsame line")
    hashes = lines[0].tolist()
    assert hashes[0] == hashes[1] == hashes[3] == hashes[4] != hashes[2]
    assert lines[1].tolist() == [9, 9, 10, 9, 9]
    assert paragraphs[0][0] == paragraphs[0][2]
    assert paragraphs[1].tolist() == [19, 10, 19]


def test_documents_do_not_see_one_another() -> None:
    texts = ["ends with ..", ". begins", "", "lorem", " ipsum", "the", "the of"]
    together, (words, lines, _) = scan(*texts)
    for place, text in enumerate(texts):
        alone, (own, _, _) = scan(text)
        assert (together[place] == alone[0]).all()
        assert words[0][words[2][place] : words[2][place + 1]].tolist() == own[0].tolist()
    assert lines[2].tolist() == [0, 1, 2, 2, 3, 4, 5, 6]


def test_only_so_many_words_are_kept_but_all_are_counted() -> None:
    counts, (words, lines, _) = scan("a " * (MAX_ITEMS + 5) + "\n" + "b\n" * 3, "c d")
    assert counts[:, COUNTS.index("words")].tolist() == [MAX_ITEMS + 8, 2]
    assert words[2].tolist() == [0, MAX_ITEMS, MAX_ITEMS + 2]
    assert lines[2].tolist() == [0, 4, 5]


def test_many_stop_words_have_a_place_each() -> None:
    stop_words = tuple(f"word{n}" for n in range(62))
    _, _, keys, bits, _ = scan_tables(stop_words, 10)
    assert np.count_nonzero(bits) == 62
    assert all(keys[word_hash(word) % len(keys)] == word_hash(word) for word in stop_words)
