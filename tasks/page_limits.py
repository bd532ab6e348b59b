"""What a page may cost before an extractor sees it: bytes, tags, nesting, attributes, read from its bytes alone.

No parser, for one could itself go too deep. Extractors need time quadratic in the nesting (resiliparse: 0.16 s at 2,000
nested tags, 4.8 s at 10,000) and in the attributes of one tag (0.01 s at 2,000, 1.5 s at 20,000; measured).
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

# Elements without content, and those whose end tag may be left out: neither deepens a page by itself.
FLAT = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"),
    *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
    *("tbody", "td", "tfoot", "th", "thead", "tr"),
)
# Elements of drawings: there, and only there, "<path/>" is closed. A page may hold thousands.
DRAWN = re.compile(rb"<(?:path|circle|ellipse|rect|line|polygon|polyline|use|stop|g|animate|image)\b[^>]*/>", re.I)
# A start tag as browsers read it: ">" inside a quoted value does not end it. Possessive, so linear in its length.
START_TAG = re.compile(rb"""<[a-z][^\s/>]*+((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)""", re.IGNORECASE)
ATTRIBUTE = re.compile(rb"""[^\s/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|\S*+))?""")
ATTRIBUTE_BYTES = 2  # the shortest: a letter and what parts it from the next
NAME_BYTES = 8  # of a tag's name, compared as one number

Refusal = Literal[
    "too_large", "too_many_nodes", "too_deep", "too_many_attributes",
    "no_content", "extractor_failed", "extractor_crashed", "timeout",
]  # fmt: skip


class PageLimits(BaseModel, frozen=True, extra="forbid"):
    """What a page may cost; a page beyond a limit is an error row with the limit's name."""

    max_bytes: int = Field(default=8 << 20, ge=1, description="bytes of the page; Common Crawl cuts at 1 to 5 MB")
    max_nodes: int = Field(default=200_000, ge=1, description="start tags of the page")
    max_depth: int = Field(default=1_000, ge=1, description="nesting of tags (those without end tags not counted)")
    max_attributes: int = Field(default=2_000, ge=1, description="attributes of one tag")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a page gave no text; `value` and `threshold` where a limit was passed."""

    reason: Refusal
    detail: str = ""
    value: float | None = None
    threshold: float | None = None


def check_limits(page: bytes, limits: PageLimits) -> Refused | None:
    """The limit that a page (UTF-8) passes, or None. Costs about 0.1 ms for 100 kB, a seventh of fast extraction."""
    if len(page) > limits.max_bytes:
        return Refused("too_large", value=len(page), threshold=limits.max_bytes)
    starts = tag_starts(page)
    if len(starts) - page.count(b"</") > min(limits.max_nodes, limits.max_depth):  # else neither limit can be passed
        nodes, depth = measure_tags(page, starts)
        if nodes > limits.max_nodes:
            return Refused("too_many_nodes", value=nodes, threshold=limits.max_nodes)
        if depth > limits.max_depth:  # exactly, now: slower
            depth = measure_tags(page, starts[~is_closed_drawing(page, starts)])[1]
        if depth > limits.max_depth:
            return Refused("too_deep", value=depth, threshold=limits.max_depth)
    attributes = count_attributes(page, starts, limits.max_attributes)
    if attributes > limits.max_attributes:
        return Refused("too_many_attributes", value=attributes, threshold=limits.max_attributes)
    return None


def tag_starts(page: bytes) -> np.ndarray:
    """Where each "<" of a page stands."""
    return np.flatnonzero(np.frombuffer(page, dtype=np.uint8) == ord("<"))


def measure_tags(page: bytes, starts: np.ndarray) -> tuple[int, int]:
    """(start tags, greatest nesting) of a page, given its `tag_starts`."""
    padded = np.frombuffer(page + bytes(NAME_BYTES + 2), dtype=np.uint8)
    is_end = padded[starts + 1] == ord("/")
    words = np.ndarray(len(page) + 3, "<u8", padded, strides=(1,))  # 8 bytes from every byte on
    names = names_of(words[starts + 1 + is_end])
    first = names & np.uint64(0xFF)
    is_tag = (first >= ord("a")) & (first <= ord("z"))
    deepens = is_tag & (_FLAT_NAMES[np.searchsorted(_FLAT_NAMES[:-1], names)] != names)
    level = np.cumsum(np.where(is_end[deepens], np.int32(-1), np.int32(1)), dtype=np.int32)
    # an end tag without its start closes nothing: levels count from the lowest one so far
    depth = level - np.minimum(np.minimum.accumulate(level), 0) if level.size else level
    return int((is_tag & ~is_end).sum()), int(depth.max(initial=0))


def is_closed_drawing(page: bytes, starts: np.ndarray) -> np.ndarray:
    """Which of the tags at these places are parts of drawings that close themselves."""
    return np.isin(starts, [found.start() for found in DRAWN.finditer(page)])


def count_attributes(page: bytes, starts: np.ndarray, limit: int) -> int:
    """The most attributes in one start tag, of the tags that may have more than `limit`; 0 without such a tag.

    Only a tag that another "<" follows late enough is read. Tags in its values hide a longer one from this; by
    accident none has so many attributes as well.
    """
    most = end = 0
    for start in starts[np.diff(starts, append=len(page)) > ATTRIBUTE_BYTES * limit].tolist():
        tag = START_TAG.match(page, start) if start >= end else None  # inside a tag already read: no second time
        if tag:
            end = tag.end()
            most = max(most, sum(1 for _ in ATTRIBUTE.finditer(tag[1])))
    return most


def names_of(words: np.ndarray) -> np.ndarray:
    """Tag names at the start of 8 bytes each (one uint64, first byte lowest): lower case, zeros behind their end.

    All 8 bytes at once: adding 0x80 - b to a byte below 0x80 sets its high bit where it is at least b.
    """
    low = words & ~_HIGH_BITS
    folded = low | _CASE_BITS
    letters = (folded + _at_least("a")) & ~(folded + _at_least("{"))  # { follows z
    digits = (low + _at_least("0")) & ~(low + _at_least(":"))  # : follows 9
    others = ~((letters | digits) & ~words) & _HIGH_BITS
    first_other = others & (~others + np.uint64(1))
    return (words | _CASE_BITS) & ((first_other >> np.uint64(7)) - np.uint64(1))


def _each_byte(value: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([value]) * NAME_BYTES, "little"))


def _at_least(char: str) -> np.uint64:
    return _each_byte(0x80 - ord(char))


_HIGH_BITS, _CASE_BITS = _each_byte(0x80), _each_byte(0x20)
# sorted, with one above them all that no name equals
_FLAT_NAMES = np.array(
    [*sorted(int.from_bytes(name.encode(), "little") for name in FLAT), np.iinfo(np.uint64).max], np.uint64
)
