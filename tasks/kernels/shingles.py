"""Normalised words, word 5-gram shingles and MinHash signatures of documents, compiled over Arrow text buffers.

A shingle is NGRAM_WORDS consecutive words of the normalised text (tasks/kernels/folding.py) joined by one space; its
hash is XXH64 (seed 0) of its UTF-8 bytes. A signature takes the low 32 bits and follows datasketch 2.0's affine32 with
datasketch's own permutations (seed 1), bit for bit: MinHash(112, seed=1, hashfunc=xxh64 & 0xFFFFFFFF). A document with
fewer words has no shingle and its signature is empty.

Cost: linear in the document, 150-200 MB/s on one core; memory: at most seven bytes per byte of the largest document.
There is no limit on a document's size: a signature of a beginning would drop documents for their beginning alone.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tasks.kernels.blocks import BLOCK_BYTES, ascii_classes, copy_folded, count_ones, trailing_zeros
from tasks.kernels.buffers import inner, text_array, text_buffers
from tasks.kernels.folding import DIGIT, FIRST_PIECE, SEPARATOR, TABLE_SIZE, fold_tables
from tasks.kernels.minima import NUM_PERMUTATIONS, lower_minima
from tasks.kernels.sorting import sort_distinct
from tasks.kernels.xxhash64 import load_u64, xxh64

RESULT_PACKAGES = ("datasketch",)

NGRAM_WORDS = 5
SEED = 1
BLOCK = 2048  # shingles hashed together: their hashes stay in the first-level cache
LENGTHS = 256  # shingles are hashed in order of their length, so that the branches of XXH64 are predicted
SPACE, ZERO, COMMA = 32, 48, 44
DOT_MASK = np.uint8(0xFD)  # a dot (46) under it is a comma
U = np.uint64  # an unsigned index costs no check for a negative one
ALL = U(0xFFFFFFFFFFFFFFFF)
OUTPUT_FACTOR = 3  # a Hangul syllable of three bytes decomposes into nine
ABOVE_VANISHES, ABOVE_ENDS = 0xE0000, 0xE1000  # default ignorable: above the table, and they vanish
SLACK = 128  # bytes past the end that a loop may touch


@njit(inline="always")
def _decode(data: Any, at: int, end: int) -> Any:
    """(code point, next position) of the multi-byte character at `at`; a cut one ends the text."""
    lead = np.uint32(data[at])
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if at + length > end:
        return np.uint32(0), end
    code = lead & np.uint32(0x1F if length == 2 else 0x0F if length == 3 else 0x07)
    for step in range(1, length):
        code = (code << np.uint32(6)) | np.uint32(data[at + step] & 0x3F)
    return code, at + length


@njit(inline="always")
def _append_ascii(data: Any, at: int, end: int, out: Any, words: Any, size: Any, count: Any) -> Any:
    """Append the ASCII bytes of data[at : at + 64] as far as they go, runs of separators and of digits once.

    A bit each: `kept` are the bytes that are appended, `ends` those among them that end a word. (position, size, count)
    """
    letters, digits, points, high = ascii_classes(data, at)
    number = min(U(end - at), trailing_zeros(high))
    valid = ALL >> (U(BLOCK_BYTES) - number)
    after_space = U(size == U(0) or out[size - U(1)] == SPACE)
    after_zero = U(size > U(0) and out[size - U(1)] == ZERO)
    before_digit = U(at + number < end and np.uint8(data[at + number] - np.uint8(ZERO)) < np.uint8(10))
    inside = points & (digits << U(1) | after_zero) & (digits >> U(1) | before_digit << (number - U(1)))
    zeros = (digits | inside) & valid
    spaces = ~(letters | zeros) & valid
    ends = spaces & ~(spaces << U(1) | after_space)
    kept = letters & valid | ends | zeros & ~(zeros << U(1) | after_zero)
    _append_ends(kept, ends, words, size, count)
    count += count_ones(ends)
    start = U(at)
    while kept:
        first = trailing_zeros(kept)
        kept >>= first
        length = trailing_zeros(~kept)
        copy_folded(data, start + first, out, size)
        size += length
        if length == U(BLOCK_BYTES):
            break
        kept >>= length
        start += first + length
    return at + np.int64(number), size, count


@njit(inline="always")
def _append_ends(kept: Any, ends: Any, words: Any, size: Any, count: Any) -> None:
    """Write where words end, four at a time: a branch for each would be mispredicted."""
    place, last = count + U(1), count + count_ones(ends)
    while place <= last:
        for step in range(4):
            words[place + U(step)] = size + count_ones(kept & (ends ^ (ends - U(1))))
            ends &= ends - U(1)
        place += U(4)


@njit(inline="always")
def _end_word(out: Any, words: Any, size: Any, count: Any) -> Any:
    """Append a space where a word stands open; (size, count) afterwards."""
    if size > U(0) and out[size - U(1)] != SPACE:
        out[size] = SPACE
        size, count = size + U(1), count + U(1)
        words[count] = size
    return size, count


@njit(inline="always")
def _append_piece(entry: Any, pieces: Any, out: Any, size: Any) -> Any:
    """Append the bytes that an entry points to; the size afterwards."""
    offset, length = U(entry >> np.uint32(5)), U((entry >> np.uint32(1)) & np.uint32(15))
    for step in range(4):  # nearly all pieces are shorter; what is too much is overwritten
        out[size + U(step)] = pieces[offset + U(step)]
    for step in range(4, length):
        out[size + U(step)] = pieces[offset + U(step)]
    return size + length


@njit(inline="always")
def _append_character(code: Any, tables: Any, out: Any, words: Any, size: Any, count: Any) -> Any:
    """Append what one character becomes; (size, count) afterwards."""
    entries, pieces = tables
    entry = entries[code] if code < TABLE_SIZE else np.uint32(code >= ABOVE_VANISHES and code < ABOVE_ENDS)
    if entry >= FIRST_PIECE:
        if entry & np.uint32(1):  # a word of its own
            size, count = _end_word(out, words, size, count)
            size = _append_piece(entry, pieces, out, size)
            return _end_word(out, words, size, count)
        return _append_piece(entry, pieces, out, size), count
    if entry == SEPARATOR:
        return _end_word(out, words, size, count)
    if entry == DIGIT and not (size > U(0) and out[size - U(1)] == ZERO):
        out[size] = ZERO
        size += U(1)
    return size, count


@njit(inline="always")
def _is_block(data: Any, at: int) -> bool:
    """Whether a block can be read from here and begins with eight ASCII bytes."""
    return at + BLOCK_BYTES <= len(data) and load_u64(data, at) & U(0x8080808080808080) == 0


@njit(inline="always")
def _append_singly(data: Any, at: int, end: int, tables: Any, scratch: Any, done: Any) -> Any:
    """Append character by character until eight ASCII bytes follow each other; (position, size, count)."""
    out, words = scratch
    size, count = done
    while at < end:
        code = np.uint32(data[U(at)])
        if code >= 128:
            code, at = _decode(data, at, end)
        elif _is_block(data, at):
            break
        else:
            at += 1
            inside = size > U(0) and out[size - U(1)] == ZERO and code & DOT_MASK == COMMA
            if inside and at < end and np.uint8(data[U(at)] - np.uint8(ZERO)) < np.uint8(10):
                continue
        size, count = _append_character(code, tables, out, words, size, count)
    return at, size, count


@inner
def _normalise(data: Any, start: int, end: int, tables: Any, scratch: Any) -> Any:
    """Write the normalised text to `out` and to `words` where its words begin, and one past the end; (bytes, words)."""
    out, words = scratch
    size, count, at = U(0), U(0), start
    words[0] = 0
    while at < end:
        if _is_block(data, at):
            at, size, count = _append_ascii(data, at, end, out, words, size, count)
        else:
            at, size, count = _append_singly(data, at, end, tables, scratch, (size, count))
    open_word = size > U(0) and out[size - U(1)] != SPACE
    num_words = count + U(open_word)
    num_bytes = size - U(size > U(0) and not open_word)
    words[num_words] = num_bytes + U(1)
    return np.int64(num_bytes), np.int64(num_words)


@inner
def _hash_block(out: Any, words: Any, first: int, number: int, scratch: Any, hashes: Any) -> None:
    """XXH64 of shingles first .. first + number, shortest first, so that the branches of XXH64 are predicted."""
    places, order = scratch
    for length in range(LENGTHS + 1):
        places[length] = 0
    begins, ends = words[first : first + number], words[first + NGRAM_WORDS : first + NGRAM_WORDS + number]
    for index in range(number):
        places[U(min(ends[U(index)] - begins[U(index)], LENGTHS - 1)) + U(1)] += 1
    for length in range(LENGTHS):
        places[U(length) + U(1)] += places[U(length)]
    for index in range(number):
        bucket = U(min(ends[U(index)] - begins[U(index)], LENGTHS - 1))
        order[U(places[bucket])] = index
        places[bucket] += 1
    for place in range(number):
        shingle = U(order[U(place)])
        hashes[U(place)] = xxh64(out, begins[shingle], ends[shingle] - 1)


@inner
def _mixed(hashes: Any, number: int, mixed: Any) -> None:
    """MurmurHash3's 32-bit finalizer of the low halves: datasketch mixes each input hash so."""
    for index in range(number):
        value = np.uint32(hashes[index])
        value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        mixed[index] = value ^ (value >> np.uint32(16))


