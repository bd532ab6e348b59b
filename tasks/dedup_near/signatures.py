"""Step `dedup-near.signatures`: one MinHash signature per document, kept for later runs.

Reads documents (doc_id, text); writes doc_id, number of shingles, signature (112 little-endian uint32; null where the
document has no shingle or its source is left out). A part is computed again only when its documents change.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tasks.dataset import Dataset
from tasks.kernels.folding import UNICODE_VERSION
from tasks.kernels.minima import NUM_PERMUTATIONS
from tasks.kernels.shingles import NGRAM_WORDS, SEED, sign_documents
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, documents_of

SIGNATURE_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("shingles", pa.int64(), nullable=False),
        pa.field("signature", pa.binary()),
    ]
)
SIGNATURE_BYTES = 4 * NUM_PERMUTATIONS
SCHEME = {  # only signatures made alike can be compared
    "scheme": "datasketch affine32",
    "seed": SEED,
    "permutations": NUM_PERMUTATIONS,
    "shingle": f"{NGRAM_WORDS} words",
    "hash": "xxh64 seed 0, low 32 bits",
    "unicode": UNICODE_VERSION,
}


def sign(dataset: Dataset, documents: Manifest, enabled: Mapping[str, bool]) -> Manifest:
    """The signatures of all documents of the enabled sources; extra: shingles, and documents too short for one."""
    facts = {"unicode": UNICODE_VERSION}
    step = dataset.step(
        "signatures", SIGNATURE_SCHEMA, inputs={"documents": documents}, config=None, module=__name__,
        conservation="rows", external={"enabled": dict(enabled), **facts},
    )  # fmt: skip
    if found := step.find():
        return found
    units = [
        step.unit((part,), source=part.source, arguments={"enabled": enabled[str(part.source)], **facts})
        for part in documents.parts
    ]
    receipts = step.compute(units, sign_part)
    extra = {name: sum(receipt.extra[name] for receipt in receipts) for name in ("shingles", "too_short")}
    return step.publish(receipts, extra={**extra, "scheme": SCHEME})


def sign_part(unit: Unit, writer: PartWriter) -> None:
    """Part function: documents -> signatures."""
    writer.extra = {"shingles": 0, "too_short": 0}
    for table in documents_of(unit, writer, columns=["doc_id", "text"]):
        if unit.arguments["enabled"]:
            signatures, counts = sign_documents(table["text"])
            writer.extra["too_short"] += int((counts == 0).sum())
        else:
            signatures, counts = np.empty((0, NUM_PERMUTATIONS), np.uint32), np.zeros(table.num_rows, np.int64)
        writer.extra["shingles"] += int(counts.sum())
        columns = [table["doc_id"], counts, _binary(signatures, counts)]
        writer.write(pa.table(columns, schema=SIGNATURE_SCHEMA))


def _binary(signatures: np.ndarray, counts: np.ndarray) -> pa.Array:
    """Signatures as binary values, null where there is no shingle."""
    signed = counts > 0
    bounds = np.concatenate([[0], np.cumsum(signed)]) * SIGNATURE_BYTES
    data = np.ascontiguousarray(signatures[signed] if len(signatures) else signatures, "<u4")
    validity = np.packbits(signed, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def signature_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """The signatures (none null) as uint32 [documents, NUM_PERMUTATIONS]."""
    data = b"".join(column.to_pylist())
    return np.frombuffer(data, "<u4").reshape(len(column), NUM_PERMUTATIONS)
