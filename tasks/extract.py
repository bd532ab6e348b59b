"""HTML to text through trafilatura (precise) or resiliparse (fast), in a child process that is recycled.

Conversion never executes or fetches anything. What stays is decided by deterministic limits (tasks/page_limits.py),
checked before an extractor sees the page. Time and memory are a wide net: a page that hangs or crashes the extractor is
tried once more alone in a new child, then refused, and costs only itself.
The default was chosen by measurement (tests/bench/bench_extract.py, article-extraction-benchmark): trafilatura has
token F1 0.964, resiliparse 0.937 at eight times the speed. Both leave comments out; resiliparse also bylines and dates,
which with comments lifts it from 0.920.
"""

import atexit
import gc
import html
import os
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.page_limits import PageLimits, Refused, check_limits

RESULT_PACKAGES = ("resiliparse", "trafilatura", "lxml")

TIMEOUT_SECONDS = 60.0  # wide: the slowest of 800 gold pages takes 1 s
ORPHAN_SECONDS = 120  # a page still in work then has no parent that waits for it
PAGES_PER_CHILD = 5_000  # extractors leak a little; a child costs half a second
CHILD_MEMORY_BYTES = 4 << 30
COLLECT_BYTES = 16 << 20  # pages between two collections of cyclic garbage in the child: about 100 pages
TITLE = re.compile(rb"<title[^>]{0,200}>(.{0,4000}?)</title", re.IGNORECASE | re.DOTALL)
TITLE_WITHIN_BYTES = 1 << 18
TITLE_CHARS = 300  # longer titles are stuffed with keywords

ExtractorName = Literal["resiliparse", "trafilatura", "none"]
EXTRACTORS: tuple[ExtractorName, ...] = get_args(ExtractorName)
REQUEST = struct.Struct("=QB")  # bytes of the page, place of its extractor
ANSWER = struct.Struct("=Q?")  # bytes of the text; false: of what went wrong


@dataclass(frozen=True, slots=True)
class Page:
    """What an extractor made of a page."""

    text: str
    title: str | None


@dataclass(frozen=True, slots=True)
class Child:
    """A running child.

    pages: a nameless file both see, which holds the page and then its text, for a pipe moves them in many small steps;
    requests, answers: pipes of REQUEST and ANSWER, which come whole.
    """

    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    pages: int
    waiting: select.poll

    def ask(self, page: bytes, extractor: ExtractorName, timeout_seconds: float) -> str | Refused:
        """What it makes of a page. Raises EOFError or ConnectionError when it ends instead."""
        write_whole(self.pages, page)
        os.write(self.requests, REQUEST.pack(len(page), EXTRACTORS.index(extractor)))
        if not self.waiting.poll(1000 * timeout_seconds):
            return Refused("timeout", threshold=timeout_seconds)
        answer = os.read(self.answers, ANSWER.size)
        if len(answer) < ANSWER.size:
            raise EOFError("the child ended")
        size, has_text = ANSWER.unpack(answer)
        text = os.pread(self.pages, size, 0).decode("utf-8", "surrogatepass")
        return text if has_text else Refused("extractor_failed", text)

    def end(self) -> int:
        """End it; returns its exit status (its own, where it ended before)."""
        status = self.process.poll()
        self.process.kill()
        self.process.wait()
        for descriptor in (self.requests, self.answers, self.pages):
            os.close(descriptor)
        return self.process.returncode if status is None else status


def start_child() -> Child:
    """A new child that waits for pages."""
    (asked, requests), (answers, answered) = os.pipe(), os.pipe()
    # memory where the system gives some as a file (Linux), else the temporary folder
    pages = os.memfd_create("page") if hasattr(os, "memfd_create") else _nameless_file()
    # Not multiprocessing: its start methods run the caller's main program again, or copy a process with threads.
    descriptors = asked, answered, pages
    code = f"from tasks.extract import serve; serve{descriptors}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=descriptors, env=environment)
    os.close(asked)
    os.close(answered)
    waiting = select.poll()
    waiting.register(answers, select.POLLIN)
    return Child(process, requests, answers, pages, waiting)


def _nameless_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write_whole(descriptor: int, data: bytes) -> None:
    """Write data from the start of a file on. Raises OSError where there is no room."""
    written = os.pwrite(descriptor, data, 0)
    while written < len(data):  # at most 2 GiB a call
        written += os.pwrite(descriptor, data[written:], written)


