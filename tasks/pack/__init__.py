"""pack: documents of one source and split -> rows of exactly L token ids. Weights play no part.

Reads documents, mix and tokenizer.json; one dataset per (source, split, sequence length, min_document_tokens). A row:
  input_ids         fixed-size list of L, uint16 up to 65,536 entries, else uint32; pad after the last token
  doc_ids           the documents in the row, in order; one entry per piece
  document_starts   position of each piece in the row      document_offsets  its first token's place in the document
  num_tokens        real tokens; the rest is padding
A document is bos + ids + eos, cut at every L tokens (a continuation has no bos). Row groups hold exactly 256 rows, the
last one of a part fewer: they are what training permutes and fetches.

Parts are cut here: consecutive document parts of the source are joined until they hold `part_bytes` of the split's
text, or a quarter of it after a part whose content hash is 0 mod 4. So a new document part moves its own pack part and
the next few, until a cut falls on the same place again. Rows never mix sources, and no document crosses parts.
Invariant, checked per part: pieces tile every document, tokens in = tokens placed, padding apart, sums of ids equal.
Worked number: 35.4 M tokens of documents (median 473) at L = 2,048 give 17,312 rows (concat: 17,308).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pydantic import BaseModel, Field

from tasks.dataset import Workspace
from tasks.documents import text_bytes
from tasks.encoding import Encoder, Ids, Integers, choose_engine
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.pack.plan import Plan, Strategy, check_plan, plan_rows
from tasks.parts import Part, PartWriter, Unit
from tasks.splits import Split, paired_parts, read_split

RESULT_PACKAGES = ("numpy", "xxhash")
ROWS_PER_ROW_GROUP = 256  # the unit of random access in training
EARLY_CUT = 4  # a part may end from part_bytes / 4 on, at one in four document parts
CHECKED_DOCUMENTS = 4  # per row group of documents, compared with HF tokenizers: 0.02 s beside 0.1 s of encoding
CHECKED_CHARS = 1 << 15  # longer documents are not compared: HF takes 2 s for 5 MB
REASONS = frozenset({"below_min_document_tokens"})
TOKENIZER = "tokenizer.json"


class PackConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How documents become rows."""

    strategy: Strategy = Field(
        default="best_fit",
        description="best_fit: documents that fit stay whole; concat: joined end to end and cut (mask off)",
    )
    part_bytes: int = Field(default=128_000_000, gt=0, description="UTF-8 bytes of text per part (about 30 M tokens)")


class PackRequest(BaseModel, frozen=True, extra="forbid"):
    """Which rows are wanted."""

    source: str = Field(min_length=1, description="Source of the documents, or a bucket of it such as web/0")
    split: Split = Field(default="train", description="train or held_out")
    sequence_length: int = Field(ge=2, description="Tokens per row (L)")
    min_document_tokens: int = Field(
        default=0,
        ge=0,
        description="Shorter documents (bos and eos counted) are left out: for long-context phases",
        json_schema_extra={"neutral": 0},
    )


class PackSettings(BaseModel, frozen=True, extra="forbid"):
    """What one pack dataset is made by."""

    config: PackConfig
    request: PackRequest


@dataclass(frozen=True)
class Documents:
    """Encoded documents of a part: `ids` joined, `lengths` tokens each (bos and eos counted)."""

    doc_ids: list[str]
    ids: npt.NDArray[np.unsignedinteger[Any]]
    lengths: Integers

    @cached_property
    def starts(self) -> Integers:
        """Place of each document's first token in `ids`."""
        return np.cumsum(self.lengths) - self.lengths