@njit(cache=True)
def _sign(data: Any, bounds: Any, tables: Any, permutations: Any, signatures: Any, counts: Any) -> None:
    largest = 0
    for row in range(len(counts)):
        largest = max(largest, bounds[row + 1] - bounds[row])
    out = np.empty(OUTPUT_FACTOR * largest + SLACK, np.uint8)
    words = np.empty(largest // 2 + SLACK, np.int64)  # a word and its separator: two bytes at least
    scratch = (out, words)
    order = np.empty(LENGTHS + 1, np.int32), np.empty(BLOCK, np.int64)
    hashes, mixed = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint32)
    for row in range(len(counts)):
        _, num_words = _normalise(data, bounds[row], bounds[row + 1], tables, scratch)
        counts[row] = max(0, num_words - NGRAM_WORDS + 1)
        for first in range(0, counts[row], BLOCK):
            number = min(BLOCK, counts[row] - first)
            _hash_block(out, words, first, number, order, hashes)
            _mixed(hashes, number, mixed)
            lower_minima(mixed, number, permutations, signatures, row * NUM_PERMUTATIONS)


def sign_documents(texts: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(signatures uint32 [documents, NUM_PERMUTATIONS], number of shingles int64 [documents]) of a text column.

    A document without shingles keeps the signature of the empty set (all ones), which must never be compared.
    """
    data, bounds = text_buffers(texts)
    signatures = np.full((len(texts), NUM_PERMUTATIONS), 0xFFFFFFFF, np.uint32)
    counts = np.zeros(len(texts), np.int64)
    if len(texts):
        _sign(data, bounds, fold_tables(), permutations(), signatures, counts)
    return signatures, counts


def permutations() -> np.ndarray:
    """datasketch's own factors and addends, uint32 [2, NUM_PERMUTATIONS]."""
    from datasketch import MinHash  # late: it loads scipy.integrate and redis, two seconds that only signing should pay

    return np.ascontiguousarray(MinHash(NUM_PERMUTATIONS, seed=SEED, scheme="affine32").permutations)


@njit(cache=True)
def _shingle_sets(data: Any, bounds: Any, tables: Any, ends: Any) -> Any:
    largest = 0
    for row in range(len(ends)):
        largest = max(largest, bounds[row + 1] - bounds[row])
    out = np.empty(OUTPUT_FACTOR * largest + SLACK, np.uint8)
    words = np.empty(largest // 2 + SLACK, np.int64)
    order = np.empty(LENGTHS + 1, np.int32), np.empty(BLOCK, np.int64)
    scratch = (out, words)
    hashes = np.empty(1024, np.uint64)
    size = 0
    for row in range(len(ends)):
        _, num_words = _normalise(data, bounds[row], bounds[row + 1], tables, scratch)
        total = max(0, num_words - NGRAM_WORDS + 1)
        if size + total > len(hashes):
            grown = np.empty(2 * (size + total), np.uint64)
            grown[:size] = hashes[:size]
            hashes = grown
        for first in range(0, total, BLOCK):
            number = min(BLOCK, total - first)
            _hash_block(out, words, first, number, order, hashes[size + first : size + first + number])
        size += sort_distinct(hashes[size : size + total], total)
        ends[row] = size
    return hashes[:size]


def shingle_sets(texts: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(hashes uint64, bounds int64 [documents + 1]) of a text column.

    The distinct shingle hashes of document i, ascending, are hashes[bounds[i] : bounds[i + 1]].
    """
    data, bounds = text_buffers(texts)
    ends = np.zeros(len(texts) + 1, np.int64)
    if not len(texts):
        return np.empty(0, np.uint64), ends
    return _shingle_sets(data, bounds, fold_tables(), ends[1:]), ends


@njit(cache=True)
def _normalise_rows(data: Any, bounds: Any, tables: Any, out: Any, ends: Any) -> None:
    words = np.empty(len(data) // 2 + SLACK, np.int64)
    size = 0
    for row in range(len(ends)):
        size += _normalise(data, bounds[row], bounds[row + 1], tables, (out[size:], words))[0]
        ends[row] = size


def normalise_texts(texts: pa.ChunkedArray) -> pa.Array:
    """The normalised texts as large_string: what shingles are cut from."""
    data, bounds = text_buffers(texts)
    out, ends = np.empty(OUTPUT_FACTOR * len(data) + SLACK, np.uint8), np.zeros(len(texts) + 1, np.int64)
    if len(texts):
        _normalise_rows(data, bounds, fold_tables(), out, ends[1:])
    return text_array(out[: ends[-1]], ends)
