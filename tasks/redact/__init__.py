"""Replaces personal data in documents (stage "redact").

Reads documents; writes the same documents, in the same order, with each match of personal_data.py replaced.
A replacement is chosen by the hash of the match alone, so one address gets one replacement wherever it stands; what is
a replacement already stays, so that a second pass changes nothing.
Ledger: one edit row per document and kind; reason = the kind, value = number of matches, detail = masked samples: every
letter and digit of a sample is overwritten ("aaa@aaaa.aaa", "000-000-0000"), the data itself is written nowhere.
`extra["personal_data"]`: the same per source and kind: matches, documents, samples.

    "mail jo@acme.org" -> "mail email@example.com"
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

import pyarrow as pa
import xxhash
from pydantic import BaseModel, Field, JsonValue, field_validator, model_validator

from tasks.config import Several, check_by_source, for_source
from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA, with_texts
from tasks.ledger import Ledger
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, documents_of
from tasks.redact.personal_data import Kind, Match, find_in_column, find_personal_data

KINDS: tuple[Kind, ...] = ("email", "ipv4", "ipv6", "phone", "iban", "card", "api_key", "private_key")
REASONS = frozenset(KINDS)
RESULT_PACKAGES = ("xxhash",)
MASKED_CHARS = 64  # of a sample; a private key is longer
SAMPLES = 3  # masked samples per document and kind, and per source and kind
PHONE_DIGITS = 10  # what tells a phone number from another, whatever stands before and between

# Reserved for examples, so that they belong to nobody: RFC 2606, 5737, 3849 and the fictional 555-01XX numbers
REPLACEMENTS: dict[Kind, tuple[str, ...]] = {
    "email": ("email@example.com", "name@example.org", "firstname.lastname@example.com", "contact@example.net"),
    "ipv4": ("192.0.2.17", "192.0.2.88", "198.51.100.5", "198.51.100.142", "203.0.113.30", "203.0.113.201"),
    "ipv6": ("2001:db8::17", "2001:db8::5:42", "2001:db8:1::30", "2001:db8:2::c9"),
    "phone": ("202-555-0117", "303-555-0142", "415-555-0166", "512-555-0183", "617-555-0129", "702-555-0155"),
    "iban": ("[IBAN]",),
    "card": ("[CARD NUMBER]",),
    "api_key": ("[API KEY]",),
    "private_key": ("[PRIVATE KEY]",),
}

Tally = dict[str, dict[str, Any]]  # per kind: matches, documents, samples


class RedactConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """What counts as personal data and what stands in its place."""

    enabled: bool = Field(default=True, description="false: documents pass unchanged")
    kinds: Several[Kind] = Field(default=KINDS, description="kinds of personal data to replace")
    replacements: dict[Kind, Annotated[Several[str], Field(min_length=1)]] = Field(
        default=REPLACEMENTS, description="per kind, texts to choose from by the hash of the match; others keep theirs"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @field_validator("replacements")
    @classmethod
    def _check_replacements(cls, value: dict[Kind, tuple[str, ...]]) -> dict[Kind, tuple[str, ...]]:
        for kind, texts in value.items():
            for text in sorted(set(texts) - set(REPLACEMENTS[kind])):  # ours are known; kernels take a second to load
                for found in find_personal_data(text):
                    if found != (kind, 0, len(text.encode())):
                        raise ValueError(f"{kind}: {text!r} holds {found.kind} data; a second pass would replace it")
        return REPLACEMENTS | value

    @model_validator(mode="after")
    def _check_by_source(self) -> "RedactConfig":
        return check_by_source(self)


def redact_personal_data(documents: Manifest, *, into: Workspace, config: RedactConfig) -> Manifest:
    """Documents with personal data replaced."""
    dataset = into.dataset(
        "redact", config, inputs={"documents": documents}, module=__name__, schema=DOCUMENT_SCHEMA,
        conservation="documents", reasons=REASONS,
    )  # fmt: skip
    if found := dataset.find():
        return found
    with dataset.lease():
        units = [
            dataset.unit([part], source=part.source, config=for_source(config, part.source or ""))
            for part in documents.parts
        ]
        receipts = dataset.compute(units, redact_part)
        return dataset.publish(receipts, extra={"personal_data": summary_of(receipts)})


def summary_of(receipts: Sequence[Receipt]) -> dict[str, Tally]:
    """What was replaced, per source and kind."""
    summary: dict[str, Tally] = {}
    for receipt in receipts:
        own = summary.setdefault(receipt.part.source or "", {})
        for kind, found in receipt.extra.get("personal_data", {}).items():
            _count(own, kind, **found)
    return summary


def redact_part(unit: Unit, writer: PartWriter) -> None:
    """One part: each row group's texts searched as one buffer, the few with a match rewritten."""
    config = unit.config
    assert isinstance(config, RedactConfig)
    tally: Tally = {}
    for table in documents_of(unit, writer):
        writer.write(redact_table(table, config, writer.ledger, tally) if config.enabled else table)
    writer.extra["personal_data"] = tally