def pack_source(
    documents: Manifest,
    mix: Manifest,
    vocabulary: Manifest,
    *,
    into: Workspace,
    config: PackConfig,
    request: PackRequest,
) -> Manifest:
    """The rows of one source and split. `extra`: rows, documents, tokens, padding, utilisation, checked
    (documents compared with HF tokenizers), id_type, long_tokens (in documents longer than half a row).

    Raises ConfigError for a source that the documents do not have.
    """
    schema = pack_schema(request.sequence_length, vocabulary.extra["size"])
    inputs = {"documents": documents, "mix": mix, "vocabulary": vocabulary}
    settings = PackSettings(config=config, request=request)
    dataset = into.dataset("pack", settings, inputs=inputs, module=__name__, schema=schema, reasons=REASONS)
    if found := dataset.find():
        return found
    if request.source not in mix.extra["sizes"]:
        raise ConfigError(f"pack: no source {request.source!r}; sources are {sorted(mix.extra['sizes'])}")
    with dataset.lease():
        special = vocabulary.extra["special_tokens"]
        arguments = {
            "engine": choose_engine(vocabulary.read_file(into.storage, TOKENIZER)),
            "special": {role: special[role] for role in ("bos", "eos", "pad")},
        }
        [file] = [part for part in vocabulary.parts if part.key == TOKENIZER]
        file = replace(file, stage=vocabulary.reference)  # where it lies; the unit's key takes its digest alone
        units = [
            dataset.unit([file, *pairs], source=request.source, config=settings, arguments=arguments)
            for pairs in join_parts(paired_parts(documents, mix, request.source), request.split, config.part_bytes)
        ]
        receipts = dataset.compute(units, pack_part)
        return dataset.publish(receipts, extra=_totals([receipt.extra for receipt in receipts], request, schema))


