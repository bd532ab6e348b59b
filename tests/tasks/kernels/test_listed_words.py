"""Counting the entries of a word list: phrases, case and accents, the longest entry first, scripts without spaces."""

import pytest

from tasks.kernels.listed_words import count_listed, make_word_list
from tests.tasks.kernels.test_words import words_of

LISTED = ["paint", "wet paint", "wet paint drips down", "Crème", "馬鹿", "🖕", "a-b"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("wet paint, Paint", 2),
        ("Wet  PAINT\ndrips down", 1),
        ("wet paint drips up", 1),
        ("wet wet paint paint paint", 3),
        ("creme brulee, CRÈME", 2),
        ("painting repaint", 0),
        ("この馬鹿者め", 1),
        ("🖕", 0),
        ("a b, a-b", 2),
        ("paint " * 10_000, 10_000),
        ("p" * 5_000_000, 0),
    ],
)
def test_occurrences(text: str, count: int) -> None:
    assert count_listed(words_of(text, "other", text), make_word_list(LISTED)).tolist() == [count, 0, count]


def test_a_list_without_words_finds_nothing() -> None:
    assert count_listed(words_of("a b", ""), make_word_list(["🖕", "..."])).tolist() == [0, 0]
