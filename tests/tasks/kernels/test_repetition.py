"""Repeated n-grams and items equal a plain count, whatever the words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.repetition import DUPLICATE_NS, TOP_NS, count_duplicates, count_ngrams
from tasks.kernels.scan import Items, word_hash
from tests.tasks.plain_signals import duplicate_ngram_chars, duplicates, top_ngram_chars


def items(documents: list[list[str]]) -> Items:
    flat = [word for words in documents for word in words]
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    return np.array([word_hash(w) for w in flat], np.uint64), np.array([len(w) for w in flat], np.int32), offsets


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "cc", "ddd"]), max_size=60), max_size=4))
def test_ngrams_equal_a_plain_count(documents: list[list[str]]) -> None:
    top, duplicate = count_ngrams(*items(documents))
    for place, words in enumerate(documents):
        assert top[place].tolist() == [top_ngram_chars(words, n) for n in TOP_NS]
        assert duplicate[place].tolist() == [duplicate_ngram_chars(words, n) for n in DUPLICATE_NS]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2), max_size=30), max_size=4))
def test_duplicates_equal_a_plain_count(documents: list[list[str]]) -> None:
    counts, chars = count_duplicates(*items(documents))
    assert list(zip(counts.tolist(), chars.tolist(), strict=True)) == [duplicates(words) for words in documents]


@pytest.mark.parametrize(
    ("text", "top", "duplicate"),
    [
        ("one two three four five six", [7, 13, 18], [0] * 6),  # the first n-gram, although it occurs once
        ("a b a b a b", [9, 10, 14], [0] * 6),
        ("one two", [7, 0, 0], [0] * 6),
        ("one", [0, 0, 0], [0] * 6),
        (" ".join(["a b c d e"] * 3), [9, 15, 21], [10, 6, 7, 8, 9, 10]),
        (" ".join(["a b c d e f g h i j"] * 2), [6, 10, 14], [10, 6, 7, 8, 9, 10]),
    ],
)
def test_known_values(text: str, top: list[int], duplicate: list[int]) -> None:
    counted = count_ngrams(*items([text.split()]))
    assert counted[0].tolist() == [top]
    assert counted[1].tolist() == [duplicate]


def test_long_documents_and_short_ones_share_their_tables() -> None:
    generator = np.random.default_rng(1)
    documents = [[f"w{n}" for n in generator.zipf(1.3, size) % 500] for size in (3000, 5, 0, 2000, 1)]
    together = count_ngrams(*items(documents))
    for place, (words, alone) in enumerate((words, count_ngrams(*items([words]))) for words in documents):
        assert together[0][place].tolist() == alone[0][0].tolist()
        assert together[1][place].tolist() == alone[1][0].tolist()
        assert alone[0][0].tolist() == [top_ngram_chars(words, n) for n in TOP_NS]
        assert alone[1][0].tolist() == [duplicate_ngram_chars(words, n) for n in DUPLICATE_NS]
