"""Whole files: one document each; what is no text is named, what is damaged gives what it still holds."""

import gzip
import io
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.ingest.extract import PageExtractor
from tasks.ingest.pages import PreparedPage, RawPage, extracted, prepared, read_file, text_record
from tasks.ingest.records import Outcome, Record, Rejected, Skipped
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import read_pieces

CONFIG = SourceConfig(base="x")
SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "


@pytest.fixture(scope="module")
def extractor() -> Iterator[PageExtractor]:
    shared = PageExtractor()
    yield shared
    shared.close()


def read(data: bytes, pages: PageExtractor | None = None, **settings: Any) -> list[Outcome]:
    return list(read_file(read_pieces(io.BytesIO(data)), SourceConfig(base="x", **settings), pages))


def raw(data: bytes, label: str | None = None) -> RawPage:
    return RawPage("0", data, label, "http://a/", "2024", {"id": "1"})


def test_a_file_is_one_document_as_it_is() -> None:
    source = "def f():\r\n\treturn 'ä'\n"
    assert read(source.encode()) == [Record("0", source)]
    assert read(gzip.compress(source.encode())) == [Record("0", source)]


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\0\0", b"%PDF-1.4 text", b"PK\x03\x04zip", b"text\0text"])
def test_binary_files_are_named(data: bytes) -> None:
    (outcome,) = read(data)
    assert isinstance(outcome, Rejected)
    assert (outcome.position, outcome.reason) == ("0", "binary")


def test_a_byte_order_mark_tells_utf16_from_binary() -> None:
    (found,) = read("text ä".encode("utf-16"))
    assert isinstance(found, Record)
    assert (found.text, found.meta) == ("text ä", {"charset": "utf-16-le"})


def test_a_damaged_file_gives_what_it_holds_and_a_row_for_the_damage() -> None:
    draw = random.Random(2)
    text = " ".join(str(draw.random()) for _ in range(3_000))
    outcomes = read(gzip.compress(text.encode())[:-9_000])
    damage, found = outcomes
    assert isinstance(damage, Rejected)
    assert (damage.reason, damage.position) == ("truncated", "0:damage@0")
    assert isinstance(found, Record)
    assert text.startswith(found.text)
    assert len(found.text) > 10_000
    assert found.meta == {"truncated": True}


def test_a_file_that_is_only_damage_gives_no_document() -> None:
    (only,) = read(gzip.compress(b"x")[:11])
    assert isinstance(only, Rejected)


def test_too_large_files_are_not_held() -> None:
    assert read(b"x" * 5_000, max_record_bytes=4_999) == [Rejected("0", "too_large", value=5_000, threshold=4_999)]
    assert read(b"x" * 5_000, max_record_bytes=5_000) == [Record("0", "x" * 5_000)]
    (bomb,) = read(gzip.compress(bytes(20 << 20)), max_record_bytes=1_000)
    assert isinstance(bomb, Rejected)
    assert bomb.reason == "too_large"


def test_text_keeps_what_its_headers_said() -> None:
    found = text_record(raw("да".encode("koi8-r"), "koi8-r"))
    assert found == Record("0", "да", "http://a/", "2024", {"id": "1", "charset": "koi8-r"})


def test_html_files_go_through_the_extractor(extractor: PageExtractor) -> None:
    html = f"<html><head><title>T</title></head><body><p>{SENTENCE * 4}</p><script>x()</script></body></html>".encode()
    (found,) = read(html, extractor)
    assert isinstance(found, Record)
    assert (found.text.strip(), found.meta) == ((SENTENCE * 4).strip(), {"title": "T"})
    assert read(html, extractor, extractor="none") == [Record("0", html.decode(), meta={"title": "T"})]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b" \n", "empty"),
        (b"<p></p>", "no_content"),
        (b"x" * ((8 << 20) + 1), "too_large"),
        (b"<div>" * 10_000, "too_deep"),
    ],
)
def test_bad_pages_are_named_with_their_address(extractor: PageExtractor, data: bytes, reason: str) -> None:
    [found] = extracted([prepared(raw(data), CONFIG)], CONFIG, extractor)
    assert isinstance(found, Rejected)
    assert found.reason == reason


def test_a_page_in_another_charset_says_so(extractor: PageExtractor) -> None:
    html = f"<meta charset=windows-1251><p>{'Это довольно длинный русский текст. ' * 8}".encode("cp1251")
    [found] = extracted([prepared(raw(html, "iso-8859-1-foo"), CONFIG)], CONFIG, extractor)
    assert isinstance(found, Record)
    assert "довольно длинный" in found.text
    assert found.meta["charset"] == "cp1251"


def test_outcomes_wait_for_no_more_pages_than_one_message_holds(extractor: PageExtractor) -> None:
    """A file may hold millions of records: what is held behind a page has a bound, in bytes too."""
    taken = []

    def outcomes(size: int) -> Iterator[Outcome | PreparedPage]:
        page = prepared(raw(f"<html><body><p>{SENTENCE * 4}</p></body></html>".encode()), CONFIG)
        for given in [Skipped("request"), Record("1", "text"), page, *[Record("2", "x" * size)] * 5_000, page]:
            taken.append(given)
            yield given

    for size, bound in ((0, 1_002), (1 << 20, 5)):
        taken.clear()
        found = extracted(outcomes(size), CONFIG, extractor)
        assert [type(next(found)) for _ in range(2)] == [Skipped, Record]
        assert len(taken) == 2  # nothing waits where no page does
        text = next(found)
        assert isinstance(text, Record)
        assert text.text.strip() == (SENTENCE * 4).strip()
        assert len(taken) <= bound
