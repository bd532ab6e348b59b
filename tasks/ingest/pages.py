"""Whole files and web pages to records: text, Markdown and source files, HTML."""

from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import Any

from tasks.charset import BYTE_ORDER_MARKS, decode_bytes
from tasks.extract import Page, PageExtractor
from tasks.ingest.records import Outcome, Outcomes, Record, Rejected, note_decoding
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import Damage, Pieces
from tasks.ingest.tabular import damaged

BINARY_BYTES = 8_192  # as git: a NUL near the start means that it is no text
MAX_REPLACED_RATIO = 0.1
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
    yield text_record(page) if extractor is None else page_record(page, config, extractor)


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


def page_record(page: RawPage, config: SourceConfig, extractor: PageExtractor) -> Outcome:
    """An HTML page through the source's extractor."""
    if not page.data.strip():
        return Rejected(page.position, "empty", {"bytes": len(page.data)})
    if len(page.data) > config.limits.max_bytes:
        return Rejected(page.position, "too_large", value=len(page.data), threshold=config.limits.max_bytes)
    decoded = decode_bytes(page.data, page.charset_label, is_html=True)
    is_utf8 = decoded.charset == "utf-8" and not decoded.replaced
    utf8 = page.data.removeprefix(BOM_UTF8) if is_utf8 else decoded.text.encode("utf-8", "replace")
    found = extractor.extract(utf8, config.extractor, config.limits)
    if not isinstance(found, Page):
        detail = ({"error": found.detail} if found.detail else {}) | ({"url": page.url} if page.url else {})
        return Rejected(page.position, found.reason, detail, found.value, found.threshold)
    record = Record(page.position, found.text, page.url, page.timestamp, dict(page.meta))
    if found.title:
        record.meta["title"] = found.title
    note_decoding(record, decoded)
    return record
