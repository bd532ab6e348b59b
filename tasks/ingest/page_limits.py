"""What a page may cost before an extractor sees it: bytes, tags, nesting, attributes, read from its bytes alone.

No parser, for one could itself go too deep. Extractors need time quadratic in the nesting (resiliparse: 0.16 s at 2,000
nested tags, 4.8 s at 10,000), in the attributes of one tag (0.01 s at 2,000, 1.5 s at 20,000; those of a second <body>
go to the first), and in the options of one <select> (0.03 s at 2,000, 0.5 s at 8,000). Of the other kinds of
tags, marks and texts tried, up to 64,000 of each, none takes resiliparse more than linear time. trafilatura takes more
in several (8 s for 48,000 <p>, half of it libxml2's merging of node sets; 14 s for 12,000 <b> in one <p>, 91 s for
24,000): a limit on each would refuse pages that are none of these, so only the wide net of time bounds it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from tasks.config import Size

# Elements of drawings: there, and only there, "<path/>" is closed. A page may hold thousands.
DRAWN = re.compile(rb"<(?:path|circle|ellipse|rect|line|polygon|polyline|use|stop|g|animate|image)\b[^>]*/>", re.I)
# A start tag as browsers read it: ">" inside a quoted value does not end it. Possessive, so linear in its length.
START_TAG = re.compile(rb"""<[a-z][^\s/>]*+((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)""", re.IGNORECASE)
ATTRIBUTE = re.compile(rb"""[^\s/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|\S*+))?""")
ATTRIBUTE_BYTES = 2  # the shortest: a letter and what parts it from the next

Refusal = Literal[
    "too_large", "too_many_nodes", "too_deep", "too_many_attributes", "too_many_options",
    "no_content", "extractor_failed", "extractor_crashed", "timeout",
]  # fmt: skip


class PageLimits(BaseModel, frozen=True, extra="forbid", strict=True):
    """What a page may cost; a page beyond a limit is an error row with the limit's name."""

    max_bytes: Size = Field(default=8 << 20, description="bytes of the page; Common Crawl cuts at 1 to 5 MB")
    max_nodes: Size = Field(default=200_000, description="start tags of the page")
    max_depth: Size = Field(default=1_000, description="nesting of tags (those without end tags not counted)")
    max_attributes: Size = Field(default=2_000, description="attributes of one tag")
    max_options: Size = Field(
        default=5_000, description="options of one <select>", json_schema_extra={"neutral": 5_000}
    )


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a page gave no text; `value` and `threshold` where a limit was passed."""

    reason: Refusal
    detail: str = ""
    value: float | None = None
    threshold: float | None = None


def check_limits(page: bytes, limits: PageLimits) -> Refused | None:
    """The limit that a page (UTF-8) passes, or None. Costs about 0.06 ms for 100 kB, a thirtieth of fast extraction."""
    from tasks.kernels.page_tags import measure_tags  # late: numba, which the limits of a recipe do not need

    if len(page) > limits.max_bytes:
        return Refused("too_large", value=len(page), threshold=limits.max_bytes)
    gap_bytes = ATTRIBUTE_BYTES * limits.max_attributes
    tags = measure_tags(page, gap_bytes)
    if tags.nodes > limits.max_nodes:
        return Refused("too_many_nodes", value=tags.nodes, threshold=limits.max_nodes)
    depth = tags.depth
    if depth > limits.max_depth:  # exactly, now: slower
        depth = measure_tags(page, gap_bytes, [found.start() for found in DRAWN.finditer(page)]).depth
    if depth > limits.max_depth:
        return Refused("too_deep", value=depth, threshold=limits.max_depth)
    if tags.options > limits.max_options:
        return Refused("too_many_options", value=tags.options, threshold=limits.max_options)
    attributes = max(count_attributes(page, tags.far, gap_bytes), tags.roots)  # each may add one
    if attributes > limits.max_attributes:
        return Refused("too_many_attributes", value=attributes, threshold=limits.max_attributes)
    return None


def count_attributes(page: bytes, starts: Sequence[int], short_bytes: int) -> int:
    """The most attributes in one of the start tags that may begin at these places and end after short_bytes; else 0.

    Only a tag that another "<" follows late enough is read. Tags in its values hide a longer one from this; by
    accident none has so many attributes as well.
    """
    most = end = 0
    for start in starts:
        if start < end or _is_short(page, start, short_bytes):  # inside a tag already read: no second time
            continue
        tag = START_TAG.match(page, start)
        if tag:
            end = tag.end()
            most = max(most, sum(1 for _ in ATTRIBUTE.finditer(tag[1])))
    return most


def _is_short(page: bytes, start: int, short_bytes: int) -> bool:
    """Whether a ">" that no quotation mark stands before ends the tag by then: cheap to see."""
    end = page.find(b">", start, start + short_bytes)
    return end >= 0 and page.find(b'"', start, end) < 0 and page.find(b"'", start, end) < 0
