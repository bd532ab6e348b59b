"""mix: documents of all sources -> each document's split, and how large every source is. No text is copied.

Reads documents (doc_id, text). Writes parts 1:1 with them (doc_id, split, text_bytes), and in the manifest `sizes`:
documents, bytes and estimated tokens per source and split. Mixture weights play no part here.
Invariant: train + held out = documents in, part by part.
Worked number: at the default ratio 0.005, 200,000 documents give about 1,000 held out (sqrt(npq) = 32).
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field, JsonValue, model_validator

from tasks.config import check_by_source, for_source
from tasks.dataset import Workspace
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, documents_of
from tasks.splits import MIX_SCHEMA, SPLITS, split_of

RESULT_PACKAGES = ("xxhash",)


class MixConfig(BaseModel, frozen=True, extra="forbid"):
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
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="Other values for one source")

    @model_validator(mode="after")
    def _check(self) -> "MixConfig":
        return check_by_source(self)


def split_documents(documents: Manifest, *, into: Workspace, config: MixConfig) -> Manifest:
    """The mix dataset of these documents."""
    dataset = into.dataset(
        "mix", config, inputs={"documents": documents}, module=__name__, schema=MIX_SCHEMA, conservation="rows"
    )
    if found := dataset.find():
        return found
    with dataset.lease():
        units = [
            dataset.unit([part], source=part.source, config=for_source(config, part.source or ""))
            for part in documents.parts
        ]
        receipts = dataset.compute(units, split_part)
        part_bytes = [[receipt.extra[split]["bytes"] for split in SPLITS] for receipt in receipts]
        return dataset.publish(receipts, extra={"sizes": size_table(receipts, config), "part_bytes": part_bytes})


def split_part(unit: Unit, writer: PartWriter) -> None:
    """One row per document, in order."""
    assert isinstance(unit.config, MixConfig)
    sizes = {split: {"documents": 0, "bytes": 0} for split in SPLITS}
    for table in documents_of(unit, writer, columns=["doc_id", "text"]):
        splits = [split_of(doc_id, unit.config.held_out_ratio) for doc_id in table["doc_id"].to_pylist()]
        text_bytes = pc.binary_length(table["text"]).cast(pa.int64())
        rows = pa.Table.from_arrays([table["doc_id"], pa.array(splits, pa.string()), text_bytes], schema=MIX_SCHEMA)
        for split in SPLITS:
            own = rows.filter(pc.equal(rows["split"], split))
            sizes[split]["documents"] += own.num_rows
            sizes[split]["bytes"] += pc.sum(own["text_bytes"]).as_py() or 0
        writer.write(rows)
    writer.extra.update({str(split): size for split, size in sizes.items()})


def size_table(receipts: Sequence[Receipt], config: MixConfig) -> dict[str, Any]:
    """{source: {split: {documents, bytes, estimated_tokens}}}, sources in the order of their names."""
    table: dict[str, Any] = {}
    for receipt in receipts:
        sizes = table.setdefault(receipt.part.source or "", {split: {"documents": 0, "bytes": 0} for split in SPLITS})
        for split in SPLITS:
            for name in ("documents", "bytes"):
                sizes[split][name] += receipt.extra[split][name]
    for source, sizes in table.items():
        bytes_per_token = for_source(config, source).bytes_per_token
        for split in SPLITS:
            sizes[split]["estimated_tokens"] = round(sizes[split]["bytes"] / bytes_per_token)
    return dict(sorted(table.items()))
