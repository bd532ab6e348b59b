"""Finds known word n-grams, and short questions with their answers, in texts: compiled over Arrow text buffers.

A text is read as words by the rules of tasks/kernels/folding.py (case, accents, punctuation and line breaks do not
count), but digits stay as they are: two exercises that differ in their numbers are two exercises. A word has a 64-bit
hash; prefix sums P[i + 1] = P[i] * BASE + hash[i] give the hash of any run of words in one step. A run is looked up in
a bit table first (one miss in 32 at most), then by binary search. Two runs share a hash with probability 2^-64.

Cost: linear in the text, about 100 MB/s on one core; memory: 32 bytes per word of the largest document.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from tasks.kernels.buffers import text_buffers
from tasks.kernels.folding import DIGIT, FIRST_PIECE, SEPARATOR, TABLE_SIZE, fold_tables

NGRAM_WORDS = 13  # GPT-3 (arXiv 2005.14165, appendix C) and most since
ANCHOR_WORDS = 4  # a short question is looked up by its first words; shorter ones are not looked for
WINDOW_WORDS = 50  # how far from a short question its answer may stand

BASE = np.uint64(0x9E3779B97F4A7C15 | 1)
WORD_SEED = np.uint64(0xCBF29CE484222325)  # FNV-1a
WORD_PRIME = np.uint64(0x100000001B3)
MIX = np.uint64(0xD6E8FEB86659FD93)
VANISHES, ENDS, PART, ALONE = 0, 1, 2, 3  # what a character does: nothing, ends a word, is in one, is one
BITS_PER_KEY = 32
MIN_TABLE_BITS = 16  # log2 of the smallest bit table

_ASCII = np.array([ord(chr(code).lower()) if chr(code).isalnum() else 0 for code in range(128)], np.uint8)


class Lookup(NamedTuple):
    """What is looked for: n-grams by hash, and short questions, sorted by the hash of their first words (`anchors`)."""

    keys: NDArray[np.uint64]  # sorted
    key_bits: NDArray[np.uint8]
    anchors: NDArray[np.uint64]
    anchor_bits: NDArray[np.uint8]
    shorts: NDArray[np.uint64]  # columns: words, hash, first and end of its answers, of which one must stand near
    answers: NDArray[np.uint64]  # columns: words, hash


def make_lookup(
    keys: NDArray[np.uint64], anchors: NDArray[np.uint64], shorts: NDArray[np.uint64], answers: NDArray[np.uint64]
) -> Lookup:
    """A lookup with its bit tables; `keys` and `anchors` are sorted already."""
    arrays = (keys, _bit_table(keys), anchors, _bit_table(anchors), shorts, answers)
    return Lookup(*(_frozen(array) for array in arrays))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy: one kind of array for all, so that the kernels are compiled once."""
    array = np.array(array, order="C")
    array.setflags(write=False)
    return array


def _bit_table(keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Bit h of the table is set when a key's low bits are h; its size is a power of two."""
    bits = max(MIN_TABLE_BITS, int(len(keys) * BITS_PER_KEY).bit_length())
    places = keys & np.uint64((1 << bits) - 1)
    table = np.zeros(1 << (bits - 3), np.uint8)
    np.bitwise_or.at(table, places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8))
    return table


def find_runs(texts: pa.Array | pa.ChunkedArray, lookup: Lookup) -> NDArray[np.int64]:
    """Rows (row, n-gram index or -1, short index or -1, start, end): what was found, with its bytes in that text."""
    data, bounds = text_buffers(texts)
    return np.asarray(_find_runs(data, bounds, word_tables(), lookup))


def run_hashes(text: str, words: int) -> NDArray[np.uint64]:
    """Hashes of all runs of so many words of a text, in order."""
    prefix = word_prefix(text)
    runs = len(prefix) - words
    return np.asarray(_run_hashes(prefix, words)) if runs > 0 else np.empty(0, np.uint64)


def word_prefix(text: str) -> NDArray[np.uint64]:
    """Prefix sums of a text's word hashes: one more than it has words."""
    data = np.frombuffer(text.encode(), np.uint8)
    prefix, _, _, count = read_words(data, 0, len(data), word_tables(), *word_room(len(data)))
    return np.asarray(prefix[: count + 1])


def word_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint8]]:
    """What `read_words` looks characters up in."""
    entries, pieces = fold_tables()
    return _ASCII, entries, pieces


