"""WARC, WET and ARC to records. Positions: the byte of the compressed member (`+n` into it), or of a plain file.

Written here because nothing at hand keeps good records behind bad ones: fastwarc 2.0 stops at the first bad header and
reads a file with LF line ends as one record, warcio stops at a record of wrong length (both on public sample files).
A record of wrong length ends where the next one begins (noted as an edit); a header that makes no sense costs itself.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from tasks.ingest.extract import PageExtractor
from tasks.ingest.http import CHARSET, parse_headers, parse_response
from tasks.ingest.pages import PreparedPage, RawPage, extracted, prepared, text_record
from tasks.ingest.records import Outcome, Outcomes, Record, Rejected, Skipped
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import ByteReader, codec_of, read_pieces

RECORD_MAGIC = b"WARC/"
HEAD_BYTES = 1 << 16  # addresses of 8 kB and more exist
SCAN_BYTES = 1 << 20
VERSION_LINE = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
ARC_LINE = re.compile(rb"([a-z][a-z0-9+.-]*:\S*) (\S+) (\d{8,20}|-) (.*?) ?(\d+)\r?\n", re.IGNORECASE)
HEAD_END = re.compile(rb"\n\r?\n")  # some writers end lines with LF alone
RECORD_START = re.compile(rb"%s|%s" % (VERSION_LINE.pattern, ARC_LINE.pattern), re.IGNORECASE)
NEXT_RECORD = re.compile(rb"\n(?=%s)" % RECORD_START.pattern, re.IGNORECASE)
HTML_TYPES = ("text/html", "application/xhtml+xml")
HTML_START = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
RECORD_TYPES = frozenset(
    ("warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation")
)


@dataclass(frozen=True, slots=True)
class Head:
    """What the header of a record says; `length` None where it says nothing usable."""

    kind: str
    length: int | None
    url: str | None
    date: str | None
    content_type: str
    fields: dict[str, str]


def read_warc(file: BinaryIO, start: int, end: int | None, config: SourceConfig, extractor: PageExtractor) -> Outcomes:
    """The records of a file, or of the compressed members in [start, end)."""
    yield from extracted(_read_records(file, start, end, config), config, extractor)


def _read_records(
    file: BinaryIO, start: int, end: int | None, config: SourceConfig
) -> Iterator[Outcome | PreparedPage]:
    reader = ByteReader(read_pieces(file, start, end, RECORD_MAGIC))
    file.seek(0)
    is_plain = codec_of(file.read(8)) is None

    def place(position: int) -> str:
        member, within = (0, position) if is_plain else reader.place(position)
        return str(member + within) if is_plain else f"{member}+{within}" if within else str(member)

    while True:
        reported = False
        while _skip_blank(reader):
            outcome = _read_record(reader, place, config)
            reported = isinstance(outcome, Rejected) and reader.damage is not None and not reader.fill(1)
            yield outcome
        if reader.damage is None:
            return
        if not reported:
            detail = {"error": reader.damage.error}
            yield Rejected(f"{reader.damage.member}:damage", reader.damage.reason, detail)
        reader.resume()


def _skip_blank(reader: ByteReader) -> bool:
    """Pass over line ends between records; False at the end."""
    while reader.fill(1):
        blank = len(head := reader.peek(64)) - len(head.lstrip(b"\r\n"))
        if blank == 0:
            return True
        reader.skip(blank)
    return False


def _read_record(reader: ByteReader, place: Callable[[int], str], config: SourceConfig) -> Outcome | PreparedPage:
    start = reader.position
    position, member = place(start), reader.place(start)[0]
    head = read_head(reader)
    if head is None or head.length is None:
        detail = {"error": "no header" if head is None else "no length", "bytes": repr(reader.peek(60))}
        _take_to_next(reader, 0)
        return _broken(reader, position, detail)
    if head.length > config.max_record_bytes:
        reader.skip(head.length)
        return Rejected(position, "too_large", {"url": head.url}, head.length, config.max_record_bytes)
    found = _take_block(reader, head.length, config.max_record_bytes)
    if found is None:
        reason = reader.damage.reason if reader.damage else "truncated"
        return Rejected(position, reason, {"url": head.url, "content_length": head.length})
    if _failed_checksum(reader, member):
        _skip_blank(reader)
        return _broken(reader, position, {"url": head.url})
    block, wrong_by = found
    outcome = outcome_of(head, block, position, config)
    if wrong_by and isinstance(outcome, (Record, PreparedPage)):
        outcome.edits["wrong_length"] = wrong_by
    elif wrong_by and isinstance(outcome, Skipped):  # not wanted, but the file is damaged there
        return Rejected(position, "corrupt_record", {"error": f"length wrong by {wrong_by}", "kind": outcome.kind})
    return outcome


def _take_block(reader: ByteReader, length: int, limit_bytes: int) -> tuple[bytes, int] | None:
    """(block, bytes by which its length was wrong) of a record whose header was taken; None where it was cut off."""
    block = reader.read(length)
    follows = reader.peek(HEAD_BYTES).lstrip(b"\r\n")
    if len(block) == length and (not follows or RECORD_START.match(follows)):
        return block, 0
    if len(block) < length and (reader.damage or RECORD_MAGIC not in block):
        return None
    reader.unread(block)
    taken = _take_to_next(reader, limit_bytes).rstrip(b"\r\n")
    return taken, abs(len(taken) - length)


def _failed_checksum(reader: ByteReader, member: int) -> bool:
    """Whether the member that a record began in broke after the record's last byte."""
    damage = reader.damage
    if damage is None or damage.member != member or damage.reason != "corrupt_member":
        return False
    return not reader.peek(HEAD_BYTES).strip(b"\r\n")


