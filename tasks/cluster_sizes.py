"""How many near duplicates each document stands for, as a column beside the documents of later stages.

Near dedup writes, among its verified pairs, one row for each document that was kept instead of others (reason KEPT,
value = documents of its cluster, itself included). `sizes_by_part` cuts them into one part per document part: doc_id
and `cluster_size`, of clusters of two and more; a document that is not there is alone. Parts are 1:1 with those of near
dedup, whatever later stages drop. Exact copies went before, so they do not count.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset
from tasks.exchange import rows_between
from tasks.keepers import KEPT
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Unit

CLUSTER_SIZE = "cluster_size"
SIZES_SCHEMA = pa.schema(
    [pa.field("doc_id", pa.string(), nullable=False), pa.field(CLUSTER_SIZE, pa.int64(), nullable=False)]
)


def sizes_by_part(dataset: Dataset, documents: Manifest, pairs: Manifest) -> Sequence[Part]:
    """One part of sizes per document part (step `<stage>.cluster-sizes`)."""
    step = dataset.step("cluster-sizes", SIZES_SCHEMA, inputs={"documents": documents, "pairs": pairs}, config=None)
    if found := step.find():
        return found.parts
    units = [
        step.unit(pairs.parts, source=part.source, arguments={"part": number})
        for number, part in enumerate(documents.parts)
    ]
    return step.publish(step.compute(units, slice_sizes)).parts


def slice_sizes(unit: Unit, writer: PartWriter) -> None:
    """Part function: the sizes of one document part, sorted by doc_id. Reads only row groups that can hold some."""
    number = int(unit.arguments["part"])
    for table in (table for part in unit.inputs for table in rows_between(unit.storage, part, number, number + 1)):
        own = table.filter(pc.and_(pc.equal(table["part"], number), pc.equal(table["reason"], KEPT)))
        writer.write(pa.table([own["doc_id"], own["value"].cast(pa.int64())], schema=SIZES_SCHEMA))