def redact_table(table: pa.Table, config: RedactConfig, ledger: Ledger, tally: Tally) -> pa.Table:
    """The table with redacted texts; what was replaced goes into the ledger and is added to the tally."""
    edited: dict[int, str] = {}
    for row, text, matches in find_in_column(table["text"]):
        if wanted := [match for match in matches if is_wanted(match.kind, text[match.start : match.end], config)]:
            edited[row] = replace_matches(text, wanted, config).decode()
            for facts in _by_kind(text, wanted):
                _record(ledger, table.slice(row, 1), facts)
                _count(tally, **facts)
    return with_texts(table, edited)


def redact_text(text: str, config: RedactConfig) -> str:
    """One text without personal data, for what is shown of documents before they come to this stage."""
    data = text.encode()
    wanted = [m for m in find_personal_data(text) if is_wanted(m.kind, data[m.start : m.end], config)]
    return replace_matches(data, wanted, config).decode()


def is_wanted(kind: Kind, found: bytes, config: RedactConfig) -> bool:
    """Whether a match is to be replaced: its kind is asked for, and it is no replacement already."""
    if kind not in config.kinds:
        return False
    return _identity(kind, found) not in {_identity(kind, text.encode()) for text in config.replacements[kind]}


def _identity(kind: Kind, found: bytes) -> bytes:
    """What two ways to write one address or number have in common."""
    if kind == "phone":
        return b"".join(re.findall(rb"[0-9]", found))[-PHONE_DIGITS:]
    return found.lower()


def replace_matches(text: bytes, matches: list[Match], config: RedactConfig) -> bytes:
    """The text with each match replaced."""
    pieces, last = [], 0
    for match in matches:
        pieces += [text[last : match.start], replacement_of(match.kind, text[match.start : match.end], config)]
        last = match.end
    return b"".join([*pieces, text[last:]])


def replacement_of(kind: Kind, found: bytes, config: RedactConfig) -> bytes:
    """What stands in place of a match; depends on the match alone (case apart)."""
    choices = config.replacements[kind]
    return choices[xxhash.xxh64_intdigest(found.lower()) % len(choices)].encode()


def masked(found: str) -> str:
    """The shape of a match: letters become "a", digits "0"."""
    return "".join("0" if char.isdigit() else "a" if char.isalpha() else char for char in found[:MASKED_CHARS])


def _by_kind(text: bytes, matches: list[Match]) -> Iterator[dict[str, Any]]:
    """Of one document: kind, matches and masked samples."""
    for kind, group in groupby(sorted(matches), key=lambda match: match.kind):
        found = [text[match.start : match.end].decode() for match in group]
        yield {"kind": kind, "matches": len(found), "samples": sorted(set(map(masked, found)))[:SAMPLES]}


def _record(ledger: Ledger, document: pa.Table, facts: dict[str, Any]) -> None:
    doc_id, source = document["doc_id"][0].as_py(), document["source"][0].as_py()
    ledger.edit(doc_id, source, facts["kind"], value=facts["matches"], detail={"samples": facts["samples"]})


def _count(tally: Tally, kind: Kind, matches: int, samples: list[str], documents: int = 1) -> None:
    own = tally.setdefault(kind, {"matches": 0, "documents": 0, "samples": []})
    own["matches"] += matches
    own["documents"] += documents
    own["samples"] = sorted({*own["samples"], *samples})[:SAMPLES]
