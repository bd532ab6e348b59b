"""HTML to text through resiliparse (fast) or trafilatura (precise), in a child process that is recycled.

Conversion never executes or fetches anything. What stays is decided by deterministic limits (bytes, nodes, depth,
attributes), checked before an extractor sees the page: resiliparse needs time quadratic in the depth (0.16 s at 2,000
nested tags, 4.8 s at 10,000; measured) and in the attributes of one tag (0.01 s at 2,000, 1.5 s at 20,000). Time and
memory are a wide net: a page that hangs or crashes the extractor is tried once more alone in a new child, then refused,
and costs only itself.
Measured on article-extraction-benchmark, one core: resiliparse F1 0.92 at 798 pages/s; trafilatura (fast) 0.96 at 98.
"""

import atexit
import html
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

RESULT_PACKAGES = ("resiliparse", "trafilatura", "lxml")

TIMEOUT_SECONDS = 60.0  # wide: the slowest of 800 gold pages takes 1 s
ORPHAN_SECONDS = 120  # a page still in work then has no parent that waits for it
PAGES_PER_CHILD = 5_000  # extractors leak a little; a child costs half a second
CHILD_MEMORY_BYTES = 4 << 30
TITLE = re.compile(r"<title[^>]{0,200}>(.{0,2000}?)</title", re.IGNORECASE | re.DOTALL)
TITLE_CHARS = 300  # longer titles are stuffed with keywords
# Elements without content, and those whose end tag may be left out: neither deepens a page by itself.
FLAT = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"),
    *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
    *("tbody", "td", "tfoot", "th", "thead", "tr"),
)
# A start tag as browsers read it: ">" inside a quoted value does not end it. Possessive, so linear in its length.
START_TAG = re.compile(rb"""<[a-z][^\s/>]*+((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)""", re.IGNORECASE)
ATTRIBUTE = re.compile(rb"""[^\s/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|\S*+))?""")
ATTRIBUTE_BYTES = 2  # the shortest: a letter and what parts it from the next
NAME_BYTES = 8
ORD_SLASH = ord("/")

ExtractorName = Literal["resiliparse", "trafilatura", "none"]
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
class Page:
    """What an extractor made of a page."""

    text: str
    title: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a page gave no text; `value` and `threshold` where a limit was passed."""

    reason: Refusal
    detail: str = ""
    value: float | None = None
    threshold: float | None = None


class PageExtractor:
    """Extracts pages in one child process, started when first needed; close it, or use `shared_extractor`."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS, pages_per_child: int = PAGES_PER_CHILD) -> None:
        self.timeout_seconds = timeout_seconds
        self.pages_per_child = pages_per_child
        self.children_started = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._pages = 0

    def extract(self, page: str, extractor: ExtractorName, limits: PageLimits | None = None) -> Page | Refused:
        """Text and title of a page, or why there is none."""
        data = page.encode("utf-8", "replace")
        refused = check_limits(data, limits or PageLimits())
        if refused:
            return refused
        if extractor == "none":
            return Page(page, title_of(page))
        if self._pages >= self.pages_per_child:
            self.close()
        answer = self._ask(data, extractor)
        if isinstance(answer, Refused) and answer.reason in ("timeout", "extractor_crashed"):
            answer = self._ask(data, extractor)  # once more, alone in a new child
        if isinstance(answer, str):
            return Page(answer, title_of(page)) if answer.strip() else Refused("no_content")
        return answer

    def _ask(self, page: bytes, extractor: ExtractorName) -> str | Refused:
        """The child's answer; a child that gave none is ended."""
        pipe = self._pipe or self._start()
        self._pages += 1
        try:
            pipe.send((page, extractor))
            if pipe.poll(self.timeout_seconds):
                answer: str | Refused = pipe.recv()
                return answer
            refused = Refused("timeout", threshold=self.timeout_seconds)
        except (EOFError, ConnectionError) as error:
            status = self._child.wait() if self._child else None
            refused = Refused("extractor_crashed", f"{type(error).__name__}, exit status {status}")
        self.close()
        return refused

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        # Not multiprocessing: its start methods run the caller's main program again, or copy a process with threads.
        code = f"from tasks.extract import serve; serve({theirs.fileno()})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        self._child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self._pipe, self._pages = ours, 0
        self.children_started += 1
        return ours

    def close(self) -> None:
        """End the child; the next page starts a new one."""
        if self._pipe:
            self._pipe.close()
        if self._child:
            self._child.kill()
            self._child.wait()
        self._pipe, self._child = None, None


@lru_cache(maxsize=1)
def shared_extractor() -> PageExtractor:
    """The extractor of this process, kept between parts: starting a child costs half a second."""
    extractor = PageExtractor()
    atexit.register(extractor.close)
    return extractor


