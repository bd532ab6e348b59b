"""Extraction: token F1 on pages with a text made by hand, and pages per CPU-second through the path that ingest takes.

`pytest tests/bench/bench_extract.py -m bench -s` prints two lines per extractor. F1: mean over the pages of
article-extraction-benchmark of the F1 of two bags of words; that benchmark's own figure (4-word shingles, precision and
recall averaged first) beside it. Speed: PageExtractor (limits, child process, title; CPU time of both processes) beside
the library called on the same pages in this process, a message of pages in turn, so that other work on the machine hits
both. Both begin with the bytes of a page in UTF-8: decoding them is a thirtieth of resiliparse's time.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest
import trafilatura
from resiliparse.extract.html2text import extract_plain_text

from tasks.ingest import SourceConfig
from tasks.ingest.charset import decode_bytes
from tasks.ingest.extract import MESSAGE_PAGES, ExtractorName, Page, PageExtractor

GOLD = Path(__file__).parents[3] / "shared/data/gold"
SETS = ("aeb", "readability", "newspaper", "goose3_prefix", "trafilatura")  # whose pages are timed
EVERY = 8  # one page in so many
PASSES = 8  # a busy machine only adds to the least of them
TARGETS: dict[ExtractorName, tuple[float, int]] = {"trafilatura": (0.96, 90), "resiliparse": (0.92, 750)}
QUIET: dict[ExtractorName, int] = {"trafilatura": 98, "resiliparse": 798}  # the peers' pages/s on a quiet core

Peer = Callable[[str], str | None]
PEERS: dict[ExtractorName, dict[str, Peer]] = {
    "trafilatura": {
        "trafilatura fast": lambda page: trafilatura.extract(page, fast=True, include_comments=False),
        "trafilatura": lambda page: trafilatura.extract(page, include_comments=False),
    },
    "resiliparse": {"resiliparse": lambda page: extract_plain_text(page, main_content=True, alt_texts=False)},
}


def shingles(text: str, size: int) -> Counter[tuple[str, ...]]:
    """The bag of word n-grams; a shorter text is one."""
    words = re.findall(r"\w+", text)
    return Counter(tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))) if words else Counter()


def precision_recall(gold: str, found: str, size: int) -> tuple[float, float]:
    """Of one page."""
    wanted, got = shingles(gold, size), shingles(found, size)
    shared = (wanted & got).total()
    return shared / got.total() if got else float(not wanted), shared / wanted.total() if wanted else float(not got)


def harmonic(precision: float, recall: float) -> float:
    """F1."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def scores(gold: list[str], found: list[str]) -> tuple[float, float]:
    """(mean F1 of words, the benchmark's F1 of 4-word shingles)."""
    pairs = list(zip(gold, found, strict=True))
    words = fmean(harmonic(*precision_recall(wanted, got, 1)) for wanted, got in pairs)
    shingled = [precision_recall(wanted, got, 4) for wanted, got in pairs]
    return words, harmonic(fmean(p for p, _ in shingled), fmean(r for _, r in shingled))


def child_seconds(extractor: PageExtractor) -> float:
    """CPU time of the running child, by the clock that Linux has for each process."""
    return time.clock_gettime((~extractor.child.process.pid << 3) | 2) if extractor.child else 0.0


def seconds_per_page(name: ExtractorName, peer: Peer, pages: list[bytes]) -> tuple[float, float]:
    """CPU-seconds of (ours, peer), for each group of pages the least of some passes."""
    extractor = PageExtractor()
    groups = [pages[at : at + MESSAGE_PAGES] for at in range(0, len(pages), MESSAGE_PAGES)]
    extractor.extract_pages(groups[0], name)
    ours, theirs = [float("inf")] * len(groups), [float("inf")] * len(groups)
    for _ in range(PASSES):
        for at, group in enumerate(groups):
            begun = time.process_time()
            for page in group:
                peer(page.decode())
            theirs[at] = min(theirs[at], time.process_time() - begun)
            begun, child = time.process_time(), child_seconds(extractor)
            extractor.extract_pages(group, name)
            ours[at] = min(ours[at], time.process_time() - begun + child_seconds(extractor) - child)
    extractor.close()
    return sum(ours) / len(pages), sum(theirs) / len(pages)


def pages_of(name: str) -> tuple[list[bytes], list[str]]:
    """(pages in UTF-8, their texts made by hand)."""
    table = pq.read_table(GOLD / f"extraction_{name}.parquet", columns=["html", "gold_text"])
    decoded = [decode_bytes(page, is_html=True).text for page in table["html"].to_pylist()]
    return [page.encode("utf-8", "replace") for page in decoded], table["gold_text"].to_pylist()


@pytest.mark.bench
@pytest.mark.skipif(not GOLD.is_dir(), reason="the labelled pages are not here")
@pytest.mark.parametrize("name", TARGETS)
def test_extraction(name: ExtractorName) -> None:
    """Both extractors beside their libraries; the default is the more precise one."""
    pages, gold = pages_of("aeb")
    extractor, (target_f1, target_speed) = PageExtractor(), TARGETS[name]
    answers = [extractor.extract(page, name) for page in pages]
    extractor.close()
    ours, ours_shingled = scores(gold, [answer.text if isinstance(answer, Page) else "" for answer in answers])
    is_default = SourceConfig(base="-").extractor == name
    for peer, call in PEERS[name].items():
        theirs, theirs_shingled = scores(gold, [call(page.decode()) or "" for page in pages])
        print(
            f"\nextract {name}{' (default)' if is_default else ''}: token F1 {ours:.3f}, {peer} {theirs:.3f}, "
            f"ratio {ours / theirs:.3f}, target {target_f1}; 4-word shingles {ours_shingled:.3f}, {theirs_shingled:.3f}"
        )
    peer, call = next(iter(PEERS[name].items()))
    timed = [page for found in SETS for page in pages_of(found)[0]][::EVERY]
    mine, other = seconds_per_page(name, call, timed)
    print(
        f"extract {name}: {1 / mine:.0f} pages/s, {peer} {1 / other:.0f}, ratio {other / mine:.2f}, "
        f"target {target_speed} (ratio {target_speed / QUIET[name]:.2f})"
    )
    assert ours >= target_f1