def _broken(reader: ByteReader, position: str, detail: dict[str, Any]) -> Rejected:
    if reader.damage is not None and not reader.fill(1):
        return Rejected(position, reader.damage.reason, detail | {"error": reader.damage.error})
    return Rejected(position, "corrupt_record", detail)


def _take_to_next(reader: ByteReader, limit_bytes: int) -> bytes:
    """Take what lies before the next line that begins a record, or the end; the first `limit_bytes` are returned."""
    taken = bytearray()
    while reader.fill(1):
        found = reader.search(NEXT_RECORD, SCAN_BYTES)
        size = found + 1 if found >= 0 else max(1, reader.fill(SCAN_BYTES) - HEAD_BYTES)
        data = reader.read(size)
        taken += data[: limit_bytes - len(taken)]
        if found >= 0:
            break
    return bytes(taken)


def read_head(reader: ByteReader) -> Head | None:
    """Take the header of the record that begins here; None (nothing taken) where there is none."""
    if not VERSION_LINE.match(reader.peek(32)):
        return _arc_head(reader)
    end = reader.search(HEAD_END, HEAD_BYTES)
    fields = parse_headers(reader.read(end + 1 if end >= 0 else HEAD_BYTES))
    reader.skip(2 if reader.peek(2) == b"\r\n" else 1)
    length = fields.get("content-length", "")
    return Head(
        kind=fields.get("warc-type", "").lower(),
        length=int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None,
        url=fields.get("warc-target-uri", "").strip("<>") or None,
        date=fields.get("warc-date") or None,
        content_type=fields.get("content-type", "").lower(),
        fields=fields,
    )


def _arc_head(reader: ByteReader) -> Head | None:
    """The one-line header of ARC, the format before WARC: address, host address, date, type, length."""
    found = ARC_LINE.match(reader.peek(HEAD_BYTES))
    if not found:
        return None
    reader.skip(found.end())
    url, date, kind = (found.group(index).decode("utf-8", "replace") for index in (1, 3, 4))
    stamp = f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}Z"
    record = "warcinfo" if url.startswith("filedesc:") else "response"
    return Head(record, int(found.group(5)), url, stamp, kind.lower(), {})


def outcome_of(head: Head, block: bytes, position: str, config: SourceConfig) -> Outcome | PreparedPage:
    """What a sound record gives: a document, a page that will be one, a refusal, or a kind that is not wanted."""
    wanted = ("conversion",) if config.format == "wet" else ("response", "resource", "conversion")
    if head.kind not in wanted:
        return Skipped(head.kind if head.kind in RECORD_TYPES else "unknown_type")
    page = _page_of(head, block, position, config)
    if not isinstance(page, RawPage):
        return page
    if head.kind == "conversion" or page.content_type == "text/plain":
        return text_record(page)
    if page.content_type in HTML_TYPES or (not page.content_type and HTML_START.match(page.data)):
        return prepared(page, config)
    return Skipped("not_text")


def _page_of(head: Head, block: bytes, position: str, config: SourceConfig) -> RawPage | Rejected | Skipped:
    """The page in a record's block; of HTTP responses the body of those that succeeded."""
    label = CHARSET.search(head.content_type)
    content_type = head.content_type.split(";")[0].strip()
    page = RawPage(position, block, label.group(1) if label else None, head.url, head.date, _meta(head), content_type)
    if head.kind != "response":
        return page
    response = parse_response(block, config.limits.max_bytes)
    if response is None:
        is_web = (head.url or "").startswith(("http:", "https:"))
        return Rejected(position, "bad_http", {"url": head.url, "bytes": repr(block[:60])}) if is_web else page
    if response.status != 200:
        return Skipped(f"http_{response.status // 100}xx")
    meta = page.meta | ({"http_note": response.note} if response.note else {})
    return replace(
        page, data=response.body, charset_label=response.charset_label, content_type=response.content_type, meta=meta
    )


def _meta(head: Head) -> dict[str, Any]:
    names = {
        "id": "warc-record-id",
        "languages": "warc-identified-content-language",
        "warc_truncated": "warc-truncated",
        "digest": "warc-payload-digest",
    }
    return {name: head.fields[key] for name, key in names.items() if head.fields.get(key)}