def serve(descriptor: int) -> None:
    """The child's loop: pages in, texts out, until the parent closes its end; a page may take ORPHAN_SECONDS."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = CHILD_MEMORY_BYTES if soft == resource.RLIM_INFINITY else min(CHILD_MEMORY_BYTES, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, soft))
    pipe = Connection(descriptor)
    while True:
        try:
            page, extractor = pipe.recv()
        except EOFError:
            return
        signal.alarm(ORPHAN_SECONDS)
        pipe.send(run_extractor(page.decode("utf-8"), extractor))
        signal.alarm(0)


def run_extractor(page: str, extractor: ExtractorName) -> str | Refused:
    """The text of a page, in this process. What extractors raise on broken pages is a refusal, not a failure."""
    try:
        if extractor == "trafilatura":
            import trafilatura  # late: half a second, and only the child needs it

            # deduplicate keeps state between pages, so a text would depend on what came before it
            return trafilatura.extract(page, fast=True, include_comments=False, deduplicate=False) or ""
        text = str(extract_plain_text(HTMLTree.parse(page), main_content=True, alt_texts=False))
        return text.replace("\xa0", " ")  # no-break spaces are layout, and would glue words together
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError) as error:
        return Refused("extractor_failed", f"{type(error).__name__}: {error}"[:300])


def check_limits(page: bytes, limits: PageLimits) -> Refused | None:
    """The limit that a page (UTF-8) passes, or None. About 0.3 ms for 100 kB, a tenth of the fast extractor's time."""
    if len(page) > limits.max_bytes:
        return Refused("too_large", value=len(page), threshold=limits.max_bytes)
    nodes, depth = measure_tags(page)
    if nodes > limits.max_nodes:
        return Refused("too_many_nodes", value=nodes, threshold=limits.max_nodes)
    if depth > limits.max_depth:
        return Refused("too_deep", value=depth, threshold=limits.max_depth)
    attributes = count_attributes(page, limits.max_attributes)
    if attributes > limits.max_attributes:
        return Refused("too_many_attributes", value=attributes, threshold=limits.max_attributes)
    return None


def count_attributes(page: bytes, limit: int) -> int:
    """The most attributes in one start tag, of the tags that may have more than `limit`; 0 without such a tag.

    Only a tag that another "<" follows late enough is read. Tags in its values hide a longer one from this; by
    accident none has so many attributes as well.
    """
    starts = np.append(np.flatnonzero(np.frombuffer(page, dtype=np.uint8) == ord("<")), len(page))
    most = end = 0
    for start in starts[:-1][np.diff(starts) > ATTRIBUTE_BYTES * limit].tolist():
        tag = START_TAG.match(page, start) if start >= end else None  # inside a tag already read: no second time
        if tag:
            end = tag.end()
            most = max(most, sum(1 for _ in ATTRIBUTE.finditer(tag[1])))
    return most


def measure_tags(data: bytes) -> tuple[int, int]:
    """(start tags, greatest nesting) of a page, from its bytes alone: no parser that could itself go too deep."""
    page = np.frombuffer(data + bytes(NAME_BYTES + 2), dtype=np.uint8)
    tags = np.flatnonzero(page[: len(data)] == ord("<")) + 1
    is_end = page[tags] == ORD_SLASH
    names = tags + is_end
    letters = page[names] | 0x20
    is_tag = (letters >= ord("a")) & (letters <= ord("z"))
    is_end, names = is_end[is_tag], names[is_tag]
    deepens = ~_is_flat(page, names)
    change = np.where(is_end, -1, 1)[deepens]
    level = np.cumsum(change)
    # an end tag without its start closes nothing: levels count from the lowest one so far
    depth = level - np.minimum(np.minimum.accumulate(level), 0) if level.size else level
    return int((~is_end).sum()), int(depth.max(initial=0))


def _is_flat(page: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Which tag names (at these positions) are in FLAT: the name as one number, cut at its first non-letter."""
    letters = page[names[:, None] + np.arange(NAME_BYTES)]
    lower = letters | 0x20
    is_name = ((lower >= ord("a")) & (lower <= ord("z"))) | ((letters >= ord("0")) & (letters <= ord("9")))
    kept = np.where(np.logical_and.accumulate(is_name, axis=1), lower, 0).astype(np.uint8)
    return np.isin(np.ascontiguousarray(kept).view(np.uint64)[:, 0], _FLAT_NUMBERS)


_FLAT_NUMBERS = np.array(
    [name[:NAME_BYTES].encode().ljust(NAME_BYTES, b"\0") for name in FLAT], dtype=f"S{NAME_BYTES}"
).view(np.uint64)


def title_of(page: str) -> str | None:
    """The page's title on one line, or None."""
    found = TITLE.search(page[: 1 << 18])
    title = " ".join(html.unescape(found.group(1)).split())[:TITLE_CHARS] if found else ""
    return title or None
