"""mix: documents of all sources -> each document's split, and how large every source is. No text is copied.

Reads documents (doc_id, text). Writes parts 1:1 with them (doc_id, split, sub_source, text_bytes), and in the manifest
`sizes`: documents, bytes and estimated tokens per sub-source and split. Mixture weights play no part here.

A sub-source is what weights name: a source, or one of its buckets by a signal, so that a phase can read good text more
often. `buckets: {signal: num_words, edges: [100, 1000]}` of source web gives web/0 (below 100), web/1 (from 100 to
below 1,000), web/2 (1,000 and more) and web/unmeasured (the signal is null). `signal: cluster_size` divides by how many
near duplicates a document stands for, itself included: edges [2, 5] part what was alone (web/0) from clusters of 2 to 4
and of 5 and more. Documents are not changed; the buckets are packed apart. Values are joined by doc_id.
Invariant: train + held out = documents in, part by part.
Worked number: at the default ratio 0.005, 200,000 documents give about 1,000 held out (sqrt(npq) = 32).
"""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field, JsonValue, field_validator, model_validator

from tasks.cluster_sizes import CLUSTER_SIZE, sizes_by_part
from tasks.config import Several, check_by_source, for_source
from tasks.dataset import Dataset, Workspace
from tasks.errors import ConfigError, DataError
from tasks.keepers import PAIRS
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Receipt, Unit, documents_of, read_part
from tasks.signal_table import SIGNAL_BY_NAME, check_number_signal
from tasks.splits import MIX_SCHEMA, SPLITS, split_of, whole_source
from tasks.storage import Storage

logger = logging.getLogger(__name__)

RESULT_PACKAGES = ("xxhash",)
UNMEASURED = "unmeasured"


class BucketsConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How a source is divided: bucket i holds values from edge i-1 to below edge i."""

    signal: str = Field(description="a signal that is a number, or cluster_size: documents of a near-duplicate cluster")
    edges: Several[float] = Field(min_length=1, max_length=100, description="rising; n edges make n + 1 buckets")

    @field_validator("signal")
    @classmethod
    def _check_signal(cls, signal: str) -> str:
        return signal if signal == CLUSTER_SIZE else check_number_signal(signal)

    @field_validator("edges")
    @classmethod
    def _check_edges(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if not all(np.isfinite(edges)) or any(after <= before for before, after in pairwise(edges)):
            raise ValueError(f"edges {list(edges)} must rise, and be finite")
        return edges

    @model_validator(mode="after")
    def _check_sizes(self) -> "BucketsConfig":
        if self.signal == CLUSTER_SIZE and (self.edges[0] < 2 or not all(edge.is_integer() for edge in self.edges)):
            raise ValueError(f"edges {list(self.edges)}: sizes of clusters are whole numbers, and 1 is the smallest")
        signal = SIGNAL_BY_NAME.get(self.signal)
        low, high = (signal.low, signal.high) if signal else (None, None)
        if (low is not None and self.edges[0] <= low) or (high is not None and self.edges[-1] > high):
            range_of = f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
            raise ValueError(
                f"edges {list(self.edges)}: {self.signal} is {range_of}, so that a bucket would stay empty"
            )
        return self


class MixConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How documents are split, and what the size table assumes."""

    held_out_ratio: float = Field(
        default=0.005, ge=0, lt=1, description="Share of documents held out of training, to measure losses on"
    )
    bytes_per_token: float = Field(
        default=4.0,
        gt=0,
        description="UTF-8 bytes per token assumed before a tokenizer exists (English prose at a vocabulary of 32k to "
        "128k: 3.8 to 4.6; code about 3; set it per source)",
    )
    buckets: BucketsConfig | None = Field(
        default=None,
        description="Divide a source by a signal into sub-sources SOURCE/0, SOURCE/1, ... that weights name",
        json_schema_extra={"neutral": None},
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="Other values for one source")

    @model_validator(mode="after")
    def _check(self) -> "MixConfig":
        return check_by_source(self)


