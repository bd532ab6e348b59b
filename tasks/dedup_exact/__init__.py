"""Exact duplicates: first by URL (the latest record of a URL stays), then by text over the survivors.

Reads documents of all sources; writes documents without duplicates. Reasons: same_url, same_text; `matched_id` names
the document kept instead (which the text pass may in turn have dropped for another: follow its own ledger row).

URLs are compared without scheme, fragment, default port, "www." and trailing slash, texts after Unicode composition
(NFC), lower-casing and folding of whitespace: two texts that differ in a number or in punctuation are not the same.
Keys are 128-bit XXH3. Of the records of one URL the latest stays, then keeper order (tasks/keepers.py) decides, as it
does for texts. Steps: keys (per part, kept for later runs) -> by-url (exchange) -> urls -> url-decisions -> by-text
(exchange) -> texts -> decisions -> the documents. Memory: the distinct keys of a partition, so that a key which a third
of all documents share costs no more than any other. Where the recipe asks, lines, paragraphs and runs of words that
stand in several documents are cut on the way (repeated_text.py; reasons repeated_text and all_repeated).
"""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal, Self
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BaseModel, Field, JsonValue, model_validator
from pydantic.config import JsonDict

from tasks.config import Several, check_by_source, for_source
from tasks.dataset import Dataset, Workspace
from tasks.dedup_exact.repeated_text import (
    ALL_REPEATED,
    KINDS,
    REPEATED,
    Cutter,
    RepeatedPieces,
    RepeatedSubstrings,
    find_repeated,
    ranks_of,
)
from tasks.documents import DOCUMENT_SCHEMA
from tasks.exchange import (
    check_exchange,
    count,
    num_partitions,
    partition_pieces,
    partition_units,
    remove_parts,
    write_partitions,
)
from tasks.guard_rail import WARNED_DOCUMENTS, check_dropped_share, losses_by_source
from tasks.keepers import (
    KEEPER_FIELDS,
    KEEPER_ORDER,
    PROTECTED_PRIORITY,
    VERDICT_SCHEMA,
    apply_by_part,
    dates_of,
    decide_by_part,
    documents_that_stay,
    lengths_of,
    priorities_of,
    write_verdicts,
)
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, documents_of, read_part

logger = logging.getLogger(__name__)

RESULT_PACKAGES = ("xxhash",)
REASONS = frozenset(["same_url", "same_text", REPEATED, ALL_REPEATED])
ROW_BYTES = 250  # of an exchanged row with its sorted copy: two key halves, four numbers, a doc_id
BUFFERED_ROWS = 1 << 18  # rows gathered before they are reduced or written
# NFC sorts the marks on one letter in quadratic time (80,000 take 13 s); a joiner, as in UAX #15, ends such a run
MARK_RUN = re.compile(r"[^\w\s]{64}")
DEFAULT_PORTS = {"http": 80, "https": 443}

NEUTRAL: JsonDict = {"neutral": []}
NONE: JsonDict = {"neutral": None}
Kind = Literal["url", "text"]

KEY_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("date", pa.int64(), nullable=False),
        pa.field("url_key", pa.uint64()),  # null: takes no part in this pass
        pa.field("url_check", pa.uint64()),
        pa.field("text_key", pa.uint64()),
        pa.field("text_check", pa.uint64()),
    ]
)
EXCHANGE_SCHEMA = pa.schema(
    [pa.field("key", pa.uint64(), nullable=False), pa.field("check", pa.uint64(), nullable=False), *KEEPER_FIELDS]
)
PAIR = ["key", "check"]
LATEST = np.iinfo(np.int64).max
LATEST_FIRST = [("date", "descending"), *(field for field in KEEPER_ORDER if field[0] != "date")]


class ExactDedupConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Which documents count as the same, and which of them stays."""

    enabled: bool = Field(default=True, description="false: copy the documents through")
    by_url: bool = Field(default=True, description="drop all but the latest record of a URL")
    by_text: bool = Field(default=True, description="drop all but one of the documents with the same normalised text")
    priorities: dict[str, int] = Field(
        default={}, description="of the same text, the source with the higher number is kept; 0 where none is given"
    )
    protected: Several[str] = Field(
        default=(), description="sources that lose no document: others are dropped for them", json_schema_extra=NEUTRAL
    )
    lines: RepeatedPieces | None = Field(
        default=None, description="cut lines that stand in several documents", json_schema_extra=NONE
    )
    paragraphs: RepeatedPieces | None = Field(
        default=None, description="cut paragraphs that stand in several documents", json_schema_extra=NONE
    )
    substrings: RepeatedSubstrings | None = Field(
        default=None, description="cut runs of words that stand in several documents", json_schema_extra=NONE
    )
    max_dropped_ratio: float = Field(
        default=0.9, ge=0, le=1, description="a source of 1,000 documents or more that would lose a larger share stops"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for source, over in self.by_source.items():
            for kind in KINDS:
                if over.get(kind) is not None:
                    raise ValueError(f"by_source.{source}.{kind}: limits hold for the corpus; a source can say null")
        return check_by_source(self)


def drop_exact_duplicates(documents: Manifest, *, into: Workspace, config: ExactDedupConfig) -> Manifest:
    """Documents of all sources -> documents without exact duplicates."""
    dataset = into.dataset(
        "dedup-exact", config, inputs={"documents": documents}, module=__name__, schema=DOCUMENT_SCHEMA,
        conservation="documents", reasons=REASONS,
    )  # fmt: skip
    if found := dataset.find():
        return found
    with dataset.lease():
        keys = take_keys(dataset, documents, config)
        urls = find_duplicates(dataset, keys, None, "url", config)
        gone = decide_by_part(dataset, "url-decisions", documents, {"urls": urls})
        texts = find_duplicates(dataset, keys, gone, "text", config)
        decisions = decide_by_part(dataset, "decisions", documents, {"urls": urls, "texts": texts})
        receipts = _apply(dataset, documents, decisions, config)
        _warn_of_shared_urls(receipts)
        limits = {source: for_source(config, source).max_dropped_ratio for source in documents.sources}
        check_dropped_share(dataset.stage, receipts, limits)
        return dataset.publish(receipts)


def _warn_of_shared_urls(receipts: Sequence[Receipt]) -> None:
    """A line per source of which most documents went by URL: chapters that bear the address of their book."""
    for source, own in losses_by_source(receipts).items():
        by_url = own.reasons["same_url"]
        if own.documents >= WARNED_DOCUMENTS and 2 * by_url > own.documents:
            logger.warning(
                "dedup-exact: %d of %d documents (%.0f %%) of source %s dropped as records of the same URL; where they "
                "are different texts, set dedup_exact.by_source.%s.by_url: false",
                by_url, own.documents, 100 * by_url / own.documents, source, source,
            )  # fmt: skip


def _apply(dataset: Dataset, documents: Manifest, decisions: Manifest, config: ExactDedupConfig) -> list[Receipt]:
    """The stage's own parts: documents without those that a decision drops, and without what they repeat."""
    kinds = [kind for kind in KINDS if getattr(config, kind) is not None]
    if not kinds:
        return apply_by_part(dataset, documents, decisions)
    own = {source: for_source(config, source) for source in documents.sources}
    priorities = priorities_of(documents, config.priorities, config.protected)
    cuts: dict[str, Manifest] = {}
    for kind in kinds:
        some = {source for source, its in own.items() if its.enabled and getattr(its, kind) is not None}
        cuts[kind] = find_repeated(
            dataset, documents, decisions, kind, getattr(config, kind), ranks_of(priorities, some)
        )
    units = [
        dataset.unit((*parts,), source=parts[0].source, arguments={"kinds": list(cuts)})
        for parts in zip(documents.parts, decisions.parts, *(found.parts for found in cuts.values()), strict=True)
    ]
    return dataset.compute(units, cut_documents)


def cut_documents(unit: Unit, writer: PartWriter) -> None:
    """Part function: (documents, decisions, cuts of each kind) -> documents that stay, cut."""
    cutter = Cutter(unit, dict(zip(unit.arguments["kinds"], unit.inputs[2:], strict=True)))
    for table, rows in documents_that_stay(unit, writer):
        writer.write(cutter.cut(table, rows, writer.ledger))


