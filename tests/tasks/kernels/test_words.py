"""The words of texts as prefix sums: bounds, the words of the head, equality with the single-text reader."""

import numpy as np
import pyarrow as pa

from tasks.kernels.buffers import text_buffers
from tasks.kernels.ngrams import word_prefix
from tasks.kernels.words import HEAD_BYTES, Words, hash_words

TEXTS = ["The cat sat.", "", "Café cafe", "...", "日本 語", "word " * (HEAD_BYTES // 5 + 10), "x" * 5_000_000]


def words_of(*texts: str) -> Words:
    return hash_words(*text_buffers(pa.array(texts, pa.large_string())))


def test_each_text_has_the_sums_of_its_own_words() -> None:
    words = words_of(*TEXTS)
    for text, first, end in zip(TEXTS, words.bounds[:-1], words.bounds[1:], strict=True):
        assert words.prefix[first:end].tolist() == word_prefix(text).tolist()
    assert np.diff(words.bounds).tolist() == [4, 1, 3, 1, 4, HEAD_BYTES // 5 + 11, 2]


def test_the_head_ends_with_the_last_whole_word() -> None:
    heads = words_of(*TEXTS).heads.tolist()
    assert heads[:5] == [3, 0, 2, 0, 3]
    assert heads[5] == HEAD_BYTES // 5 + (HEAD_BYTES % 5 == 4)
    assert heads[6] == 0  # its one word is longer than the head


def test_a_slice_of_a_column_is_read_from_its_own_start() -> None:
    column = pa.array(TEXTS, pa.large_string())
    sliced, whole = hash_words(*text_buffers(column.slice(2, 3))), words_of(*TEXTS[2:5])
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(sliced, whole, strict=True))


def test_many_short_words_need_more_room_than_expected() -> None:
    words = words_of("a " * 50_000, "日" * 1000)
    assert np.diff(words.bounds).tolist() == [50_001, 1001]
