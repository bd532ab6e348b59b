"""Extraction: limits are deterministic and come first; a page that crashes or hangs the extractor costs itself only."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.ingest import extract
from tasks.ingest.extract import Page, PageExtractor, run_extractor, title_of
from tasks.ingest.page_limits import PageLimits, Refused

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
    page = extractor.extract(ARTICLE.encode(), name)
    assert isinstance(page, Page)
    assert page.text.strip() == PARAGRAPH.strip()
    assert page.title == "A & B"


def test_without_an_extractor_the_html_stays(extractor: PageExtractor) -> None:
    assert extractor.extract(ARTICLE.encode(), "none") == Page(ARTICLE, "A & B")


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_no_break_spaces_become_spaces(name: extract.ExtractorName) -> None:
    text = run_extractor(ARTICLE.replace("the village", "the&nbsp;village").encode(), name)
    assert isinstance(text, str)
    assert text.strip() == PARAGRAPH.strip()


def test_a_page_without_text_is_refused(extractor: PageExtractor) -> None:
    assert extractor.extract(b"<html><body><script>x()</script></body></html>", "resiliparse") == Refused("no_content")


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
    refused = unstarted.extract(page.encode(), "resiliparse")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.value) == (reason, value)
    assert unstarted.children_started == 0


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_a_text_does_not_depend_on_the_pages_before_it(name: extract.ExtractorName) -> None:
    pages = [ARTICLE.replace("fox", word).encode() for word in ("fox", "cat", "<b>hen</b>", "fox")]
    forward, backward = PageExtractor(), PageExtractor(pages_per_child=2)
    texts = [forward.extract(page, name) for page in pages]
    assert [backward.extract(page, name) for page in reversed(pages)] == texts[::-1]
    assert texts[0] == texts[3] != texts[1]
    forward.close()
    backward.close()


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_comments_are_left_out(name: extract.ExtractorName) -> None:
    comment = '<div id="comments"><p>First! I have read none of it, but my neighbour has a dog as well.</p></div>'
    page = f"<html><body><article><p>{PARAGRAPH}</p></article>{comment}</body></html>"
    text = run_extractor(page.encode(), name)
    assert isinstance(text, str)
    assert "quick brown" in text
    assert "First!" not in text


def test_children_are_recycled_not_started_per_page() -> None:
    recycled = PageExtractor(pages_per_child=3)
    texts = [recycled.extract(ARTICLE.encode(), "resiliparse") for _ in range(7)]
    recycled.close()
    assert recycled.children_started == 3
    assert len(set(texts)) == 1


def test_a_killed_child_costs_a_second_try_only(extractor: PageExtractor) -> None:
    before = extractor.extract(ARTICLE.encode(), "resiliparse")
    assert extractor.child is not None
    os.kill(extractor.child.process.pid, signal.SIGKILL)
    extractor.child.process.wait()
    assert extractor.extract(ARTICLE.encode(), "resiliparse") == before


CHILD = """
import os, signal, time
import tasks.ingest.extract as extract
def answer(page, extractor):
    if b"CRASH" in page:
        os.abort()
    if b"HANG" in page:
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # for this page alone the alarm comes soon
        time.sleep(1000)
    return page.decode()
extract.run_extractor = answer
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageExtractor]:
    """An extractor whose child crashes and hangs on command."""
    (tmp_path / "sitecustomize.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    extractor = PageExtractor()
    yield extractor
    extractor.close()


def test_a_page_that_crashes_or_hangs_the_extractor_costs_itself_only(fragile: PageExtractor) -> None:
    assert fragile.extract(b"good", "resiliparse") == Page("good", None)
    crashed = fragile.extract(b"CRASH", "resiliparse")
    assert isinstance(crashed, Refused)
    assert crashed.reason == "extractor_crashed"
    assert "-6" in crashed.detail
    started = fragile.children_started
    assert fragile.extract(b"HANG", "resiliparse") == Refused("timeout", threshold=60.0)
    assert fragile.children_started == started + 2  # it was tried twice
    assert fragile.extract(b"still good", "resiliparse") == Page("still good", None)


def test_of_pages_asked_for_together_only_the_guilty_one_is_lost(fragile: PageExtractor) -> None:
    pages = [b"one", b"CRASH", b"two", b"<i>" * 2_000, b"HANG", b"", b"three", b"CRASH"]
    found = fragile.extract_pages(pages, "resiliparse")
    texts = [answer.text if isinstance(answer, Page) else answer.reason for answer in found]
    lost = ["extractor_crashed", "too_deep", "timeout", "no_content"]
    assert texts == ["one", lost[0], "two", lost[1], lost[2], lost[3], "three", lost[0]]
    assert fragile.children_started == 6  # each of the three guilty pages ended two


@pytest.mark.parametrize("together", [1, 2, 5, 40])
def test_texts_do_not_depend_on_how_many_pages_are_asked_for_together(together: int) -> None:
    pages = [ARTICLE.replace("fox", f"fox number {number} \U0001f98a").encode() for number in range(40)]
    pages[7] = b"<html><body></body></html>"
    extractor = PageExtractor(pages_per_child=13)
    groups = [pages[at : at + together] for at in range(0, 40, together)]
    found = [answer for group in groups for answer in extractor.extract_pages(group, "resiliparse")]
    extractor.close()
    assert found[7] == Refused("no_content")
    for number, answer in enumerate(found):
        assert number == 7 or (isinstance(answer, Page) and f"fox number {number} \U0001f98a" in answer.text)
    assert extractor.children_started == 4


def test_a_real_page_that_takes_too_long_costs_itself_only() -> None:
    """One that no limit refuses, here a raised one, needs 37 s where others need 0.01 s."""
    impatient = PageExtractor(timeout_seconds=0.2)
    page = f"<html><body><select><p>{'<option>x' * 60_000}</p></body></html>".encode()
    assert impatient.extract(page, "resiliparse", PageLimits(max_options=60_000)) == Refused("timeout", threshold=0.2)
    assert impatient.children_started == 2
    impatient.timeout_seconds = 60
    answer = impatient.extract(ARTICLE.encode(), "resiliparse")
    assert isinstance(answer, Page)
    assert answer.text.strip() == PARAGRAPH.strip()
    impatient.close()


LITTLE_MEMORY = """
import trafilatura
import tasks.ingest.extract as extract
held = int(open("/proc/self/statm").read().split()[0]) * 4096
extract.CHILD_MEMORY_BYTES = held + (48 << 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells how much a process holds")
def test_a_page_that_needs_more_memory_than_a_child_may_take_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LITTLE_MEMORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    extractor = PageExtractor()
    for name in ("resiliparse", "trafilatura"):
        refused = extractor.extract(b"<p>" + b"<i>x</i>" * 190_000 + b"\xf0\x9f\x98\x80" * 1_700_000, name)
        assert isinstance(refused, Refused)
        assert refused.reason in ("extractor_failed", "extractor_crashed", "no_content")
        assert isinstance(extractor.extract(ARTICLE.encode(), name), Page)
    extractor.close()


def test_titles() -> None:
    assert title_of(b"<TITLE lang=en>  a\n b </TITLE>") == "a b"
    assert title_of(b"<title></title>") is None
    assert title_of(b"<p>none</p>") is None
    assert title_of(b"<title>" + b"x" * 1_000 + b"</title>") == "x" * extract.TITLE_CHARS
