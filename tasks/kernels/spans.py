"""Pieces of documents that may stand in others too, each with a 128-bit key, compiled: lines, paragraphs, word windows.

Every function gives one row per piece, uint64 [pieces, 5]: document (its row), first byte, end (both from the
document's own beginning), two hashes. Pieces begin and end between characters.

Words are runs without ASCII whitespace; in scripts without spaces each character is a word (tasks/kernels/folding.py).
Two windows are the same when their words are; the whitespace between them may differ.

A repeated text of `num_words` words is found by anchors (winnowing: Schleimer, Wilkerson, Aiken 2003): of every
num_words - k + 1 neighbouring windows of k = num_words // 2 words the one with the smallest hash is taken, so that two
texts that share num_words words share an anchor, and only one word in 13 (of 50) costs a row. Worked: the first row of
a text of exactly num_words words is its one anchor.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tasks.kernels.buffers import text_buffers
from tasks.kernels.folding import FIRST_PIECE, TABLE_SIZE, fold_tables
from tasks.kernels.shingles import _decode
from tasks.kernels.xxhash64 import xxh64

ROW, START, END, KEY, CHECK = range(5)
NEWLINE, SPACE = 10, 32
BASE, CHECK_BASE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd: of the rolling hashes
FIRST_ROWS = 1024


@njit(cache=True)
def _push(out: Any, size: int, row: int, span: Any, keys: Any) -> Any:
    if size == len(out):
        grown = np.empty((2 * size, 5), np.uint64)
        grown[:size] = out
        out = grown
    out[size, ROW], out[size, START], out[size, END] = np.uint64(row), np.uint64(span[0]), np.uint64(span[1])
    out[size, KEY], out[size, CHECK] = keys
    return out


@njit(cache=True)
def _line(data: Any, at: int, end: int) -> Any:
    """The line that begins at `at`: (first byte of its text, end of its text, where the next line begins)."""
    stop = at
    while stop < end and data[stop] != NEWLINE:
        stop += 1
    left, right = at, stop
    while left < right and data[left] <= SPACE:
        left += 1
    while right > left and data[right - 1] <= SPACE:
        right -= 1
    return left, right, stop + 1


@njit(cache=True)
def _pieces(data: Any, bounds: Any, is_paragraph: bool, min_bytes: int) -> Any:
    """Lines, or paragraphs (up to a line without text); a piece takes what follows it up to the next one's line."""
    out, size = np.empty((FIRST_ROWS, 5), np.uint64), 0
    for row in range(len(bounds) - 1):
        start, end = bounds[row], bounds[row + 1]
        line, open_line, begin, last, is_ended = start, np.int64(-1), start, start, False
        while line <= end + 1:  # one line more, at the end: it ends the last piece
            left, right, following = _line(data, min(line, end), end)
            has_text = right > left
            if open_line >= 0 and (line > end or (has_text and (is_ended or not is_paragraph))):
                if last - begin >= min_bytes:
                    span = (open_line - start, min(line, end) - start)
                    out = _push(out, size, row, span, (xxh64(data, begin, last), np.uint64(last - begin)))
                    size += 1
                open_line = np.int64(-1)
            if has_text:
                if open_line < 0:
                    open_line, begin, is_ended = line, left, False
                last = right
            is_ended = is_ended or not has_text
            line = following if line <= end else end + 2
    return out[:size]


@njit(cache=True)
def _words(data: Any, start: int, end: int, entries: Any, starts: Any, ends: Any) -> int:
    """First byte and end of each word of data[start:end]; how many there are."""
    count, at, is_open = 0, start, False
    while at < end:
        byte = data[at]
        if byte < 128:
            after, alone = at + 1, False
        else:
            code, after = _decode(data, at, end)
            alone = code < TABLE_SIZE and entries[code] >= FIRST_PIECE and entries[code] & np.uint32(1) == 1
        if byte <= SPACE:
            is_open = False
        else:
            if not is_open or alone:
                starts[count] = at
                count += 1
            ends[count - 1] = after
            is_open = not alone
        at = after
    return count


