"""Repeated lines, paragraphs and n-grams from the hashes that `scan` leaves (Gopher, arXiv 2112.11446, table A1).

An item is a duplicate from its second occurrence on, as in datatrove. Words are compared by 64-bit hashes, n-grams
exactly from there on: an n-gram's identity is the pair of the (n-1)-grams that it is made of. Only positions whose
(n-1)-grams occur twice can hold a repeated n-gram, so each n looks at fewer positions than the one before: in English
prose 2-grams cost one look-up per word, and 3- to 10-grams together about another.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Int, Offsets, inner, kernel

TOP_NS = (2, 3, 4)
DUPLICATE_NS = (5, 6, 7, 8, 9, 10)
GOLDEN, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
Hashes = NDArray[np.uint64]
Lengths = NDArray[np.int32]
Ints = NDArray[np.int64]


@kernel
def count_duplicates(hashes: Hashes, lengths: Lengths, offsets: Offsets) -> tuple[Ints, Ints]:
    """How many items of each document repeat an earlier one, and their characters."""
    num_docs = len(offsets) - 1
    items, chars = np.zeros(num_docs, np.int64), np.zeros(num_docs, np.int64)
    table = np.zeros(1024, np.uint64)
    for doc in range(num_docs):
        size = _table_size(offsets[doc + 1] - offsets[doc])
        if size > len(table):
            table = np.zeros(size, np.uint64)
        table[:size] = 0
        for i in range(offsets[doc], offsets[doc + 1]):
            key = hashes[i] | np.uint64(1)  # 0 marks a free place
            place = _find(table, size, key)
            if table[place] == key:
                items[doc] += 1
                chars[doc] += lengths[i]
            table[place] = key
    return items, chars


@kernel
def count_ngrams(hashes: Hashes, lengths: Lengths, offsets: Offsets) -> tuple[Ints, Ints]:
    """Characters of repeated n-grams per document.

    top (documents x 3): length with spaces x occurrences of the commonest 2-, 3- and 4-gram (the first of them where
    several are); 0 where the text has fewer words. duplicate (documents x 6): characters without spaces of the 5- to
    10-grams that occurred before, counted from left to right without overlap.
    """
    num_docs = len(offsets) - 1
    top, duplicate = np.zeros((num_docs, 3), np.int64), np.zeros((num_docs, 6), np.int64)
    longest = 1
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    table, slots = np.zeros(_table_size(longest), np.uint64), np.empty(_table_size(longest), np.int32)
    work = np.empty((4, longest), np.int32)  # positions, their ids, occurrences and first positions by id
    ends = np.zeros(longest + 1, np.int64)  # characters of the words before each place
    for doc in range(num_docs):
        start, words = offsets[doc], offsets[doc + 1] - offsets[doc]
        for i in range(words):
            ends[i + 1] = ends[i] + lengths[start + i]
        active = _pairs(hashes[start : start + words], table, slots, work)
        for n in range(2, 11):
            if n > 2:
                active = _extend(active, table, slots, work)
            if n > words or (active == 0 and n > 4):
                break
            if n <= 4:
                top[doc, n - 2] = _top(n, active, work, ends)
            else:
                duplicate[doc, n - 5] = _duplicate_chars(n, active, work, ends)
    return top, duplicate


@inner
def _table_size(items: int) -> int:
    """A power of two of at least twice the items."""
    size = 16
    while size < 2 * items:
        size *= 2
    return size


@inner
def _find(table: Hashes, size: int, key: np.uint64) -> Int:
    """Where the key is, or the free place where it belongs."""
    place = np.int64((key * GOLDEN) >> np.uint64(20)) & (size - 1)
    while table[place] != 0 and table[place] != key:
        place = (place + 1) & (size - 1)
    return place


@inner
def _pairs(hashes: Hashes, table: Hashes, slots: Lengths, work: Lengths) -> int:
    """Identify all 2-grams; returns how many positions hold one that occurs twice or more (see _keep_repeated)."""
    positions, ids, occurrences, firsts = work
    size = _table_size(len(hashes))
    table[:size] = 0
    num_ids = 0
    for i in range(len(hashes) - 1):
        key = (hashes[i] * MIX + hashes[i + 1]) * GOLDEN
        key = (key ^ (key >> np.uint64(29))) | np.uint64(1)
        place = _find(table, size, key)
        if table[place] == 0:
            table[place], slots[place] = key, num_ids
            occurrences[num_ids], firsts[num_ids] = 0, i
            num_ids += 1
        occurrences[slots[place]] += 1
        positions[i], ids[i] = i, slots[place]
    return _keep_repeated(len(hashes) - 1, work)


@inner
def _extend(active: int, table: Hashes, slots: Lengths, work: Lengths) -> int:
    """From the positions of repeated (n-1)-grams to those of repeated n-grams."""
    positions, ids, occurrences, firsts = work
    size = _table_size(active)
    table[:size] = 0
    num_ids = kept = 0
    for k in range(active - 1):
        if positions[k + 1] != positions[k] + 1:
            continue
        key = np.uint64(ids[k]) << np.uint64(32) | np.uint64(ids[k + 1] + 1)
        place = _find(table, size, key)
        if table[place] == 0:
            table[place], slots[place] = key, num_ids
            occurrences[num_ids], firsts[num_ids] = 0, positions[k]
            num_ids += 1
        occurrences[slots[place]] += 1
        positions[kept], ids[kept] = positions[k], slots[place]
        kept += 1
    return _keep_repeated(kept, work)


@inner
def _keep_repeated(used: int, work: Lengths) -> int:
    """Keep the positions whose n-gram occurs at least twice, in order."""
    positions, ids, occurrences, _ = work
    kept = 0
    for k in range(used):
        if occurrences[ids[k]] > 1:
            positions[kept], ids[kept] = positions[k], ids[k]
            kept += 1
    return kept


@inner
def _top(n: int, active: int, work: Lengths, ends: Ints) -> Int:
    """Characters with spaces x occurrences of the commonest n-gram; the first n-gram where none occurs twice."""
    _, ids, occurrences, firsts = work
    best, times = 0, 1
    for k in range(active):
        if occurrences[ids[k]] > times:
            best, times = firsts[ids[k]], occurrences[ids[k]]
    return times * (ends[best + n] - ends[best] + n - 1)


@inner
def _duplicate_chars(n: int, active: int, work: Lengths, ends: Ints) -> int:
    """Characters of n-grams met before, from left to right: after a match the search goes on behind it."""
    positions, ids, occurrences, _ = work
    chars = following = 0
    for k in range(active):
        position = positions[k]
        if position < following:
            continue
        if occurrences[ids[k]] < 0:
            chars += ends[position + n] - ends[position]
            following = position + n
        occurrences[ids[k]] = -1  # met
    return chars