class PageExtractor:
    """Extracts pages in one child process, started when first needed; close it, or use `shared_extractor`."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS, pages_per_child: int = PAGES_PER_CHILD) -> None:
        self.timeout_seconds = timeout_seconds
        self.pages_per_child = pages_per_child
        self.children_started = 0
        self.child: Child | None = None
        self._pages = 0

    def extract(self, page: bytes, extractor: ExtractorName, limits: PageLimits | None = None) -> Page | Refused:
        """Text and title of a page (UTF-8 without a byte order mark), or why there is none."""
        refused = check_limits(page, limits or PageLimits())
        if refused:
            return refused
        if extractor == "none":
            return Page(page.decode("utf-8"), title_of(page))
        if self._pages >= self.pages_per_child:
            self.close()
        answer = self._ask(page, extractor)
        if isinstance(answer, Refused) and answer.reason in ("timeout", "extractor_crashed"):
            answer = self._ask(page, extractor)  # once more, alone in a new child
        if isinstance(answer, str):
            return Page(answer, title_of(page)) if answer.strip() else Refused("no_content")
        return answer

    def _ask(self, page: bytes, extractor: ExtractorName) -> str | Refused:
        """The child's answer; a child that gave none is ended."""
        if self.child is None:
            self.child, self._pages = start_child(), 0
            self.children_started += 1
        self._pages += 1
        try:
            answer = self.child.ask(page, extractor, self.timeout_seconds)
        except (EOFError, ConnectionError) as error:
            self.child.process.wait()
            answer = Refused("extractor_crashed", f"{type(error).__name__}, exit status {self.child.end()}")
            self.child = None
        if isinstance(answer, Refused) and answer.reason == "timeout":
            self.close()
        return answer

    def close(self) -> None:
        """End the child; the next page starts a new one."""
        if self.child:
            self.child.end()
        self.child = None


@lru_cache(maxsize=1)
def shared_extractor() -> PageExtractor:
    """The extractor of this process, kept between parts: starting a child costs half a second."""
    extractor = PageExtractor()
    atexit.register(extractor.close)
    return extractor


def serve(requests: int, answers: int, pages: int) -> None:
    """The child's loop: pages in, texts out, until the parent closes its end; a page may take ORPHAN_SECONDS."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = CHILD_MEMORY_BYTES if soft == resource.RLIM_INFINITY else min(CHILD_MEMORY_BYTES, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, soft))
    gc.disable()  # a fifth of the time; few cycles come up, and they are collected below
    seen_bytes = 0
    while request := os.read(requests, REQUEST.size):
        size, extractor = REQUEST.unpack(request)
        signal.alarm(ORPHAN_SECONDS)
        found = run_extractor(os.pread(pages, size, 0).decode("utf-8"), EXTRACTORS[extractor])
        data = (found if isinstance(found, str) else found.detail).encode("utf-8", "surrogatepass")
        write_whole(pages, data)
        os.write(answers, ANSWER.pack(len(data), isinstance(found, str)))
        signal.alarm(0)
        seen_bytes += size
        if seen_bytes > COLLECT_BYTES:
            gc.collect()
            seen_bytes = 0


def run_extractor(page: str, extractor: ExtractorName) -> str | Refused:
    """The text of a page, in this process. What extractors raise on broken pages is a refusal, not a failure."""
    try:
        if extractor == "trafilatura":
            import trafilatura  # late: half a second, and only the child needs it

            # deduplicate keeps state between pages, so a text would depend on what came before it
            text = trafilatura.extract(page, fast=True, include_comments=False, deduplicate=False) or ""
        else:
            tree = HTMLTree.parse(page)
            text = str(extract_plain_text(tree, main_content=True, alt_texts=False, comments=False, post_meta=False))
        return text.replace("\xa0", " ")  # no-break spaces are layout, and would glue words together
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError) as error:
        return Refused("extractor_failed", f"{type(error).__name__}: {error}"[:300])


def title_of(page: bytes) -> str | None:
    """The page's title on one line, or None."""
    found = TITLE.search(page, 0, TITLE_WITHIN_BYTES)
    raw = found.group(1).decode("utf-8", "ignore") if found else ""
    title = " ".join(html.unescape(raw).split())[:TITLE_CHARS]
    return title or None