def pack_schema(sequence_length: int, size: int) -> pa.Schema:
    """The schema of rows for a vocabulary of `size` entries."""
    ids = pa.uint16() if size <= 1 << 16 else pa.uint32()
    return pa.schema(
        [
            pa.field("input_ids", pa.list_(pa.field("element", ids, nullable=False), sequence_length), nullable=False),
            pa.field("doc_ids", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
            pa.field("document_starts", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            pa.field("document_offsets", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
            pa.field("num_tokens", pa.int32(), nullable=False),
        ]
    )


def join_parts(pairs: Sequence[tuple[Part, Part, dict[Split, int]]], split: Split, part_bytes: int) -> list[list[Part]]:
    """Document and mix parts (alternating) of each pack part."""
    joined: list[list[Part]] = []
    held = part_bytes  # so that the first pair opens a part
    may_end = True
    for documents, mix, sizes in pairs:
        if held >= part_bytes or (held >= part_bytes // EARLY_CUT and may_end):
            joined.append([])
            held = 0
        joined[-1] += [documents, mix]
        held += sizes[split]
        may_end = int(documents.digest[:8], 16) % EARLY_CUT == 0
    return joined


def pack_part(unit: Unit, writer: PartWriter) -> None:
    """Encode the documents of the split, plan the rows, write them."""
    settings, special = unit.config, unit.arguments["special"]
    assert isinstance(settings, PackSettings)
    length = settings.request.sequence_length
    documents = encode_documents(unit, writer)
    plan = plan_rows(documents.lengths, length, settings.config.strategy)
    check_plan(plan, documents.lengths, length)
    placed_sum = 0
    for first in range(0, plan.num_rows, ROWS_PER_ROW_GROUP):
        table, ids_sum = row_group(documents, plan, first, unit.schema, special["pad"])
        placed_sum += ids_sum
        writer.write_row_group(table)
    tokens = int(documents.lengths.sum())
    if placed_sum != int(documents.ids.sum(dtype=np.int64)):
        raise DataError(f"pack: part {unit.key} placed other ids than it encoded ({tokens} tokens)")
    writer.extra |= {"documents": len(documents.doc_ids), "tokens": tokens, "padding": plan.num_rows * length - tokens}
    writer.extra["long_tokens"] = int(documents.lengths[2 * documents.lengths > length].sum())


def encode_documents(unit: Unit, writer: PartWriter) -> Documents:
    """bos + ids + eos of every document of the split that is long enough; the others go to the ledger."""
    settings, special = unit.config, unit.arguments["special"]
    assert isinstance(settings, PackSettings)
    request, dtype = settings.request, unit.schema.field("input_ids").type.value_type.to_pandas_dtype()
    encoder = Encoder(unit.storage.read_bytes(f"{unit.inputs[0].stage}/{TOKENIZER}"), unit.arguments["engine"])
    doc_ids: list[str] = []
    ids, lengths = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    for documents, mix in zip(unit.inputs[1::2], unit.inputs[2::2], strict=True):
        for table in read_split(unit.storage, documents, mix, request.split, request.source):
            writer.rows_in += table.num_rows
            writer.bytes_in += text_bytes(table)
            names, texts = table["doc_id"].to_pylist(), table["text"].to_pylist()
            encoded, counts = encoder.encode(texts)
            writer.extra["checked"] = writer.extra.get("checked", 0) + check_sample(
                encoder, names, texts, encoded, counts
            )
            kept = counts + 2 >= request.min_document_tokens
            for index in np.flatnonzero(~kept).tolist():
                facts = {"value": counts[index] + 2, "threshold": request.min_document_tokens}
                writer.ledger.drop(names[index], request.source, "below_min_document_tokens", **facts)
            doc_ids += [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]
            ids.append(
                enclose(encoded[np.repeat(kept, counts)], counts[kept], special["bos"], special["eos"]).astype(dtype)
            )
            lengths.append(counts[kept] + 2)
    return Documents(doc_ids, np.concatenate(ids), np.concatenate(lengths))


def check_sample(encoder: Encoder, names: list[str], texts: list[str], ids: Ids, lengths: Integers) -> int:
    """Compare a few documents, chosen by a hash of their id, with HF tokenizers; returns how many. Raises DataError."""
    short = [index for index, text in enumerate(texts) if len(text) <= CHECKED_CHARS]
    chosen = sorted(short, key=lambda index: xxhash.xxh64_intdigest(names[index].encode()))[:CHECKED_DOCUMENTS]
    ends = np.cumsum(lengths)
    own = [ids[ends[index] - lengths[index] : ends[index]] for index in chosen]
    encoder.check(
        [names[index] for index in chosen],
        [texts[index] for index in chosen],
        np.concatenate([ids[:0], *own]),
        lengths[chosen],
    )
    return len(chosen)


def enclose(ids: Ids, lengths: Integers, bos: int, eos: int) -> Ids:
    """bos before and eos after each document of a joined stream."""
    ends = np.cumsum(lengths + 2)
    stream = np.empty(len(ids) + 2 * len(lengths), dtype=np.uint32)
    inner = np.ones(len(stream), dtype=bool)
    inner[ends - 1] = inner[ends - lengths - 2] = False
    stream[inner] = ids
    stream[ends - lengths - 2] = bos
    stream[ends - 1] = eos
    return stream


def row_group(documents: Documents, plan: Plan, first: int, schema: pa.Schema, pad: int) -> tuple[pa.Table, int]:
    """Rows `first` to `first` + 255 as a table, and the sum of the ids in them."""
    last = min(first + ROWS_PER_ROW_GROUP, plan.num_rows)
    own = slice(*np.searchsorted(plan.row, [first, last]).tolist())
    document, length, row, start = plan.document[own], plan.length[own], plan.row[own] - first, plan.start[own]
    width = schema.field("input_ids").type.list_size
    rows = np.full((last - first) * width, pad, dtype=documents.ids.dtype)
    sources = documents.starts[document] + plan.offset[own]
    for source, target, size in zip(sources.tolist(), (row * width + start).tolist(), length.tolist(), strict=True):
        rows[target : target + size] = documents.ids[source : source + size]
    bounds = np.append(0, np.cumsum(np.bincount(row, minlength=last - first))).astype(np.int32)
    names = pa.array([documents.doc_ids[index] for index in document.tolist()], pa.string())
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(rows), type=schema.field("input_ids").type),
        _lists(bounds, names, schema.field("doc_ids").type),
        _lists(bounds, pa.array(start.astype(np.int32)), schema.field("document_starts").type),
        _lists(bounds, pa.array(plan.offset[own]), schema.field("document_offsets").type),
        pa.array(np.bincount(row, length, last - first).astype(np.int32)),
    ]
    ids_sum = int(rows.sum(dtype=np.int64)) - pad * (len(rows) - int(length.sum()))
    return pa.Table.from_arrays(columns, schema=schema), ids_sum


def _lists(bounds: npt.NDArray[np.int32], values: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(bounds), values, type=kind)


def _totals(facts: Sequence[dict[str, Any]], request: PackRequest, schema: pa.Schema) -> dict[str, Any]:
    total = {name: sum(fact[name] for fact in facts) for name in ("documents", "tokens", "padding", "long_tokens")}
    places = total["tokens"] + total["padding"]
    return total | {
        "rows": places // request.sequence_length,
        "utilisation": total["tokens"] / places if places else 0.0,
        "checked": sum(fact.get("checked", 0) for fact in facts),
        "id_type": str(schema.field("input_ids").type.value_type),
    }