def take_keys(dataset: Dataset, documents: Manifest, config: ExactDedupConfig) -> Manifest:
    """The step `keys`: one row per document; a part is computed again only when its documents change."""
    passes = {source: _passes(for_source(config, source)) for source in documents.sources}
    step = dataset.step(
        "keys", KEY_SCHEMA, inputs={"documents": documents}, config=None, external={"passes": passes},
        conservation="rows",
    )  # fmt: skip
    if found := step.find():
        return found
    units = [step.unit((part,), source=part.source, arguments=passes[str(part.source)]) for part in documents.parts]
    return step.publish(step.compute(units, key_documents))


def _passes(config: ExactDedupConfig) -> dict[str, bool]:
    return {"url": config.enabled and config.by_url, "text": config.enabled and config.by_text}


def key_documents(unit: Unit, writer: PartWriter) -> None:
    """Part function: documents -> keys."""
    columns = ["doc_id", "text", "url", "timestamp"]
    for table in documents_of(unit, writer, columns=columns):
        urls = table["url"].to_pylist() if unit.arguments["url"] else [None] * table.num_rows
        texts = table["text"].to_pylist() if unit.arguments["text"] else [None] * table.num_rows
        url_keys = [_halves(normalise_url(url)) for url in urls]
        text_keys = [_halves(None if text is None else normalise_text(text)) for text in texts]
        values = [table["doc_id"], lengths_of(table["text"]), dates_of(table["timestamp"])]
        values += [[pair[half] for pair in pairs] for pairs in (url_keys, text_keys) for half in (0, 1)]
        writer.write(pa.table(values, schema=KEY_SCHEMA))


def find_duplicates(
    dataset: Dataset, keys: Manifest, gone: Manifest | None, kind: Kind, config: ExactDedupConfig
) -> Manifest:
    """The step `urls` or `texts`: verdicts on the documents that share a key, without those that are `gone` already."""
    inputs = {"keys": keys} if gone is None else {"keys": keys, "gone": gone}
    priorities = priorities_of(keys, config.priorities, config.protected)
    step = dataset.step(f"{kind}s", VERDICT_SCHEMA, inputs=inputs, config=None, external={"priorities": priorities})
    if found := step.find():
        return found
    partitions = num_partitions(keys.totals["rows_out"] * ROW_BYTES)
    sent = _send(dataset, keys, gone, kind, {"priorities": priorities, "partitions": partitions})
    units = partition_units(step, [receipt.part for receipt in sent], partitions, kind=kind)
    verdicts = step.compute(units, judge_partition)
    check_exchange(step.stage, sent, verdicts)
    manifest = step.publish(verdicts)
    remove_parts(dataset.storage, sent)
    return manifest


def _send(
    dataset: Dataset, keys: Manifest, gone: Manifest | None, kind: Kind, facts: Mapping[str, object]
) -> list[Receipt]:
    exchange = dataset.step(f"by-{kind}", EXCHANGE_SCHEMA, inputs={}, config=None)
    units = []
    for number, part in enumerate(keys.parts):
        inputs = (part,) if gone is None else (part, gone.parts[number])
        arguments = {**facts, "kind": kind, "part": number, "for": dataset.fingerprint}
        units.append(exchange.unit(inputs, source=part.source, arguments=arguments))
    return exchange.compute(units, send_keys)


def send_keys(unit: Unit, writer: PartWriter) -> None:
    """Part function: (keys, documents gone already) -> the exchange, partitioned by key."""
    kind, priority = unit.arguments["kind"], unit.arguments["priorities"][unit.source]
    is_free = kind == "text" or priority < PROTECTED_PRIORITY
    keys = pa.concat_tables([KEY_SCHEMA.empty_table(), *documents_of(unit, writer)])
    keys = keys.filter(pc.is_valid(keys[f"{kind}_key"]))
    if len(unit.inputs) > 1:
        gone = [table["doc_id"].combine_chunks() for table in read_part(unit.storage, unit.inputs[1], ["doc_id"])]
        known = pa.chunked_array(gone, pa.string())
        keys = keys.filter(pc.invert(pc.is_in(keys["doc_id"], value_set=known)))
    rows = keys.num_rows
    values = {
        "key": keys[f"{kind}_key"],
        "check": keys[f"{kind}_check"],
        "doc_id": keys["doc_id"],
        "part": np.full(rows, unit.arguments["part"], np.int32),
        "priority": np.full(rows, priority, np.int64),
        "length": keys["length"],
        "date": keys["date"] if is_free else np.full(rows, LATEST, np.int64),  # protected comes first, also by URL
    }
    write_partitions(writer, pa.table(values, schema=EXCHANGE_SCHEMA), values["key"].to_numpy())


