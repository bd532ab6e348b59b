"""HTML to text through trafilatura (precise) or resiliparse (fast), in a child process that is recycled.

Conversion never executes or fetches anything. What stays is decided by deterministic limits (page_limits.py),
checked before an extractor sees the page. Time and memory are a wide net: a page that hangs or crashes the extractor is
tried once more alone in a new child, then refused, and costs only itself. A child has an alarm for each page, which
ends it; what it had finished by then is kept.
The default was chosen by measurement (tests/bench/bench_extract.py, article-extraction-benchmark): trafilatura has
token F1 0.964, resiliparse 0.937 at eight times the speed. Both leave comments out; resiliparse also bylines and dates,
which with comments lifts it from 0.920.
"""

import atexit
import contextlib
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.ingest.page_limits import PageLimits, Refused, check_limits

RESULT_PACKAGES = ("resiliparse", "trafilatura", "lxml")

TIMEOUT_SECONDS = 60.0  # wide: the slowest of 800 gold pages takes 1 s
STUCK_SECONDS = 10.0  # more: its alarm did not end the child (it is stopped), or a dying one takes its time
PAGES_PER_CHILD = 5_000  # extractors leak a little; a child costs half a second
CHILD_MEMORY_BYTES = 4 << 30
COLLECT_BYTES = 16 << 20  # pages between two collections of cyclic garbage in the child: about 100 pages
TITLE = re.compile(rb"<title[^>]{0,200}>(.{0,4000}?)</title", re.IGNORECASE | re.DOTALL)
TITLE_WITHIN_BYTES = 1 << 18
TITLE_CHARS = 300  # longer titles are stuffed with keywords

ExtractorName = Literal["resiliparse", "trafilatura", "none"]
EXTRACTORS: tuple[ExtractorName, ...] = get_args(ExtractorName)
REQUEST = struct.Struct("=QBd")  # pages, place of their extractor, seconds that each may take
TEXTS = struct.Struct("=QQ")  # pages that are done, end of their texts in the file
ANSWER = struct.Struct("=Q?")  # bytes of a text; false: of what went wrong
MESSAGE_PAGES, MESSAGE_BYTES = 16, 2 << 20  # of pages that are asked for together: more saves no more


@dataclass(frozen=True, slots=True)
class Page:
    """What an extractor made of a page."""

    text: str
    title: str | None


@dataclass(frozen=True, slots=True)
class Child:
    """A running child, which is asked for several pages at once: waking it costs as much as a twentieth of a page.

    Two nameless files that both see, for a pipe moves pages in many small steps. pages: their sizes (uint64), then
    they. texts: TEXTS, then for each page that is done ANSWER and its text. A byte through the pipe says that all are.
    """

    process: subprocess.Popen[bytes]
    requests: int
    done: int
    pages: int
    texts: int
    waiting: select.poll

    def ask(self, pages: Sequence[bytes], extractor: ExtractorName, timeout_seconds: float) -> list[str | Refused]:
        """What it makes of the pages; of the first of them, where it ended in the one after those."""
        write_whole(self.texts, TEXTS.pack(0, TEXTS.size))
        _write_all(self.pages, [struct.pack(f"={len(pages)}Q", *map(len, pages)), *pages])
        with contextlib.suppress(ConnectionError):  # it has ended: nothing is done
            os.write(self.requests, REQUEST.pack(len(pages), EXTRACTORS.index(extractor), timeout_seconds))
            if self.waiting.poll(1000 * (timeout_seconds * len(pages) + STUCK_SECONDS)):
                os.read(self.done, 1)
        number, end = TEXTS.unpack(os.pread(self.texts, TEXTS.size, 0))
        data, at, answers = os.pread(self.texts, end, 0), TEXTS.size, list[str | Refused]()
        for _ in range(number):
            size, has_text = ANSWER.unpack_from(data, at)
            text = data[at + ANSWER.size : at + ANSWER.size + size].decode("utf-8", "surrogatepass")
            answers.append(text if has_text else Refused("extractor_failed", text))
            at += ANSWER.size + size
        return answers

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for descriptor in (self.requests, self.done, self.pages, self.texts):
            os.close(descriptor)

    def why_ended(self, timeout_seconds: float) -> Refused:
        """What it says of the page in work that it did not finish; ends it where it is stuck."""
        try:
            status = self.process.wait(STUCK_SECONDS)
        except subprocess.TimeoutExpired:
            status = -signal.SIGALRM
        if status == -signal.SIGALRM:
            return Refused("timeout", threshold=timeout_seconds)
        return Refused("extractor_crashed", f"exit status {status}")


def start_child() -> Child:
    """A new child that waits for pages."""
    (asked, requests), (done, finished) = os.pipe(), os.pipe()
    pages, texts = _nameless_file(), _nameless_file()
    # Not multiprocessing: its start methods run the caller's main program again, or copy a process with threads.
    descriptors = asked, finished, pages, texts
    code = f"from tasks.ingest.extract import serve; serve{descriptors}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=descriptors, env=environment)
    os.close(asked)
    os.close(finished)
    waiting = select.poll()
    waiting.register(done, select.POLLIN)
    return Child(process, requests, done, pages, texts, waiting)


