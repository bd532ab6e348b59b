"""The tags of a page, measured in one pass over its bytes, eight at a time: 0.03 ms for 100 kB.

b"<p>a<b title='...'>x</b>" -> 2 start tags, nesting 1 (p needs no end tag, so it does not count)
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Int, frozen, inner, kernel

# Elements without content, and those whose end tag may be left out: neither deepens a page by itself.
FLAT = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"),
    *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
    *("tbody", "td", "tfoot", "th", "thead", "tr"),
)
# Tags that are counted from the last one that begins anew: OPTIONS of one list; NESTED where their parent is missing;
# ROOTS, of which a page has one: what comes later adds its attributes to it.
COUNTED = {"option": 1, "optgroup": 2, "rp": 2, "rt": 2, "body": 3, "html": 3}
OPTIONS, NESTED, ROOTS = 1, 2, 3
SELECT, RUBY = (np.uint64(int.from_bytes(name, "little")) for name in (b"select", b"ruby"))  # they begin anew
U = np.uint64
WORD_BYTES = 8  # read at once; of a tag's name so many bytes are compared, as one number
PADDING = bytes(3 * WORD_BYTES)  # what is read behind the last byte of a page
SLASH = U(0x2F)
OPENS = U(0x3C3C3C3C3C3C3C3C)
ONES, SEVENS, HIGHS, CASES = U(0x0101010101010101), U(0x7F7F7F7F7F7F7F7F), U(0x8080808080808080), U(0x2020202020202020)
# 0x80 - b in each byte: added to a byte below 0x80 it sets the high bit where that byte is at least b
FROM_A, PAST_Z, FROM_0, PAST_9 = (ONES * U(0x80 - ord(char)) for char in "a{0:")
MIX = U(0x9E3779B97F4A7C15)
FLAT_BITS = 10  # of a name's place in the table of flat names


Words = tuple[NDArray[np.uint64], NDArray[np.uint64]]  # of a page, and of its end with PADDING: the page is not copied


class Tags(NamedTuple):
    """What a page has of them.

    nodes: start tags; depth: greatest nesting; far: places of the "<" that no other one follows for gap_bytes;
    options: the most in one list; roots: start tags of html and body.
    """

    nodes: int
    depth: int
    far: list[int]
    options: int
    roots: int


def measure_tags(page: bytes, gap_bytes: int, skipped: Sequence[int] = ()) -> Tags:
    """The tags of a page without those that begin at the skipped places (ascending)."""
    cut = max(0, len(page) // WORD_BYTES - 2)
    words = np.frombuffer(page, np.uint64, cut) if cut else _NO_WORDS
    tail = page[WORD_BYTES * cut :]
    tail_words = np.frombuffer(tail + PADDING[: len(PADDING) - len(tail) % WORD_BYTES], np.uint64)
    ignored = np.array([*skipped, -1], np.int64)
    nodes, depth, far, most = _measure_tags((words, tail_words), len(page), gap_bytes, ignored, *_flat_names())
    return Tags(int(nodes), max(int(depth), int(most[NESTED])), far.tolist(), int(most[OPTIONS]), int(most[ROOTS]))


_NO_WORDS = frozen(np.zeros(0, np.uint64))


@cache
def _flat_names() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Flat names as numbers, each at the place of its hash; and as what they are counted."""
    table, counted = np.zeros(1 << FLAT_BITS, np.uint64), np.zeros(1 << FLAT_BITS, np.uint8)
    for name in FLAT:
        number = int.from_bytes(name.encode(), "little")
        place = number * int(MIX) % (1 << 64) >> (64 - FLAT_BITS)
        assert not table[place], f"{name} has the place of another name: FLAT_BITS is too small"
        table[place], counted[place] = number, COUNTED.get(name, 0)
    return table, counted


@kernel
def _measure_tags(
    words: Words,
    size: int,
    gap_bytes: int,
    skipped: NDArray[np.int64],
    flat: NDArray[np.uint64],
    counted: NDArray[np.uint8],
) -> tuple[Int, Int, NDArray[np.int64], NDArray[np.int64]]:
    far = np.empty(size // max(gap_bytes, 1) + 1, np.int64)
    counts, most = np.zeros(4, np.int64), np.zeros(4, np.int64)
    num_far = passed = 0
    nodes: Int = 0
    level: Int = 0
    lowest: Int = 0
    depth: Int = 0
    last: Int = -1
    for place in range(len(words[0]) + len(words[1]) - 2):
        other = _word(words, U(place)) ^ OPENS
        found = ~(((other & SEVENS) + SEVENS) | other | SEVENS)  # the high bit of each byte that is "<"
        while found:
            below = ((found & (~found + U(1))) >> U(7)) - U(1)  # ones in the bytes before the first of them
            i = WORD_BYTES * place + np.int64((below & ONES) * ONES >> U(56))
            found &= found - U(1)
            if last >= 0 and i - last > gap_bytes:
                far[num_far] = last
                num_far += 1
            last = i
            if i == skipped[U(passed)]:
                passed += 1
                continue
            # no branches from here on but one that is seldom taken: half of the tags are end tags, as none can foretell
            is_end = np.int64(_bytes_at(words, U(i + 1)) & U(0xFF) == SLASH)
            name = _name_of(_bytes_at(words, U(i + 1 + is_end)))
            is_tag = np.int64(name != 0)
            nodes += is_tag & (1 - is_end)
            slot = (name * MIX) >> U(64 - FLAT_BITS)
            is_flat = np.int64(flat[slot] == name)
            level += (is_tag & (1 - is_flat)) * (1 - 2 * is_end)
            lowest = min(lowest, level)  # an end tag without its start closes nothing
            depth = max(depth, level - lowest)
            kind = np.int64(counted[slot]) * is_flat
            counts[kind] = max(0, counts[kind] + 1 - is_end - is_end * np.int64(kind == NESTED))
            most[kind] = max(most[kind], counts[kind])
            if name in (SELECT, RUBY):
                counts[OPTIONS] *= np.int64(name != SELECT)
                counts[NESTED] = 0
    if last >= 0 and size - last > gap_bytes:
        far[num_far] = last
        num_far += 1
    return nodes, depth, far[:num_far].copy(), most


@inner
def _word(words: Words, place: np.uint64) -> np.uint64:
    """The word at this place; an unsigned index costs no check."""
    cut = U(len(words[0]))
    return words[0][place] if place < cut else words[1][place - cut]


@inner
def _bytes_at(words: Words, i: np.uint64) -> np.uint64:
    """The 8 bytes from i on, the first one lowest."""
    place, shift = i >> U(3), U(8) * (i & U(7))
    return (_word(words, place) >> shift) | (_word(words, place + U(1)) << U(1) << (U(63) - shift))


@inner
def _name_of(text: np.uint64) -> np.uint64:
    """The tag's name that begins here: lower case, zeros behind its end; 0 where a tag does not begin so.

    All 8 bytes at once, by their high bits.
    """
    low = text & ~HIGHS
    folded = low | CASES
    letters = (folded + FROM_A) & ~(folded + PAST_Z)
    digits = (low + FROM_0) & ~(low + PAST_9)
    others = ~((letters | digits) & ~text) & HIGHS
    name = (text | CASES) & (((others & (~others + U(1))) >> U(7)) - U(1))
    return name if letters & ~text & U(0x80) else U(0)