def sub_sources(config: MixConfig, source: str) -> list[str]:
    """What weights can name of a source."""
    buckets = for_source(config, source).buckets
    if buckets is None:
        return [source]
    numbered = [f"{source}/{number}" for number in range(len(buckets.edges) + 1)]
    return numbered if buckets.signal == CLUSTER_SIZE else [*numbered, f"{source}/{UNMEASURED}"]


def divided_by(config: MixConfig, sources: Sequence[str]) -> set[str]:
    """The signals that divide a source."""
    return {buckets.signal for source in sources if (buckets := for_source(config, source).buckets)}


def split_documents(documents: Manifest, *measured: Manifest, into: Workspace, config: MixConfig) -> Manifest:
    """The mix dataset of these documents. measured: datasets of signals and dedup-near, as the buckets need them.

    Raises ConfigError without one that is needed, DataError when it is of other documents.
    """
    signals = divided_by(config, documents.sources)
    inputs = {"documents": documents}
    if signals - {CLUSTER_SIZE}:
        inputs["signals"] = _one_of(measured, "signals", documents)
    if CLUSTER_SIZE in signals:
        near = _one_of(measured, "dedup-near", documents)
        inputs[PAIRS] = into.load(near.extra[PAIRS])
    dataset = into.dataset("mix", config, inputs=inputs, module=__name__, schema=MIX_SCHEMA, conservation="rows")
    if found := dataset.find():
        return found
    with dataset.lease():
        sizes = sizes_by_part(dataset, near, inputs[PAIRS]) if CLUSTER_SIZE in signals else ()
        receipts = dataset.compute(_units(dataset, sizes), split_part)
        part_bytes = [
            {name: [sizes[split]["bytes"] for split in SPLITS] for name, sizes in receipt.extra["sizes"].items()}
            for receipt in receipts
        ]
        table = size_table(receipts, config)
        _warn_of_no_score(table, config)
        return dataset.publish(receipts, extra={"sizes": table, "part_bytes": part_bytes})


def _warn_of_no_score(table: dict[str, Any], config: MixConfig) -> None:
    """A line per sub-source that has text, of which none was held out though the recipe asks for a share."""
    for name, sizes in table.items():
        source, documents = whole_source(name), sizes["train"]["documents"]
        if documents and not sizes["held_out"]["documents"] and (ratio := for_source(config, source).held_out_ratio):
            logger.warning(
                "mix: source %s has no held-out text, so no score: none of its %d documents falls in the first %g; "
                "raise mix.held_out_ratio (or mix.by_source.%s.held_out_ratio)", name, documents, ratio, source,
            )  # fmt: skip


def _one_of(measured: Sequence[Manifest], stage: str, documents: Manifest) -> Manifest:
    """The dataset of this stage, whose parts must be 1:1 with the documents' parts. Raises ConfigError or DataError."""
    found = next((manifest for manifest in measured if manifest.stage == stage), None)
    if found is None:
        raise ConfigError(f"mix.buckets: the documents have no {stage}")
    if [part.source for part in found.parts] != [part.source for part in documents.parts]:
        raise DataError(f"mix: {found.reference} measures other parts than those of {documents.reference}")
    return found


def _units(dataset: Dataset, sizes: Sequence[Part]) -> list[Unit]:
    """One per document part, with what divides its source: its signals, or its sizes of clusters."""
    units, config, signals = [], dataset.config, dataset.inputs.get("signals")
    assert isinstance(config, MixConfig)
    for number, part in enumerate(dataset.inputs["documents"].parts):
        own, inputs = for_source(config, part.source or ""), [part]
        if own.buckets and own.buckets.signal == CLUSTER_SIZE:
            inputs.append(sizes[number])
        elif own.buckets and signals:
            inputs.append(signals.parts[number])
        units.append(dataset.unit(inputs, source=part.source, config=own))
    return units


