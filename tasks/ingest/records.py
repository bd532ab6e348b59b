"""What readers yield, and how text and meta are made sound before they become a document."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.ingest.charset import Decoded

ErrorReason = Literal[
    # the file
    "truncated", "corrupt_member", "corrupt_record", "corrupt_file", "binary", "wide_charset",
    # the record
    "invalid_json", "not_object", "missing_text", "wrong_type", "empty", "too_large", "bad_http",
    # the page
    "too_many_nodes", "too_deep", "too_many_attributes", "too_many_options",
    "no_content", "extractor_failed", "extractor_crashed", "timeout",
]  # fmt: skip
EditReason = Literal["decode_lossy", "lone_surrogate", "nul_bytes", "column_type", "wrong_length"]

# What prints nothing: controls, soft hyphen, zero-width and directional marks, byte order mark. A text of these alone
# is as empty as one of spaces.
VISIBLE = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\u00ad\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u2800\u3164\ufeff]"
)
SURROGATES = re.compile("[\ud800-\udfff]")
MAX_META_BYTES = 1 << 20  # further fields of one record; larger ones are left out and named

MAX_META_DEPTH = 50  # deeper than any real record; json itself gives up at about 1,000


@dataclass(slots=True)
class Record:
    """A record that gave text. `meta`: all else that the input had; `edits`: what had to be repaired, with a count."""

    position: str
    text: str
    url: str | None = None
    timestamp: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    edits: dict[EditReason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record, or a place in a file, that could not be read."""

    position: str
    reason: ErrorReason
    detail: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record of a kind that is not wanted (a request, an image)."""

    kind: str


Outcome = Record | Rejected | Skipped
Outcomes = Iterator[Outcome]


def sound(record: Record) -> Record | Rejected:
    """The record with valid, non-empty text; repairs are noted in `edits`."""
    text = record.text
    if VISIBLE.search(text) is None:
        return Rejected(record.position, "empty", {"chars": len(text)})
    if "\0" in text:
        record.edits["nul_bytes"] = text.count("\0")
        text = text.replace("\0", "")
    record.text = _without_surrogates(text, record)
    record.url = record.url and _without_surrogates(record.url, record)
    record.timestamp = record.timestamp and _without_surrogates(record.timestamp, record)
    if record.edits:
        record.meta["repaired"] = dict(record.edits)
    return record


def _without_surrogates(text: str, record: Record) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text, count = SURROGATES.subn("\ufffd", text)
        record.edits["lone_surrogate"] = record.edits.get("lone_surrogate", 0) + count
    return text


def note_decoding(record: Record, decoded: Decoded) -> None:
    """Keep in meta how a text was decoded, where that is not plain UTF-8."""
    if decoded.charset != "utf-8":
        record.meta["charset"] = decoded.charset
    if decoded.replaced:
        record.edits["decode_lossy"] = decoded.replaced
        record.meta["replaced_ratio"] = round(decoded.replaced / max(1, len(decoded.text)), 6)


def sound_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Meta as valid JSON values: no NaN, no lone surrogates, no bytes; too large ones give way to their size."""
    try:
        dumped = json.dumps(meta, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        meta = _sound_value(meta, 0)
        dumped = json.dumps(meta, ensure_ascii=False).encode("utf-8")
    return meta if len(dumped) <= MAX_META_BYTES else {"meta_left_out_bytes": len(dumped)}


def _sound_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return SURROGATES.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, int):  # bool is one
        return value
    if isinstance(value, (dict, list, tuple)):
        return _sound_container(value, depth + 1)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _sound_container(value: Any, depth: int) -> Any:
    if depth > MAX_META_DEPTH:
        return f"{type(value).__name__} left out: nested too deep"
    if isinstance(value, dict):
        return {SURROGATES.sub("\ufffd", str(key)): _sound_value(item, depth) for key, item in value.items()}
    return [_sound_value(item, depth) for item in value]