@njit(cache=True)
def word_room(size: int) -> Any:
    """Arrays for the words of a text of so many bytes."""
    words = size // 2 + 2  # a one-byte word needs a separator; ideographs take three bytes
    return np.empty(words + 1, np.uint64), np.empty(words, np.int64), np.empty(words, np.int64)


@njit(cache=True)
def _close(prefix: Any, ends: Any, count: int, value: Any, end: int) -> int:
    """Note the word that ends here."""
    value = (value ^ (value >> np.uint64(32))) * MIX
    prefix[count + 1] = prefix[count] * BASE + (value ^ (value >> np.uint64(29)))
    ends[count] = end
    return count + 1


@njit(cache=True, nogil=True)
def _wide(data: Any, at: int, tables: Any, value: Any) -> Any:
    """(what the character of several bytes at `at` does, the word's hash with it, its bytes)."""
    _, entries, pieces = tables
    lead = np.uint32(data[at])
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    code = lead & np.uint32(0x1F if size == 2 else 0x0F if size == 3 else 0x07)
    for step in range(1, size):
        code = (code << np.uint32(6)) | np.uint32(data[at + step] & 0x3F)
    entry = entries[code] if code < TABLE_SIZE else np.uint32(SEPARATOR)
    if entry < FIRST_PIECE:
        if entry == DIGIT:
            return PART, (value ^ np.uint64(48)) * WORD_PRIME, size
        return ENDS if entry == SEPARATOR else VANISHES, value, size
    role = ALONE if entry & 1 else PART
    value = WORD_SEED if role == ALONE else value
    offset = entry >> np.uint32(5)
    for step in range((entry >> np.uint32(1)) & np.uint32(15)):
        value = (value ^ np.uint64(pieces[offset + step])) * WORD_PRIME
    return role, value, size


@njit(cache=True, nogil=True)
def read_words(data: Any, start: int, end: int, tables: Any, prefix: Any, begins: Any, ends: Any) -> Any:
    """(prefix sums, first bytes, end bytes, number) of the words in data[start:end]; places count from `start`."""
    ascii_table = tables[0]
    prefix[0], count, value, at = np.uint64(0), 0, WORD_SEED, start  # value == WORD_SEED: no word is open
    while at < end:
        byte = data[np.uint64(at)]
        if byte < 128:
            kept = ascii_table[byte]
            role, hashed, size = PART if kept else ENDS, (value ^ np.uint64(kept)) * WORD_PRIME, 1
        else:
            role, hashed, size = _wide(data, at, tables, value)
        if role & ENDS and value != WORD_SEED:
            count, value = _close(prefix, ends, count, value, at - start), WORD_SEED
        if role & PART:
            if value == WORD_SEED:
                begins[count] = at - start
            value = hashed
        at += size
        if role == ALONE:
            count, value = _close(prefix, ends, count, value, at - start), WORD_SEED
    if value != WORD_SEED:
        count = _close(prefix, ends, count, value, end - start)
    return prefix, begins, ends, count


@njit(cache=True)
def power_of(words: int) -> Any:
    """BASE ** words, what `run_hash` wants."""
    power = np.uint64(1)
    for _ in range(words):
        power *= BASE
    return power


@njit(cache=True)
def run_hash(prefix: Any, first: int, words: int, power: Any) -> Any:
    """Hash of words first..first+words, mixed so that its low bits depend on all of it; `power` is BASE ** words."""
    value = prefix[np.uint64(first + words)] - prefix[np.uint64(first)] * power  # an unsigned index costs no check
    value = (value ^ (value >> np.uint64(31))) * MIX
    return value ^ (value >> np.uint64(33))


@njit(cache=True)
def _run_hashes(prefix: Any, words: int) -> Any:
    hashes = np.empty(len(prefix) - words, np.uint64)
    power = power_of(words)
    for first in range(len(hashes)):
        hashes[first] = run_hash(prefix, first, words, power)
    return hashes


@njit(cache=True)
def _maybe(bits: Any, mask: Any, value: Any) -> bool:
    place = value & mask
    return (bits[place >> np.uint64(3)] >> (place & np.uint64(7))) & 1 != 0


@njit(cache=True)
def _find(keys: Any, value: Any) -> Any:
    """The first place in the sorted keys whose key is not below the value."""
    low, high = np.uint64(0), np.uint64(len(keys))
    while low < high:
        middle = (low + high) >> np.uint64(1)
        if keys[middle] < value:
            low = middle + np.uint64(1)
        else:
            high = middle
    return np.int64(low)