def judge_partition(unit: Unit, writer: PartWriter) -> None:
    """Part function: one partition -> verdicts. Read twice: first who is kept for each key, then who goes."""
    kind: Kind = unit.arguments["kind"]
    kept = _kept(unit, LATEST_FIRST if kind == "url" else KEEPER_ORDER)
    keys, checks, kept_ids = kept["key"].to_numpy(), kept["check"].to_numpy(), kept["doc_id"]
    waiting: list[pa.Table] = []
    for table in partition_pieces(unit):
        count(writer, table)
        places = np.searchsorted(keys, table["key"].to_numpy())
        other = checks[places] != table["check"].to_numpy()
        while other.any():  # two checks under one key: astronomically rare, but no reason to drop a document
            places = places + other
            other = checks[places] != table["check"].to_numpy()
        matched = kept_ids.take(pa.array(places))
        verdicts = pa.table(
            {
                "part": table["part"],
                "doc_id": table["doc_id"],
                "reason": pa.array([f"same_{kind}"] * table.num_rows),
                "matched_id": matched,
                "value": pa.nulls(table.num_rows, pa.float64()),
            },
            schema=VERDICT_SCHEMA,
        )
        is_free = pc.less(table["priority"], PROTECTED_PRIORITY)
        waiting.append(verdicts.filter(pc.and_(pc.not_equal(verdicts["doc_id"], matched), is_free)))
        if sum(piece.num_rows for piece in waiting) >= BUFFERED_ROWS:
            write_verdicts(writer, pa.concat_tables(waiting))
            waiting = []
    if waiting:
        write_verdicts(writer, pa.concat_tables(waiting))


def _kept(unit: Unit, order: list[tuple[str, str]]) -> pa.Table:
    """The first row of each key in `order`, sorted by key. Holds the distinct keys and as many rows again."""
    kept = EXCHANGE_SCHEMA.empty_table()
    waiting: list[pa.Table] = []
    rows = 0
    for table in partition_pieces(unit):
        waiting.append(table)
        rows += table.num_rows
        if rows > max(BUFFERED_ROWS, kept.num_rows):
            kept, waiting, rows = _first_of_keys(pa.concat_tables([kept, *waiting]), order), [], 0
    return _first_of_keys(pa.concat_tables([kept, *waiting]), order)


def _first_of_keys(table: pa.Table, order: list[tuple[str, str]]) -> pa.Table:
    ordered = table.sort_by([*((name, "ascending") for name in PAIR), *order]).combine_chunks()
    first = np.ones(ordered.num_rows, np.bool_)
    pairs = [ordered[name].to_numpy() for name in PAIR]
    first[1:] = np.any([values[1:] != values[:-1] for values in pairs], axis=0)
    return ordered.filter(pa.array(first))


def normalise_text(text: str) -> str:
    """Composed (NFC), lower-cased, runs of whitespace as one space, none at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", MARK_RUN.sub("\\g<0>\N{COMBINING GRAPHEME JOINER}", text))
    return " ".join(text.lower().split())


def normalise_url(url: str | None) -> str | None:
    """What two spellings of one address have in common; None for no URL. What is no URL is only stripped."""
    stripped = (url or "").strip()
    if not stripped:
        return None
    try:
        parts = urlsplit(stripped)
        port = parts.port
    except ValueError:  # a broken bracket or port
        return stripped
    if not parts.netloc:
        return stripped
    host = (parts.hostname or "").rstrip(".").removeprefix("www.")
    place = host if port in (None, DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"
    return f"{place}{parts.path.rstrip('/')}" + (f"?{parts.query}" if parts.query else "")


def _halves(value: str | None) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    number = xxhash.xxh3_128_intdigest(value.encode())
    return number >> 64, number & 0xFFFFFFFFFFFFFFFF
