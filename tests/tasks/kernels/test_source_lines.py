"""Lengths of lines and shares of characters equal a plain reference."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_buffers
from tasks.kernels.characters import WORD, character_table
from tasks.kernels.source_lines import COUNTS, scan_lines


def counts_of(*texts: str) -> list[dict[str, int]]:
    counts = scan_lines(*text_buffers(pa.array(texts, pa.large_string())), character_table())
    return [dict(zip(COUNTS, row, strict=True)) for row in counts.tolist()]


@pytest.mark.parametrize(
    ("text", "lines", "line_chars", "longest"),
    [
        ("", 0, 0, 0),
        ("\n", 1, 0, 0),
        ("a\n\nbc", 3, 3, 2),
        ("a\r\nbcd\r\n", 2, 4, 3),
        ("\r\n\r\n", 2, 0, 0),
        ("é世🙂\n", 1, 3, 3),
        ("x" * 5000, 1, 5000, 5000),
    ],
)
def test_lines(text: str, lines: int, line_chars: int, longest: int) -> None:
    [found] = counts_of(text)
    assert (found["lines"], found["line_chars"], found["longest_line_chars"]) == (lines, line_chars, longest)


def test_a_huge_line_and_many_lines_are_read_once() -> None:
    """marin PR#4603: a line of 30 MB."""
    long, many = counts_of("x=1;" * 5_000_000, "x\n" * 2_000_000)
    assert long["longest_line_chars"] == 20_000_000
    assert (many["lines"], many["letters"], many["chars"]) == (2_000_000, 2_000_000, 4_000_000)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.one_of(st.sampled_from("a1_ {\n\r;é世"), st.characters(codec="utf-8")), max_size=60)))
def test_equal_to_a_plain_reference(texts: list[str]) -> None:
    table = character_table()
    for found, text in zip(counts_of(*texts), texts, strict=True):
        ended, last = text.split("\n")[:-1], text.split("\n")[-1]
        lengths = [len(line.removesuffix("\r")) for line in ended] + ([len(last)] if last else [])
        assert found == {
            "chars": len(text),
            "letters": sum(map(str.isalpha, text)),
            "letters_and_digits": sum(bool(table[ord(char)] & WORD) for char in text),
            "lines": len(lengths),
            "line_chars": sum(lengths),
            "longest_line_chars": max(lengths, default=0),
        }