@njit(cache=True)
def _answer_near(prefix: Any, count: int, first: int, words: int, answers: Any) -> Any:
    """(first, end) of the nearest run of words around a question that is one of the answers; (-1, -1) without."""
    best, best_end, distance = -1, -1, count
    for index in range(len(answers)):
        length = int(answers[index, 0])
        power = power_of(length)
        last = min(count - length, first + words + WINDOW_WORDS)
        for at in range(max(0, first - WINDOW_WORDS - length), last + 1):
            away = max(first - at - length, at - first - words)
            if 0 <= away < distance and run_hash(prefix, at, length, power) == answers[index, 1]:
                best, best_end, distance = at, at + length, away
    return best, best_end


@njit(cache=True)
def _add(found: Any, count: int, row: int, key: int, short: int, start: int, end: int) -> Any:
    """`found` with one more row; twice as large when it was full."""
    if count == len(found):
        grown = np.empty((2 * count, 5), np.int64)
        for old in range(count):  # a slice would be checked for its shape, which alone takes seconds to compile
            for column in range(5):
                grown[old, column] = found[old, column]
        found = grown
    found[count, 0], found[count, 1], found[count, 2] = row, key, short
    found[count, 3], found[count, 4] = start, end
    return found


@njit(cache=True, nogil=True)
def _find_shorts(row: int, words: Any, first: int, anchor: Any, lookup: Any, found: Any, count: int) -> Any:
    """Add the short questions that begin at word `first` and have an answer near."""
    prefix, begins, ends, number = words
    index = _find(lookup.anchors, anchor)
    while index < len(lookup.anchors) and lookup.anchors[index] == anchor:
        length = np.int64(lookup.shorts[index, 0])
        if first + length <= number and run_hash(prefix, first, length, power_of(length)) == lookup.shorts[index, 1]:
            answers = lookup.answers[np.int64(lookup.shorts[index, 2]) : np.int64(lookup.shorts[index, 3])]
            at, end = first, first + length
            if len(answers):
                at, end = _answer_near(prefix, number, first, length, answers)
            if at >= 0:
                start, stop = begins[min(at, first)], ends[max(end, first + length) - 1]
                found = _add(found, count, row, -1, index, start, stop)
                count += 1
        index += 1
    return found, count


@njit(cache=True, nogil=True)
def _candidates(prefix: Any, number: int, words: int, bits: Any, out: Any) -> int:
    """Write to `out` where the runs of so many words begin that may be known; how many. A loop without calls: all the
    time that is not reading words is spent here."""
    power, mask, count = power_of(words), np.uint64(len(bits) * 8 - 1), 0
    for first in range(number - words + 1):
        out[count] = first
        count += _maybe(bits, mask, run_hash(prefix, first, words, power))
    return count


@njit(cache=True, nogil=True)
def _find_runs(data: Any, bounds: Any, tables: Any, lookup: Any) -> Any:
    largest = 0
    for row in range(len(bounds) - 1):
        largest = max(largest, int(bounds[row + 1] - bounds[row]))
    prefix, begins, ends = word_room(largest)
    maybe = np.empty(len(prefix), np.int64)
    found, count = np.empty((64, 5), np.int64), 0
    power, anchor_power = power_of(NGRAM_WORDS), power_of(ANCHOR_WORDS)
    for row in range(len(bounds) - 1):
        words = read_words(data, bounds[row], bounds[row + 1], tables, prefix, begins, ends)
        for index in range(_candidates(prefix, words[3], NGRAM_WORDS, lookup.key_bits, maybe)):
            first = maybe[index]
            value = run_hash(prefix, first, NGRAM_WORDS, power)
            key = _find(lookup.keys, value)
            if key < len(lookup.keys) and lookup.keys[key] == value:
                found = _add(found, count, row, key, -1, begins[first], ends[first + NGRAM_WORDS - 1])
                count += 1
        for index in range(_candidates(prefix, words[3], ANCHOR_WORDS, lookup.anchor_bits, maybe)):
            anchor = run_hash(prefix, maybe[index], ANCHOR_WORDS, anchor_power)
            found, count = _find_shorts(row, words, maybe[index], anchor, lookup, found, count)
    return found[:count].copy()
