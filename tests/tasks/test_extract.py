"""Extraction: limits are deterministic and come first; a page that crashes or hangs the extractor costs itself only."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import extract
from tasks.extract import (
    Page,
    PageExtractor,
    PageLimits,
    Refused,
    check_limits,
    count_attributes,
    measure_tags,
    run_extractor,
    title_of,
)

PARAGRAPH = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. " * 4
ARTICLE = (
    f"<html><head><title> A &amp; B\n</title></head><body><p>{PARAGRAPH}</p><script>alert(1)</script></body></html>"
)


@pytest.fixture(scope="module")
def extractor() -> Iterator[PageExtractor]:
    shared = PageExtractor()
    yield shared
    shared.close()


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_an_article_gives_its_text_and_title_without_scripts(
    extractor: PageExtractor, name: extract.ExtractorName
) -> None:
    page = extractor.extract(ARTICLE, name)
    assert isinstance(page, Page)
    assert page.text.strip() == PARAGRAPH.strip()
    assert page.title == "A & B"


def test_without_an_extractor_the_html_stays(extractor: PageExtractor) -> None:
    assert extractor.extract(ARTICLE, "none") == Page(ARTICLE, "A & B")


def test_no_break_spaces_become_spaces() -> None:
    assert run_extractor("<p>one&nbsp;two</p>", "resiliparse") == "one two"


def test_a_page_without_text_is_refused(extractor: PageExtractor) -> None:
    assert extractor.extract("<html><body><script>x()</script></body></html>", "resiliparse") == Refused("no_content")


@pytest.mark.parametrize(
    ("page", "reason", "value"),
    [
        ("<div>" * 10_000 + "text" + "</div>" * 10_000, "too_deep", 10_000),
        ("<font>" * 1_001 + "text", "too_deep", 1_001),
        ("<p>x" * 200_001, "too_many_nodes", 200_001),
        ("x" * ((8 << 20) + 1), "too_large", (8 << 20) + 1),
        ("<p>a<a " + " ".join(f"a{n}=1" for n in range(200_000)) + ">text</a>", "too_many_attributes", 200_000),
    ],
)
def test_limits_are_checked_before_an_extractor_sees_the_page(page: str, reason: str, value: int) -> None:
    unstarted = PageExtractor()
    refused = unstarted.extract(page, "resiliparse")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.value) == (reason, value)
    assert unstarted.children_started == 0


@pytest.mark.parametrize(
    ("page", "nodes", "depth"),
    [
        (b"", 0, 0),
        (b"no tags, 1 < 2, <3 and a<", 0, 0),
        (b"<div><b>x</b></div>", 2, 2),
        (b"<DIV><DIV>", 2, 2),
        (b"<p>a<p>b<li>c<li>d<br><img src=x><hr/>", 7, 0),  # flat: no end tag needed
        (b"</b></b></b><i><i>", 2, 2),  # end tags without a start close nothing
        (b"<pre><param><sections>", 3, 2),  # names that begin like flat ones
        (b"<h1>a</h1><h2>b</h2>", 2, 1),
        (b"<blockquotes><blockquotex>", 2, 2),  # longer than the bytes compared
        (b"<!-- x --><!DOCTYPE html><?xml?><b", 1, 1),
    ],
)
def test_tags_are_measured_from_bytes(page: bytes, nodes: int, depth: int) -> None:
    assert measure_tags(page) == (nodes, depth)


@pytest.mark.parametrize(
    ("page", "attributes"),
    [
        (b"", 0),
        (b"<p>" + b"a word " * 2_000 + b"</p>", 0),  # text is no tag
        (b"<p>1 < 2" + b" a" * 2_000, 0),
        (b"<p>" + b"a" * 3_000 + b"<i " + b" b" * 20 + b">" + b" c" * 2_000, 20),
        (b"<img src='data:" + b"a" * 5_000 + b'\'  alt = "x > y = z" width=3 hidden/>' + b"t" * 3_000, 4),
        (b"<p title='1 > 2'" + b" data-x = 'a > b'" * 999 + b" b" * 1_000 + b">text", 2_000),
        (b"<p/a/b/c" + b"/d" * 1_000 + b">" + b"t" * 3_000, 1_003),
        (b"<p title='never closed" + b" a" * 1_500 + b">" + b" b" * 1_500 + b"<i>", 1_502),
        (b"<p title=" + b"a" * 5_000 + b"=b>" + b" t" * 2_000, 1),
        (b"<p " + b"a" * 3_000, 1),  # cut off
    ],
)
def test_attributes_are_counted_as_browsers_count_them(page: bytes, attributes: int) -> None:
    assert count_attributes(page, 1_000) == attributes


def test_counting_attributes_is_linear_in_the_page() -> None:
    """Every start tag opens a value that the next one closes: none is read twice."""
    page = (b"<a b='" + b" c" * 3_000) * 1_000
    assert count_attributes(page, 2_000) == 3_001 * 500  # one tag: all of the page


def test_a_page_at_the_limit_passes() -> None:
    limits = PageLimits(max_depth=3, max_nodes=3, max_bytes=21)
    assert check_limits(b"<b><b><b></b></b></b>", limits) is None
    refused = check_limits(b"<b><b><b></b></b></b> ", limits)
    assert refused == Refused("too_large", value=22, threshold=21)


def test_children_are_recycled_not_started_per_page() -> None:
    recycled = PageExtractor(pages_per_child=3)
    texts = [recycled.extract(ARTICLE, "resiliparse") for _ in range(7)]
    recycled.close()
    assert recycled.children_started == 3
    assert len(set(texts)) == 1


def test_a_killed_child_costs_a_second_try_only(extractor: PageExtractor) -> None:
    before = extractor.extract(ARTICLE, "resiliparse")
    assert extractor._child is not None
    os.kill(extractor._child.pid, signal.SIGKILL)
    extractor._child.wait()
    assert extractor.extract(ARTICLE, "resiliparse") == before


CHILD = """
import os, time
from multiprocessing.connection import Connection
import tasks.extract as extract
def answer(page, extractor):
    if "CRASH" in page:
        os.abort()
    if "HANG" in page:
        time.sleep(100)
    return page
extract.run_extractor = answer
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageExtractor]:
    """An extractor whose child crashes and hangs on command."""
    (tmp_path / "sitecustomize.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    extractor = PageExtractor(timeout_seconds=20)
    yield extractor
    extractor.close()


def test_a_page_that_crashes_or_hangs_the_extractor_costs_itself_only(fragile: PageExtractor) -> None:
    assert fragile.extract("good", "resiliparse") == Page("good", None)
    crashed = fragile.extract("CRASH", "resiliparse")
    assert isinstance(crashed, Refused)
    assert crashed.reason == "extractor_crashed"
    assert "-6" in crashed.detail
    fragile.timeout_seconds = 1.0
    started = time.monotonic()
    assert fragile.extract("HANG", "resiliparse") == Refused("timeout", threshold=1.0)
    assert time.monotonic() - started > 2.0  # it was tried twice
    fragile.timeout_seconds = 20
    assert fragile.extract("still good", "resiliparse") == Page("still good", None)


def test_titles() -> None:
    assert title_of("<TITLE lang=en>  a\n b </TITLE>") == "a b"
    assert title_of("<title></title>") is None
    assert title_of("<p>none</p>") is None
    assert title_of(f"<title>{'x' * 1_000}</title>") == "x" * extract.TITLE_CHARS
