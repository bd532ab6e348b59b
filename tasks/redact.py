"""Replaces personal data in documents (stage "redact").

Reads documents; writes the same documents, in the same order, with each match of tasks/personal_data.py replaced.
A replacement is chosen by the hash of the match alone, so one address gets one replacement wherever it stands, and
replacements hold no personal data themselves.
Ledger: one edit row per document and kind; reason = the kind, value = number of matches, detail = masked samples: every
letter and digit of a sample is overwritten ("aaa@aaaa.aaa", "000-000-0000"), the data itself is written nowhere.

    "mail jo@acme.org" -> "mail email@example.com"
"""

from collections import Counter
from itertools import groupby
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BaseModel, Field, JsonValue, field_validator, model_validator

from tasks.config import check_by_source, for_source
from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.ledger import Ledger
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, documents_of
from tasks.personal_data import Kind, Match, find_in_column, find_personal_data

KINDS: tuple[Kind, ...] = ("email", "ipv4", "ipv6", "phone", "iban", "card", "api_key", "private_key")
REASONS = frozenset(KINDS)
RESULT_PACKAGES = ("xxhash",)
SAMPLES = 3  # masked samples per document and kind

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


class RedactConfig(BaseModel, frozen=True, extra="forbid"):
    """What counts as personal data and what stands in its place."""

    enabled: bool = Field(default=True, description="false: documents pass unchanged")
    kinds: tuple[Kind, ...] = Field(default=KINDS, description="kinds of personal data to replace")
    replacements: dict[Kind, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default=REPLACEMENTS, description="per kind, texts to choose from by the hash of the match; others keep theirs"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @field_validator("replacements")
    @classmethod
    def _clean_replacements(cls, value: dict[Kind, tuple[str, ...]]) -> dict[Kind, tuple[str, ...]]:
        for kind, texts in value.items():
            for text in sorted(
                set(texts) - set(REPLACEMENTS[kind])
            ):  # ours are known; loading the kernels takes a second
                if found := find_personal_data(text):
                    raise ValueError(f"{kind}: {text!r} is {found[0].kind} itself; use a reserved example")
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
        return dataset.publish(dataset.compute(units, redact_part))


def redact_part(unit: Unit, writer: PartWriter) -> None:
    """One part: each row group's texts searched as one buffer, the few with a match rewritten."""
    config = unit.config
    assert isinstance(config, RedactConfig)
    for table in documents_of(unit, writer):
        writer.write(redact_table(table, config, writer.ledger) if config.enabled else table)


def redact_table(table: pa.Table, config: RedactConfig, ledger: Ledger) -> pa.Table:
    """The table with redacted texts; what was replaced goes into the ledger."""
    texts = table["text"].combine_chunks()
    edited: dict[int, str] = {}
    for row, text, matches in find_in_column(texts):
        if wanted := [match for match in matches if match.kind in config.kinds]:
            edited[row] = replace_matches(text, wanted, config).decode()
            _record(ledger, table, row, text, wanted)
    if not edited:
        return table
    position = table.schema.get_field_index("text")
    mask = np.zeros(len(texts), np.bool_)
    mask[list(edited)] = True
    column = pc.replace_with_mask(texts, mask, pa.array(edited.values(), pa.large_string()))
    return table.set_column(position, table.schema.field(position), column)


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
    return "".join("0" if char.isdigit() else "a" if char.isalpha() else char for char in found[:64])


def _record(ledger: Ledger, table: pa.Table, row: int, text: bytes, matches: list[Match]) -> None:
    doc_id, source = table["doc_id"][row].as_py(), table["source"][row].as_py()
    counts = Counter(match.kind for match in matches)
    for kind, group in groupby(sorted(matches), key=lambda match: match.kind):
        samples = sorted({masked(text[match.start : match.end].decode()) for match in group})[:SAMPLES]
        ledger.edit(doc_id, source, kind, value=counts[kind], detail={"samples": samples})
