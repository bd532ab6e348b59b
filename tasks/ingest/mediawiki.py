"""Dumps of MediaWiki (Wikipedia and its kin): XML, plain or compressed, page by page, to records.

Positions are those of WARC: the byte at which a page begins, of its compressed member (`+n` into it) or of the plain
file. Each page is cut out of the stream and parsed by itself: memory is bounded by one page, a broken page costs
itself, and no entity of a document type is ever known, so that one which is used makes its page a `corrupt_record`.
Pages of other namespaces, redirects and pages that are no wikitext are skipped and counted by kind.
"""

import re
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import quote
from xml.parsers import expat

from tasks.ingest.charset import decode_bytes
from tasks.ingest.records import Outcome, Outcomes, Record, Rejected, Skipped, note_decoding
from tasks.ingest.sources import SourceConfig
from tasks.ingest.streams import ByteReader, Piece, codec_of, read_pieces
from tasks.ingest.wikitext import plain_text

RECORD_MAGIC = b"  <page>"  # how a member of a multistream dump begins
PAGE_START, PAGE_END, DUMP_END = re.compile(rb"<page[\s>]"), re.compile(rb"</page>"), b"</mediawiki>"
HEAD_BYTES = 1 << 18  # the site's description; its namespaces take 3 to 10 kB
SCAN_BYTES = 1 << 16
NAMESPACE = re.compile(rb'<namespace key="(?:-2|6|14)"[^>]{0,200}>([^<]{1,200})<')  # Media, File, Category
BASE = re.compile(rb"<base>([^<]{1,2000})/[^/<]{1,1000}</base>")
NAMESPACE_NUMBER = re.compile(r"-?\d{1,5}")
LEAVES = frozenset(
    ("title", "ns", "id", "redirect", "revision/id", "revision/timestamp", "revision/model", "revision/text")
)


@dataclass(frozen=True, slots=True)
class Site:
    """What the head of a dump says: where pages lie on the web, and its names of files and categories."""

    pages_url: str | None
    file_names: tuple[str, ...]


def read_mediawiki(file: BinaryIO, start: int, end: int | None, config: SourceConfig) -> Outcomes:
    """The pages of a dump, or those that begin in [start, end): of members where it is compressed, else of bytes."""
    site, size = read_site(file), file.seek(0, 2)
    file.seek(0)
    is_plain = codec_of(file.read(8)) is None
    pieces = read_pieces(file, start, None if is_plain else end, RECORD_MAGIC)
    reader = ByteReader(pieces, start if is_plain else 0)
    # whether it is there can be told of a whole file, and where a plain one ends
    has_end = not (end is None or end >= size) if is_plain else (start > 0 or end is not None)
    while True:
        has_end |= _skip_to_page(reader)
        if reader.fill(1):
            if is_plain and end is not None and reader.position >= end:
                return
            outcome = _read_page(reader, str(reader.position) if is_plain else _place(reader), site, config)
            has_end |= isinstance(outcome, Rejected) and outcome.reason == "truncated"
            yield outcome
        elif reader.damage is not None:
            has_end = True  # what is wrong with it was said
            yield Rejected(f"{reader.damage.member}:damage", reader.damage.reason, {"error": reader.damage.error})
            reader.resume()
        else:
            break
    if not has_end:
        yield Rejected("end:damage", "truncated", {"error": f"the dump does not end in {DUMP_END.decode()}"})


def read_site(file: BinaryIO) -> Site:
    """From the beginning of the file, whatever range of it is read."""
    head = b""
    for piece in read_pieces(file):
        head += piece.data if isinstance(piece, Piece) else b""
        if len(head) > HEAD_BYTES or b"</siteinfo>" in head or not isinstance(piece, Piece):
            break
    base = BASE.search(head)
    names = tuple(name.decode("utf-8", "replace") for name in NAMESPACE.findall(head))
    return Site(base.group(1).decode("utf-8", "replace") if base else None, names)