@njit(cache=True)
def _rolled(data: Any, starts: Any, ends: Any, count: int, width: int) -> Any:
    """Two hashes of every window of `width` words, uint64 [windows, 2]."""
    out = np.zeros((max(0, count - width + 1), 2), np.uint64)
    hashes = np.empty(count, np.uint64)
    power, check_power, key, check = np.uint64(1), np.uint64(1), np.uint64(0), np.uint64(0)
    for _ in range(width):
        power, check_power = power * BASE, check_power * CHECK_BASE
    for word in range(count):
        hashes[word] = xxh64(data, starts[word], ends[word])
        key, check = key * BASE + hashes[word], check * CHECK_BASE + hashes[word]
        if word >= width:
            key -= hashes[word - width] * power
            check -= hashes[word - width] * check_power
        if word >= width - 1:
            mixed = (key ^ (key >> np.uint64(32))) * BASE
            out[word - width + 1, 0], out[word - width + 1, 1] = mixed ^ (mixed >> np.uint64(29)), check
    return out


@njit(cache=True)
def _anchors(data: Any, bounds: Any, entries: Any, num_words: int) -> Any:
    out, size = np.empty((FIRST_ROWS, 5), np.uint64), 0
    width = num_words // 2
    group = num_words - width + 1
    for row in range(len(bounds) - 1):
        start, end = bounds[row], bounds[row + 1]
        starts, ends = np.empty(end - start, np.int64), np.empty(end - start, np.int64)
        count = _words(data, start, end, entries, starts, ends)
        keys = _rolled(data, starts, ends, count, width)
        taken, least = -1, -1
        for last in range(group - 1, len(keys)):
            first = last - group + 1
            if least < first:  # the smallest has left the group: the last of the smallest in it
                least = first
                for place in range(first + 1, last + 1):
                    if keys[place, 0] <= keys[least, 0]:
                        least = place
            elif keys[last, 0] <= keys[least, 0]:
                least = last
            if least != taken:
                taken = least
                span = (starts[taken] - start, ends[taken + width - 1] - start)
                out, size = _push(out, size, row, span, (keys[taken, 0], keys[taken, 1])), size + 1
    return out[:size]


@njit(cache=True)
def _windows(data: Any, bounds: Any, entries: Any, hits: Any, num_words: int) -> Any:
    """Windows of num_words words that hold one of the anchors at hits[:, (row, first byte)], which are sorted."""
    out, size, hit = np.empty((FIRST_ROWS, 5), np.uint64), 0, 0
    reach = num_words - num_words // 2
    for row in range(len(bounds) - 1):
        if hit == len(hits) or hits[hit, 0] != row:
            continue
        start, end = bounds[row], bounds[row + 1]
        starts, ends = np.empty(end - start, np.int64), np.empty(end - start, np.int64)
        count = _words(data, start, end, entries, starts, ends)
        keys = _rolled(data, starts, ends, count, num_words)
        following = 0  # the first window that is not written yet
        for word in range(count):
            if hit < len(hits) and hits[hit, 0] == row and hits[hit, 1] == starts[word] - start:
                hit += 1
                for first in range(max(following, word - reach), min(word + 1, len(keys))):
                    span = (starts[first] - start, ends[first + num_words - 1] - start)
                    out, size = _push(out, size, row, span, (keys[first, 0], keys[first, 1])), size + 1
                following = word + 1
    return out[:size]


def line_pieces(texts: pa.ChunkedArray, min_bytes: int) -> np.ndarray:
    """Lines with at least so many bytes of text; a line ends where the next one with text begins."""
    return np.asarray(_pieces(*text_buffers(texts), False, min_bytes))


def paragraph_pieces(texts: pa.ChunkedArray, min_bytes: int) -> np.ndarray:
    """Paragraphs (divided by lines without text) with at least so many bytes of text."""
    return np.asarray(_pieces(*text_buffers(texts), True, min_bytes))


def anchor_pieces(texts: pa.ChunkedArray, num_words: int) -> np.ndarray:
    """Anchors of every text of at least `num_words` words."""
    return np.asarray(_anchors(*text_buffers(texts), fold_tables()[0], num_words))


def window_pieces(texts: pa.ChunkedArray, hits: np.ndarray, num_words: int) -> np.ndarray:
    """The windows of `num_words` words around anchors; hits: their (document, first byte), int64, sorted, distinct."""
    return np.asarray(_windows(*text_buffers(texts), fold_tables()[0], hits, num_words))
