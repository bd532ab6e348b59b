"""Lines, paragraphs and word runs that stand in several documents: all copies but those of the first are cut.

Part of dedup-exact, over the documents that it keeps; off unless the recipe asks. Steps per kind: <kind> (exchange, one
row per piece, by its key) -> <kind>-cuts (pieces of enough documents) -> one slice per document part. A text is kept
where it comes first: by protected source, source priority, document part and row. So whatever is cut stands in an
earlier document, and what the first document holds of it stays there, whichever kind found it.

Exact repeated substrings are found by anchors (tasks/kernels/spans.py), not by a suffix array: an array needs all text
and 8 bytes per byte of it at once, anchors need a row per 13 words, partition by partition. A second exchange then
compares every window of `min_words` words around the anchors that repeat; the union of the windows is what is repeated,
exact to 128-bit hashes. Memory: the distinct keys of a partition, so a line that all documents share costs no more than
any other.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from tasks.dataset import Dataset
from tasks.exchange import (
    check_exchange,
    count,
    num_partitions,
    partition_pieces,
    partition_units,
    remove_parts,
    rows_between,
    spread,
    write_partitions,
)
from tasks.keepers import PROTECTED_PRIORITY
from tasks.kernels.buffers import text_array, text_buffers
from tasks.kernels.cuts import apply_cuts
from tasks.kernels.spans import CHECK, END, KEY, ROW, START, anchor_pieces, line_pieces, paragraph_pieces, window_pieces
from tasks.ledger import Ledger
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Unit, read_part

REPEATED, ALL_REPEATED = "repeated_text", "all_repeated"  # reasons: an edit; a document of which nothing is left
PIECE_BYTES = 96  # of an exchanged row with its sorted copy
BYTES_PER_PIECE = {"lines": 40, "paragraphs": 200, "anchors": 60, "substrings": 60}  # of text, rather few
BUFFERED_ROWS = 1 << 18
PART_SHIFT, RANK_SHIFT = 32, 52  # a place: rank of its source, document part, row; int64, in the order of keeping
MAX_RANK = 1 << (63 - RANK_SHIFT)

Kind = Literal["lines", "paragraphs", "substrings"]
KINDS: tuple[Kind, ...] = ("lines", "paragraphs", "substrings")


class RepeatedPieces(BaseModel, frozen=True, extra="forbid", strict=True):
    """Which lines or paragraphs are cut."""

    min_documents: int = Field(default=6, ge=2, description="documents that must hold it, from which on it is cut")
    min_bytes: int = Field(default=20, ge=1, description="shorter ones stay: closing brackets, list marks, headings")
    keep_first: bool = Field(default=True, description="false: cut it from the first document too (boilerplate)")


class RepeatedSubstrings(BaseModel, frozen=True, extra="forbid", strict=True):
    """Which runs of words are cut."""

    min_words: int = Field(default=50, ge=20, le=1_000, description="words that a repeated run has at least")
    min_documents: int = Field(default=2, ge=2, description="documents that must hold it, from which on it is cut")
    keep_first: bool = Field(default=True, description="false: cut it from the first document too")


PIECE_SCHEMA = pa.schema(
    [
        *[pa.field(name, pa.uint64(), nullable=False) for name in ("key", "check")],
        *[pa.field(name, pa.int64(), nullable=False) for name in ("place", "start", "end", "fresh")],  # fresh: 1 for
    ]  # the first piece with this key in its document, else 0
)
CUT_SCHEMA = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        *[pa.field(name, pa.int64(), nullable=False) for name in ("row", "start", "end")],
    ]
)


def find_repeated(
    dataset: Dataset,
    documents: Manifest,
    decisions: Manifest,
    kind: Kind,
    rules: BaseModel,
    ranks: Mapping[str, int],
) -> Manifest:
    """What is to be cut: a slice per document part. ranks: of each source that takes part (ranks_of)."""
    values = rules.model_dump()
    others: tuple[Manifest, ...] = (decisions,)
    if kind == "substrings":
        every = values | {"keep_first": False, "spare": False}  # both sides of a repetition are compared
        others = (decisions, _cuts(dataset, documents, others, "anchors", every, ranks))
    return _cuts(dataset, documents, others, kind, values | {"spare": True}, ranks)


def _cuts(
    dataset: Dataset,
    documents: Manifest,
    others: tuple[Manifest, ...],
    kind: str,
    rules: Mapping[str, int],
    ranks: Mapping[str, int],
) -> Manifest:
    inputs = {"documents": documents, **{f"input {number}": manifest for number, manifest in enumerate(others)}}
    facts = {"rules": dict(rules), "ranks": dict(ranks)}
    step = dataset.step(f"{kind}-by-part", CUT_SCHEMA, inputs=inputs, config=None, external=facts)
    if found := step.find():
        return found
    partitions = num_partitions(documents.totals["bytes_out"] * PIECE_BYTES // BYTES_PER_PIECE[kind])
    exchange = dataset.step(kind, PIECE_SCHEMA, inputs={}, config=None)
    units = [
        exchange.unit(
            (part, *(manifest.parts[number] for manifest in others)), source=part.source,
            arguments={
                "kind": kind, "rules": dict(rules),
                "place": ranks[str(part.source)] << RANK_SHIFT | number << PART_SHIFT,
                "partitions": partitions, "for": dataset.fingerprint,
            },
        )
        for number, part in enumerate(documents.parts) if part.source in ranks
    ]  # fmt: skip
    sent = exchange.compute(units, send_pieces)
    judged = dataset.step(f"{kind}-cuts", CUT_SCHEMA, inputs=inputs, config=None, external=facts)
    parts = [receipt.part for receipt in sent]
    received = judged.compute(partition_units(judged, parts, partitions, rules=dict(rules)), judge_pieces)
    check_exchange(judged.stage, sent, received)
    cuts = judged.publish(received)
    remove_parts(dataset.storage, sent)
    slices = [step.unit(cuts.parts, arguments={"part": number}) for number in range(len(documents.parts))]
    return step.publish(step.compute(slices, slice_cuts))


def send_pieces(unit: Unit, writer: PartWriter) -> None:
    """Part function: (documents, decisions, anchors?) -> the exchange: the pieces of the documents that stay."""
    gone = _column(unit, unit.inputs[1], "doc_id")
    hits = _hits(unit, unit.inputs[2]) if len(unit.inputs) > 2 else None
    found, base = [PIECE_SCHEMA.empty_table()], 0
    for table in read_part(unit.storage, unit.inputs[0], ["doc_id", "text"]):
        rows = np.flatnonzero(~np.asarray(pc.is_in(table["doc_id"], value_set=gone)))
        texts = table["text"].take(pa.array(rows))
        pieces = _pieces_of(unit.arguments["kind"], unit.arguments["rules"], texts, _local(hits, base + rows))
        places = (base + rows)[pieces[:, ROW].astype(np.int64)] + unit.arguments["place"]
        found.append(_piece_rows(pieces, places))
        base += table.num_rows
    rows = pa.concat_tables(found)
    write_partitions(writer, rows, spread(rows["key"].to_numpy()))


def _pieces_of(kind: str, rules: Mapping[str, int], texts: pa.ChunkedArray, hits: np.ndarray) -> np.ndarray:
    if kind == "lines":
        return line_pieces(texts, rules["min_bytes"])
    if kind == "paragraphs":
        return paragraph_pieces(texts, rules["min_bytes"])
    if kind == "anchors":
        return anchor_pieces(texts, rules["min_words"])
    return window_pieces(texts, hits, rules["min_words"])


def _piece_rows(pieces: np.ndarray, places: np.ndarray) -> pa.Table:
    order = np.lexsort((pieces[:, START], pieces[:, CHECK], pieces[:, KEY], places))
    pieces, places = pieces[order], places[order]
    fresh = np.ones(len(pieces), np.int64)
    same = (
        (places[1:] == places[:-1]) & (pieces[1:, KEY] == pieces[:-1, KEY]) & (pieces[1:, CHECK] == pieces[:-1, CHECK])
    )
    fresh[1:] -= same
    spans = [pieces[:, START].astype(np.int64), pieces[:, END].astype(np.int64)]
    return pa.table([pieces[:, KEY].copy(), pieces[:, CHECK].copy(), places, *spans, fresh], schema=PIECE_SCHEMA)


def _hits(unit: Unit, part: Part) -> np.ndarray:
    """(row, first byte) of the anchors of one document part, int64, sorted, distinct."""
    tables = list(read_part(unit.storage, part, ["row", "start"]))
    if not tables:
        return np.empty((0, 2), np.int64)
    table = pa.concat_tables(tables)
    return np.unique(np.column_stack([table["row"].to_numpy(), table["start"].to_numpy()]), axis=0)


def _local(hits: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
    """The hits of these rows of the part, numbered by their place among them."""
    if hits is None or not len(rows):
        return np.empty((0, 2), np.int64)
    own = hits[np.isin(hits[:, 0], rows)]
    return np.column_stack([np.searchsorted(rows, own[:, 0]), own[:, 1]])


def _column(unit: Unit, part: Part, name: str) -> pa.ChunkedArray:
    return pa.chunked_array(
        [table[name].combine_chunks() for table in read_part(unit.storage, part, [name])], pa.string()
    )


def judge_pieces(unit: Unit, writer: PartWriter) -> None:
    """Part function: one partition -> the pieces to cut. Read twice: first how many documents hold each key."""
    rules, known = unit.arguments["rules"], _by_key(unit)
    keys, checks, first, documents = (known[name].to_numpy() for name in ("key", "check", "place", "fresh"))
    waiting: list[pa.Table] = []
    for table in partition_pieces(unit):
        count(writer, table)
        at = np.searchsorted(keys, table["key"].to_numpy())
        other = checks[at] != table["check"].to_numpy()
        while other.any():  # two checks under one key
            at = at + other
            other = checks[at] != table["check"].to_numpy()
        place = table["place"].to_numpy()
        goes = documents[at] >= rules["min_documents"]
        if rules["spare"]:
            goes &= place >= 1 << RANK_SHIFT  # rank 0 is protected
        if rules["keep_first"]:
            goes &= place != first[at]
        parts = ((place >> PART_SHIFT) & ((1 << RANK_SHIFT - PART_SHIFT) - 1)).astype(np.int32)
        columns = [parts, place & ((1 << PART_SHIFT) - 1), table["start"], table["end"]]
        waiting.append(pa.table(columns, schema=CUT_SCHEMA).filter(pa.array(goes)))
        if sum(piece.num_rows for piece in waiting) >= BUFFERED_ROWS:
            writer.write(pa.concat_tables(waiting).sort_by([("part", "ascending"), ("row", "ascending")]))
            waiting = []
    if waiting:
        writer.write(pa.concat_tables(waiting).sort_by([("part", "ascending"), ("row", "ascending")]))


def _by_key(unit: Unit) -> pa.Table:
    """Of each key of the partition the first place and the number of documents, sorted by key and check."""
    names = ["key", "check", "place", "fresh"]
    known, waiting, rows = PIECE_SCHEMA.empty_table().select(names), [], 0
    for table in partition_pieces(unit):
        waiting.append(table.select(names))
        rows += table.num_rows
        if rows > max(BUFFERED_ROWS, known.num_rows):
            known, waiting, rows = _merged([known, *waiting]), [], 0
    return _merged([known, *waiting])


def _merged(tables: list[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by(["key", "check"], use_threads=False)
    merged = grouped.aggregate([("place", "min"), ("fresh", "sum")])
    merged = merged.rename_columns({"place_min": "place", "fresh_sum": "fresh"}).select(
        ["key", "check", "place", "fresh"]
    )
    return merged.sort_by([("key", "ascending"), ("check", "ascending")]).cast(tables[0].schema).combine_chunks()


def slice_cuts(unit: Unit, writer: PartWriter) -> None:
    """Part function: the cuts of one document part, sorted by row."""
    number = int(unit.arguments["part"])
    found = [table for part in unit.inputs for table in rows_between(unit.storage, part, number, number + 1)]
    if found:
        table = pa.concat_tables(found)
        table = table.filter(pc.equal(table["part"], number))
        writer.write(table.sort_by([("row", "ascending"), ("start", "ascending"), ("end", "ascending")]))


class Cutter:
    """Cuts the documents of one part: the slices of all kinds, laid over each other."""

    def __init__(self, unit: Unit, slices: Mapping[str, Part]) -> None:
        self._cuts = {kind: pa.concat_tables(self._tables(unit, part)) for kind, part in slices.items()}

    @staticmethod
    def _tables(unit: Unit, part: Part) -> Iterator[pa.Table]:
        yield CUT_SCHEMA.empty_table()
        yield from read_part(unit.storage, part)

    def cut(self, table: pa.Table, rows: np.ndarray, ledger: Ledger) -> pa.Table:
        """Documents (numbered `rows` in their part) without what is repeated; those with nothing left are dropped."""
        spans = {kind: _spans_of(cuts, rows) for kind, cuts in self._cuts.items()}
        joined = _union(np.concatenate([np.empty((0, 3), np.int64), *spans.values()]))
        if not len(joined):
            return table
        bounds = np.searchsorted(joined[:, 0], np.arange(table.num_rows + 1))
        texts = text_array(*apply_cuts(*text_buffers(table["text"]), bounds, np.ascontiguousarray(joined[:, 1:])))
        left = np.asarray(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
        position = table.schema.get_field_index("text")
        cut = table.set_column(position, table.schema.field(position), texts)
        stays = np.ones(table.num_rows, np.bool_)
        for row in np.unique(joined[:, 0]).tolist():
            own, stays[row] = joined[bounds[row] : bounds[row + 1]], left[row]
            pieces = {kind: number for kind, found in spans.items() if (number := int((found[:, 0] == row).sum()))}
            note, reason = (ledger.edit, REPEATED) if left[row] else (ledger.drop, ALL_REPEATED)
            value = int((own[:, 2] - own[:, 1]).sum())
            note(table["doc_id"][row].as_py(), table["source"][row].as_py(), reason, value=value, detail=pieces)
        return cut.filter(pa.array(stays))


def _spans_of(cuts: pa.Table, rows: np.ndarray) -> np.ndarray:
    """(place among `rows`, start, end) of the cuts of these rows, int64."""
    values = np.column_stack([cuts[name].to_numpy() for name in ("row", "start", "end")])
    own = values[np.isin(values[:, 0], rows)]
    return np.column_stack([np.searchsorted(rows, own[:, 0]), own[:, 1:]])


def _union(spans: np.ndarray) -> np.ndarray:
    """Spans of each row joined where they overlap or touch, sorted."""
    ordered = spans[np.lexsort((spans[:, 2], spans[:, 1], spans[:, 0]))]
    joined: list[list[int]] = []
    for row, start, end in ordered.tolist():
        if joined and joined[-1][0] == row and start <= joined[-1][2]:
            joined[-1][2] = max(joined[-1][2], end)
        else:
            joined.append([row, start, end])
    return np.array(joined, np.int64).reshape(-1, 3)


def ranks_of(priorities: Mapping[str, int], taking_part: set[str]) -> dict[str, int]:
    """Rank of each source: 0 where protected, else by priority from 1 on."""
    levels = sorted({value for value in priorities.values() if value < PROTECTED_PRIORITY}, reverse=True)
    return {
        source: 0 if value >= PROTECTED_PRIORITY else min(1 + levels.index(value), MAX_RANK - 1)
        for source, value in priorities.items()
        if source in taking_part
    }