def _nameless_file() -> int:
    """Memory where the system gives some as a file (Linux), else a file in the temporary folder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pages")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_all(descriptor: int, pieces: Sequence[bytes]) -> None:
    """Write the pieces one behind the other, which copies nothing before."""
    if os.pwritev(descriptor, pieces, 0) < sum(map(len, pieces)):
        write_whole(descriptor, b"".join(pieces))


def write_whole(descriptor: int, data: bytes, at: int = 0) -> None:
    """Write data to a file, from this place on. Raises OSError where there is no room."""
    written = os.pwrite(descriptor, data, at)
    while written < len(data):  # at most 2 GiB a call
        written += os.pwrite(descriptor, data[written:], at + written)


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
        return self.extract_pages([page], extractor, limits)[0]

    def extract_pages(
        self, pages: Sequence[bytes], extractor: ExtractorName, limits: PageLimits | None = None
    ) -> list[Page | Refused]:
        """The same of any number of pages, MESSAGE_PAGES of which at a time share the cost of asking."""
        limits = limits or PageLimits()
        found: list[Page | Refused | None] = [check_limits(page, limits) for page in pages]
        wanted = [index for index, refused in enumerate(found) if refused is None]
        answers = self._ask_all([pages[index] for index in wanted], extractor)
        for index, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, str):
                has_text = extractor == "none" or answer.strip()
                found[index] = Page(answer, title_of(pages[index])) if has_text else Refused("no_content")
            else:
                found[index] = answer
        return [answer for answer in found if answer is not None]

    def _ask_all(self, pages: Sequence[bytes], extractor: ExtractorName) -> list[str | Refused]:
        """The children's answers. A page in which one ended is asked for once more, alone."""
        if extractor == "none":
            return [page.decode("utf-8") for page in pages]
        answers: list[str | Refused] = []
        while len(answers) < len(pages):
            first = self._ask(pages[len(answers) :], extractor)
            if isinstance(first[-1], Refused) and first[-1].reason in ("timeout", "extractor_crashed"):
                first[-1:] = self._ask(pages[len(answers) + len(first) - 1 :][:1], extractor)
            answers += first
        return answers

    def _ask(self, pages: Sequence[bytes], extractor: ExtractorName) -> list[str | Refused]:
        """A child's answers to the first of the pages: to all, or to those up to the one in which it ended."""
        if self._pages >= self.pages_per_child:
            self.close()
        if self.child is None:
            self.child, self._pages = start_child(), 0
            self.children_started += 1
        asked = pages[: min(MESSAGE_PAGES, self.pages_per_child - self._pages)]
        self._pages += len(asked)
        answers = self.child.ask(asked, extractor, self.timeout_seconds)
        if len(answers) < len(asked):
            answers.append(self.child.why_ended(self.timeout_seconds))
            self.close()
        return answers

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


def serve(requests: int, finished: int, pages: int, texts: int) -> None:
    """The child's loop: pages in, texts out, until the parent closes its end; a page that takes too long ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = CHILD_MEMORY_BYTES if soft == resource.RLIM_INFINITY else min(CHILD_MEMORY_BYTES, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, soft))
    gc.disable()  # a fifth of the time; few cycles come up, and they are collected below
    gc.freeze()  # what was imported stays: else each collection would cost as much as six pages
    seen_bytes = 0
    while request := os.read(requests, REQUEST.size):
        number, extractor, timeout_seconds = REQUEST.unpack(request)
        at, end = 8 * number, TEXTS.size
        for done, size in enumerate(struct.unpack(f"={number}Q", os.pread(pages, at, 0)), start=1):
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
            found = run_extractor(os.pread(pages, size, at), EXTRACTORS[extractor])
            text = (found if isinstance(found, str) else found.detail).encode("utf-8", "surrogatepass")
            write_whole(texts, ANSWER.pack(len(text), isinstance(found, str)) + text, end)
            at, end = at + size, end + ANSWER.size + len(text)
            write_whole(texts, TEXTS.pack(done, end))
            seen_bytes += size
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(finished, b"!")
        if seen_bytes > COLLECT_BYTES:
            gc.collect()
            seen_bytes = 0


def run_extractor(page: bytes, extractor: ExtractorName) -> str | Refused:
    """The text of a page (UTF-8), in this process. What extractors raise on broken pages is a refusal, no failure."""
    try:
        if extractor == "trafilatura":
            import trafilatura  # late: half a second, and only the child needs it

            # deduplicate keeps state between pages, so a text would depend on what came before it
            text = trafilatura.extract(page.decode(), fast=True, include_comments=False, deduplicate=False) or ""
        else:
            tree = HTMLTree.parse_from_bytes(page, "utf-8", "strict")  # decoding first would cost a thirtieth more
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
