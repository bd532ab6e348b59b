"""The words of texts as prefix sums of their hashes, from which any run of words has its hash in one step.

Words are read by the rules of tasks/kernels/folding.py (case, accents and punctuation do not count; digits stay; in
scripts without spaces each character is a word), so a model trained on them sees "Café!" and "cafe" as one word.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets
from tasks.kernels.ngrams import read_words, word_room, word_tables

HEAD_BYTES = 1 << 16  # the beginning of a text that linear classifiers look at: bounds time and the score's scale


class Words(NamedTuple):
    """Document i has the sums prefix[bounds[i] : bounds[i + 1]], one more than it has words.

    heads: how many of its words end within the first HEAD_BYTES.
    """

    prefix: NDArray[np.uint64]
    bounds: Offsets
    heads: NDArray[np.int64]


def hash_words(data: Bytes, offsets: Offsets) -> Words:
    """The words of all texts: 8 bytes a word."""
    return Words(*_hash_words(data, offsets, word_tables(), HEAD_BYTES))


@njit(cache=True, nogil=True)
def _hash_words(data: Any, offsets: Any, tables: Any, head_bytes: int) -> Any:
    num_docs, largest = len(offsets) - 1, 0
    for doc in range(num_docs):
        largest = max(largest, int(offsets[doc + 1] - offsets[doc]))
    sums, begins, ends = word_room(largest)
    prefix = np.empty((offsets[num_docs] - offsets[0]) // 4 + num_docs + 64, np.uint64)
    bounds, heads, size = np.zeros(num_docs + 1, np.int64), np.zeros(num_docs, np.int64), 0
    for doc in range(num_docs):
        count = read_words(data, offsets[doc], offsets[doc + 1], tables, sums, begins, ends)[3]
        if size + count + 1 > len(prefix):
            grown = np.empty(2 * (size + count + 1), np.uint64)
            for place in range(size):
                grown[place] = prefix[place]
            prefix = grown
        for word in range(count + 1):
            prefix[size + word] = sums[word]
        heads[doc] = np.searchsorted(ends[:count], head_bytes, "right")
        size += count + 1
        bounds[doc + 1] = size
    return prefix[:size].copy(), bounds, heads