def split_part(unit: Unit, writer: PartWriter) -> None:
    """One row per document, in order."""
    config, source = unit.config, unit.source or ""
    assert isinstance(config, MixConfig)
    measured = _read_values(unit.storage, unit.inputs[1], config.buckets) if config.buckets else None
    counts: Counter[tuple[str, str, str]] = Counter()
    for table in documents_of(unit, writer, columns=["doc_id", "text"]):
        splits = [split_of(doc_id, config.held_out_ratio) for doc_id in table["doc_id"].to_pylist()]
        names = pa.array([source] * table.num_rows, pa.string())
        if measured is not None and config.buckets:
            names = bucket_names(source, values_of(table["doc_id"], measured), config.buckets)
        text_bytes = pc.binary_length(table["text"]).cast(pa.int64())
        columns = [table["doc_id"], pa.array(splits, pa.string()), names, text_bytes]
        rows = pa.Table.from_arrays(columns, schema=MIX_SCHEMA)
        groups = rows.group_by(["sub_source", "split"]).aggregate([("text_bytes", "sum"), ([], "count_all")])
        for group in groups.to_pylist():
            counts[group["sub_source"], group["split"], "bytes"] += group["text_bytes_sum"]
            counts[group["sub_source"], group["split"], "documents"] += group["count_all"]
        writer.write(rows)
    writer.extra["sizes"] = {
        name: {str(split): {kind: counts[name, split, kind] for kind in ("documents", "bytes")} for split in SPLITS}
        for name in sorted({name for name, _, _ in counts})
    }


def values_of(doc_ids: pa.ChunkedArray, measured: pa.Table) -> np.ndarray:
    """The second column of `measured` for each document, as floats; NaN where it is null.

    A document without a size of its cluster is alone: 1. Raises DataError where one has no signals.
    """
    rows = pc.index_in(doc_ids, value_set=measured["doc_id"])
    is_size = measured.column_names[1] == CLUSTER_SIZE
    if rows.null_count and not is_size:
        missing = doc_ids.filter(pc.is_null(rows))[0].as_py()
        raise DataError(f"mix: document {missing} has no signals: they were measured on other documents")
    values = measured.column(1).cast(pa.float64(), safe=False).take(rows)
    return np.asarray((values.fill_null(1.0) if is_size else values).to_numpy())


def bucket_names(source: str, values: np.ndarray, config: BucketsConfig) -> pa.Array:
    """The sub-source of each value; a value equal to an edge lies above it."""
    names = pa.array([f"{source}/{number}" for number in range(len(config.edges) + 1)] + [f"{source}/{UNMEASURED}"])
    buckets = np.searchsorted(np.array(config.edges), values, side="right")
    return names.take(pa.array(np.where(np.isnan(values), len(names) - 1, buckets)))


def size_table(receipts: Sequence[Receipt], config: MixConfig) -> dict[str, Any]:
    """{sub-source: {split: {documents, bytes, estimated_tokens}}}, in the order of their names."""
    table: dict[str, Any] = {}
    for receipt in receipts:
        source = receipt.part.source or ""
        for name in sub_sources(config, source):
            sizes = table.setdefault(name, {split: {"documents": 0, "bytes": 0} for split in SPLITS})
            for split, held in receipt.extra["sizes"].get(name, {}).items():
                for kind, count in held.items():
                    sizes[split][kind] += count
            bytes_per_token = for_source(config, source).bytes_per_token
            for split in SPLITS:
                sizes[split]["estimated_tokens"] = round(sizes[split]["bytes"] / bytes_per_token)
    return dict(sorted(table.items()))


def _read_values(storage: Storage, part: Part, buckets: BucketsConfig) -> pa.Table:
    schema = pa.schema([("doc_id", pa.string())])
    tables = list(read_part(storage, part, ["doc_id", buckets.signal]))
    return pa.concat_tables(tables) if tables else schema.empty_table().append_column(buckets.signal, pa.nulls(0))
