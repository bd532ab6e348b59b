"""How often words and phrases of a list stand in texts; both are read as tasks/kernels/folding.py says.

"wet paint, Paint" and the list {wet paint, paint}: 2. At each word the longest entry counts, and reading goes on after
it. In scripts without spaces an entry is found inside longer words, as each character is a word there.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from tasks.kernels.buffers import text_buffers
from tasks.kernels.kneser_ney import EMPTY, ngram_key
from tasks.kernels.ngrams import power_of, run_hash
from tasks.kernels.words import Words, hash_words


class WordList(NamedTuple):
    """Keys of the entries as an open hash table; `lengths`: numbers of words that an entry can have, longest first."""

    slots: NDArray[np.uint64]
    lengths: NDArray[np.int64]


def make_word_list(entries: list[str]) -> WordList:
    """The entries that have a word at all."""
    words = hash_words(*text_buffers(pa.array(entries, pa.large_string())))
    counts = np.diff(words.bounds) - 1
    keys = np.unique(_whole_keys(words))
    keys = keys[keys != EMPTY]
    slots = np.zeros(1 << max(4, int(4 * len(keys)).bit_length()), np.uint64)
    _place(keys, slots)
    return WordList(slots, np.unique(counts[counts > 0])[::-1].copy())


def count_listed(words: Words, listed: WordList) -> NDArray[np.int64]:
    """Occurrences per text."""
    return np.asarray(_count(words, listed))


@njit(cache=True, nogil=True)
def _whole_keys(words: Any) -> Any:
    """The key of each text as one run; EMPTY without words."""
    keys = np.zeros(len(words.heads), np.uint64)
    for doc in range(len(keys)):
        count = words.bounds[doc + 1] - words.bounds[doc] - 1
        if count:
            keys[doc] = ngram_key(run_hash(words.prefix, words.bounds[doc], count, power_of(count)), count, 0)
    return keys


@njit(cache=True, nogil=True)
def _place(keys: Any, slots: Any) -> None:
    mask = np.uint64(len(slots) - 1)
    for key in keys:
        slot = key & mask
        while slots[slot] != EMPTY:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = key


@njit(cache=True, nogil=True)
def _is_listed(slots: Any, key: Any) -> bool:
    mask = np.uint64(len(slots) - 1)
    slot = key & mask
    while slots[slot] != EMPTY:
        if slots[slot] == key:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False


@njit(cache=True, nogil=True)
def _count(words: Any, listed: Any) -> Any:
    out = np.zeros(len(words.heads), np.int64)
    powers = np.empty(len(listed.lengths), np.uint64)
    for index in range(len(powers)):
        powers[index] = power_of(listed.lengths[index])
    for doc in range(len(out)):
        word, end = words.bounds[doc], words.bounds[doc + 1] - 1
        while word < end:
            step = 1
            for index in range(len(powers)):
                length = listed.lengths[index]
                if word + length <= end:
                    run = run_hash(words.prefix, word, length, powers[index])
                    if _is_listed(listed.slots, ngram_key(run, length, 0)):
                        out[doc] += 1
                        step = length
                        break
            word += step
    return out
