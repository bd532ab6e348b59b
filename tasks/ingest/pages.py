"""Whole files and web pages to records: text, Markdown and source files, HTML."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.ingest.charset import BYTE_ORDER_MARKS, Decoded, decode_bytes
from tasks.ingest.extract import MESSAGE_BYTES, MESSAGE_PAGES, Page, PageExtractor
from tasks.ingest.page_limits import Refused
from tasks.ingest.records import EditReason, Outcome, Outcomes, Record, Rejected, note_decoding
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import Damage, Pieces
from tasks.ingest.tabular import damaged

BINARY_BYTES = 8_192  # as git: a NUL near the start means that it is no text
MAX_REPLACED_RATIO = 0.1
HELD_OUTCOMES = 1_000  # that wait behind a page for its text; most are of records that are not wanted
BINARY_MARKS = (b"%PDF-", b"PK\x03\x04")


@dataclass(frozen=True, slots=True)
class RawPage:
    """A page as it was stored: its bytes, what its headers said, further facts for meta."""

    position: str
    data: bytes
    charset_label: str | None
    url: str | None
    timestamp: str | None
    meta: dict[str, Any]
    content_type: str = ""


@dataclass(slots=True)
class PreparedPage:
    """A page that waits for its extractor; `edits` are those of its record."""

    page: RawPage
    decoded: Decoded
    utf8: bytes
    edits: dict[EditReason, int] = field(default_factory=dict)


def read_file(pieces: Pieces, config: SourceConfig, extractor: PageExtractor | None) -> Outcomes:
    """One document per file; through the extractor where one is given. A damaged file gives what it still holds."""
    data, damages = bytearray(), []
    for piece in pieces:
        if isinstance(piece, Damage):
            damages.append(damaged("0", piece))
            continue
        data += piece.data
        if len(data) > config.max_record_bytes:
            yield Rejected("0", "too_large", value=len(data), threshold=config.max_record_bytes)
            return
    yield from damages
    if not data and damages:
        return
    page = RawPage("0", bytes(data), None, None, None, {"truncated": True} if damages else {})
    yield from [text_record(page)] if extractor is None else extracted([prepared(page, config)], config, extractor)


def text_record(page: RawPage) -> Outcome:
    """A page or file of plain text."""
    is_marked = any(page.data.startswith(mark) for mark, _ in BYTE_ORDER_MARKS)
    if page.data.startswith(BINARY_MARKS) or (not is_marked and b"\0" in page.data[:BINARY_BYTES]):
        return Rejected(page.position, "binary", {"bytes": len(page.data)})
    decoded = decode_bytes(page.data, page.charset_label)
    if decoded.replaced > MAX_REPLACED_RATIO * len(decoded.text):
        return Rejected(page.position, "binary", {"bytes": len(page.data), "replaced": decoded.replaced})
    record = Record(page.position, decoded.text, page.url, page.timestamp, dict(page.meta))
    note_decoding(record, decoded)
    return record


def prepared(page: RawPage, config: SourceConfig) -> PreparedPage | Rejected:
    """An HTML page in UTF-8."""
    if not page.data.strip():
        return Rejected(page.position, "empty", {"bytes": len(page.data)})
    if len(page.data) > config.limits.max_bytes:
        return Rejected(page.position, "too_large", value=len(page.data), threshold=config.limits.max_bytes)
    decoded = decode_bytes(page.data, page.charset_label, is_html=True)
    is_utf8 = decoded.charset == "utf-8" and not decoded.replaced
    utf8 = page.data.removeprefix(BOM_UTF8) if is_utf8 else decoded.text.encode("utf-8", "replace")
    return PreparedPage(page, decoded, utf8)


def extracted(outcomes: Iterable[Outcome | PreparedPage], config: SourceConfig, extractor: PageExtractor) -> Outcomes:
    """The outcomes in order, their pages through the source's extractor: several at a time."""
    held: list[Outcome | PreparedPage] = []
    pages = held_bytes = 0
    for outcome in outcomes:
        held.append(outcome)
        pages += isinstance(outcome, PreparedPage)
        held_bytes += _bytes_of(outcome)
        if pages in (0, MESSAGE_PAGES) or held_bytes >= MESSAGE_BYTES or len(held) == HELD_OUTCOMES:
            yield from _extract_held(held, config, extractor)
            held, pages, held_bytes = [], 0, 0
    yield from _extract_held(held, config, extractor)


def _bytes_of(outcome: Outcome | PreparedPage) -> int:
    if isinstance(outcome, PreparedPage):
        return len(outcome.utf8)
    return len(outcome.text) if isinstance(outcome, Record) else 0


def _extract_held(
    held: list[Outcome | PreparedPage], config: SourceConfig, extractor: PageExtractor
) -> Iterator[Outcome]:
    pages = [outcome.utf8 for outcome in held if isinstance(outcome, PreparedPage)]
    found = iter(extractor.extract_pages(pages, config.extractor, config.limits) if pages else [])
    for outcome in held:
        yield page_record(outcome, next(found)) if isinstance(outcome, PreparedPage) else outcome


def page_record(prepared_page: PreparedPage, found: Page | Refused) -> Outcome:
    """The record of a page, by what its extractor found."""
    page, decoded = prepared_page.page, prepared_page.decoded
    if not isinstance(found, Page):
        detail = ({"error": found.detail} if found.detail else {}) | ({"url": page.url} if page.url else {})
        return Rejected(page.position, found.reason, detail, found.value, found.threshold)
    record = Record(page.position, found.text, page.url, page.timestamp, dict(page.meta), dict(prepared_page.edits))
    if found.title:
        record.meta["title"] = found.title
    note_decoding(record, decoded)
    return record