def _place(reader: ByteReader) -> str:
    member, within = reader.place(reader.position)
    return f"{member}+{within}" if within else str(member)


def _skip_to_page(reader: ByteReader) -> bool:
    """Go to the next page, or to the end or a damage; whether the dump's end was passed."""
    has_end, overlap = False, len(DUMP_END)
    while held := min(reader.fill(SCAN_BYTES), SCAN_BYTES):
        found = reader.search(PAGE_START, SCAN_BYTES)
        has_end |= DUMP_END in reader.peek(found if found >= 0 else held)
        if found >= 0:
            reader.skip(found)
            break
        reader.skip(held if held < SCAN_BYTES else held - overlap)
    return has_end


def _read_page(reader: ByteReader, position: str, site: Site, config: SourceConfig) -> Outcome:
    """The page that begins here."""
    span = SCAN_BYTES
    while (found := reader.search(PAGE_END, span)) < 0:
        if reader.fill(span) < span:
            reader.skip(reader.fill(1))
            damage = reader.damage
            return Rejected(position, "truncated", {"error": damage.error if damage else "the file ends in a page"})
        if span > config.max_record_bytes:
            reader.skip(1)  # behind its "<"; the next page is looked for
            return Rejected(position, "too_large", value=span, threshold=config.max_record_bytes)
        span *= 2
    decoded = decode_bytes(reader.read(found + len("</page>")), "utf-8")
    page = WikiPage()
    try:
        page.parse(decoded.text)
    except expat.ExpatError as error:
        return Rejected(position, "corrupt_record", {"error": str(error), "title": page.fields.get("title")})
    outcome = outcome_of(page.fields, position, site, config)
    if isinstance(outcome, Record):
        note_decoding(outcome, decoded)
    return outcome


@dataclass(slots=True)
class WikiPage:
    """The leaves of one page by their path; of several revisions the last in the file."""

    fields: dict[str, str] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)

    def parse(self, xml: str) -> None:
        """Raises ExpatError for what is no well-formed XML, entities of a document type among it."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(xml, True)

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) == 2 and name == "revision":
            self.fields = {key: value for key, value in self.fields.items() if not key.startswith("revision/")}
        if len(self._path) <= 3 and (leaf := "/".join(self._path[1:])) in LEAVES:
            self.fields[leaf] = ""

    def _end(self, _: str) -> None:
        self._path.pop()

    def _text(self, data: str) -> None:
        if len(self._path) <= 3 and (leaf := "/".join(self._path[1:])) in LEAVES:
            self.fields[leaf] += data


def outcome_of(fields: dict[str, str], position: str, site: Site, config: SourceConfig) -> Outcome:
    """What a page gives: a document, a refusal, or a kind that is not wanted."""
    namespace = fields.get("ns", "0")
    if not NAMESPACE_NUMBER.fullmatch(namespace) or int(namespace) not in config.namespaces:
        return Skipped(f"namespace_{namespace}" if NAMESPACE_NUMBER.fullmatch(namespace) else "namespace_unknown")
    if "redirect" in fields:
        return Skipped("redirect")
    if fields.get("revision/model", "wikitext") != "wikitext":
        return Skipped("not_wikitext")
    wikitext, title = fields.get("revision/text"), fields.get("title", "")
    if wikitext is None:
        return Rejected(position, "missing_text", {"title": title})
    if len(wikitext) > config.limits.max_bytes:
        return Rejected(position, "too_large", {"title": title}, len(wikitext), config.limits.max_bytes)
    text = wikitext if config.extractor == "none" else plain_text(wikitext, site.file_names)
    if wikitext.strip() and not text:
        return Rejected(position, "no_content", {"title": title})
    url = f"{site.pages_url}/{quote(title.replace(' ', '_'), safe='/:()!,;@*')}" if site.pages_url and title else None
    meta = {"title": title, "id": fields.get("id"), "revision": fields.get("revision/id"), "namespace": int(namespace)}
    return Record(position, text, url, fields.get("revision/timestamp") or None, meta)
