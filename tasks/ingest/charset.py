"""Bytes to text: by byte order mark, then label (HTTP header), then HTML meta, then detection, then replacement.

Labels are read as browsers read them (WHATWG: iso-8859-1 means windows-1252, gb2312 means gb18030). An unknown or wrong
label never fails a document: the next way is tried, and a text that needed replacement characters says so.
"""

import codecs
import re
from dataclasses import dataclass

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

RESULT_PACKAGES = ("resiliparse",)

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
WIDE_MARKS = (*BYTE_ORDER_MARKS[1:], *(('{"'.encode(charset), charset) for charset in ("utf-16-le", "utf-16-be")))
META_BYTES = 4096  # the standard says 1024; real pages put it later
META_CHARSET = re.compile(rb"<meta[^>]{0,512}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
DETECT_BYTES = 1 << 16
ANY_BYTES = frozenset({"windows-1252", "iso-8859-1", "latin-1", "cp1252"})  # these accept nearly all bytes: no evidence
MAX_WESTERN_RATIO = 0.2  # Western European text has fewer letters beyond ASCII
NO_CHARSETS = frozenset({"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"})
REPLACEMENT = "\ufffd"
SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")  # never in UTF-8


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, the charset it was read in, and how many replacement characters stand for bytes that had no meaning."""

    text: str
    charset: str
    replaced: int = 0


def decode_bytes(data: bytes, label: str | None = None, *, is_html: bool = False) -> Decoded:
    """Text of any bytes; never raises. `label`: the charset that the HTTP header names."""
    for mark, charset in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_as(data[len(mark) :], charset)
    labels = [label] if label else []
    if is_html and (found := META_CHARSET.search(data[:META_BYTES])):
        labels.append(found.group(1).decode("ascii"))
    charsets = [known for name in labels if (known := known_charset(name))]
    for charset in _utf8_first(charsets, data):
        if (text := _strict(data, charset)) is not None:
            return Decoded(text, charset)
    return _guess(data, charsets)


def wide_charset(head: bytes) -> str | None:
    """UTF-16 or UTF-32 where a text begins with its mark, or as a JSON object does in UTF-16; None for others.

    Lines of such a text can't be told by their bytes.
    """
    return next((charset for mark, charset in WIDE_MARKS if head.startswith(mark)), None)


def known_charset(label: str) -> str | None:
    """The Python codec for a label, mapped as browsers do; None when there is none for text."""
    name = label.strip().strip("\"'").lower()
    mapped = map_encoding_to_html5(name, fallback_utf8=False) or name
    try:
        codec = codecs.lookup(mapped)
        b"\xff".decode(mapped, "replace")  # LookupError for codecs that do not make text (base64, rot13)
    except (LookupError, UnicodeError, ValueError):
        return None
    return None if codec.name in NO_CHARSETS else mapped


def _utf8_first(charsets: list[str], data: bytes) -> list[str]:
    """UTF-8 goes before labels that any bytes satisfy, and stands alone without a label."""
    if charsets:
        return ["utf-8", *charsets] if charsets[0] in ANY_BYTES else charsets
    # escape codes: all bytes are ASCII, so UTF-8 would accept them
    is_iso2022 = b"\x1b" in data and _detected(data).startswith("iso2022")
    return [_detected(data), "utf-8"] if is_iso2022 else ["utf-8"]


def _detected(data: bytes) -> str:
    return known_charset(detect_encoding(data, max_len=DETECT_BYTES) or "") or "utf-8"


def _joined_surrogates(text: str) -> Decoded:
    """Pairs make one character, as in CESU-8 (Java, Oracle); a lone one has no meaning."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return Decoded(joined, "cesu-8", joined.count(REPLACEMENT) - text.count(REPLACEMENT))


def _strict(data: bytes, charset: str, errors: str = "strict") -> str | None:
    try:
        return data.decode(charset, errors)
    except (UnicodeError, ValueError):
        return None


def _guess(data: bytes, charsets: list[str]) -> Decoded:
    """No label fits: UTF-8 with surrogates; damaged UTF-8 where most is sound; detection; replacement."""
    if SURROGATE.search(data) and (text := _strict(data, "utf-8", "surrogatepass")) is not None:
        return _joined_surrogates(text)
    utf8 = _decode_as(data, "utf-8")
    sound = sum(1 for char in utf8.text if char > "\x7f") - utf8.replaced
    if utf8.replaced == 0 or sound > utf8.replaced:
        return utf8
    detected = _detected(data)
    if detected == "utf-8" and utf8.replaced <= MAX_WESTERN_RATIO * len(data):
        detected = "cp1252"  # no idea (too short): what browsers take where nothing is said
    if (text := _strict(data, detected)) is not None:
        return Decoded(text, detected)
    return _decode_as(data, charsets[0] if charsets else detected)


def _decode_as(data: bytes, charset: str) -> Decoded:
    text = data.decode(charset, "replace")
    return Decoded(text, charset, text.count(REPLACEMENT))
