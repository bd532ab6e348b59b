"""The index: documents that are there already, kept by near dedup of earlier runs.

A new document that is like one of them is dropped; they themselves are compared with each other no more, never dropped
and never written out. `matched_id` in the ledger is then the id of the index's document, in another dataset.

Nothing of the index is signed again: its signatures are those of its own run. What a run over new documents pays for an
index is its signatures (448 bytes per document are read and their bands exchanged) and the text of the row groups that
hold a candidate: true Jaccard needs the text, and a stored set of shingle hashes would be larger than that (8 bytes per
word, against 6 of text that shrink to 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks.dedup_near.signatures import SCHEME
from tasks.digest import dataset_digest
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import DataError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, read_part
from tasks.storage import Storage

STAGE = "dedup-near"
SIGNATURES = "signatures"  # in a manifest's `extra`: reference of the dataset of its signatures


@dataclass(frozen=True)
class IndexPart:
    """One part of an index: the documents that its run kept, and the signatures of all that the run compared."""

    kept: Part
    signatures: Part


def index_parts(storage: Storage, index: Sequence[Manifest]) -> list[IndexPart]:
    """The parts of all datasets of an index, in order. Raises DataError where one is unfit, changed or incomplete."""
    return [part for manifest in index for part in _parts_of(storage, manifest)]


def _parts_of(storage: Storage, manifest: Manifest) -> list[IndexPart]:
    if manifest.stage != STAGE or SIGNATURES not in manifest.extra:
        raise DataError(f"index {manifest.reference} has no signatures: name a run or dataset of stage {STAGE}")
    if manifest.digest != dataset_digest(DOCUMENT_SCHEMA, [(part.rows, part.digest) for part in manifest.parts]):
        raise DataError(f"index {manifest.reference}: its parts are not those that its digest was made of")
    signatures = load_manifest(storage, manifest.extra[SIGNATURES])
    if signatures.extra["scheme"] != SCHEME:
        raise DataError(
            f"index {manifest.reference} was signed as {signatures.extra['scheme']}, documents are now signed as "
            f"{SCHEME}: run its recipe again"
        )
    parts = [IndexPart(*pair) for pair in zip(manifest.parts, signatures.parts, strict=True)]
    for part in parts:
        for file in (part.kept, part.signatures):
            if file.rows and storage.size(file.path) != file.bytes:
                raise DataError(f"index {manifest.reference}: {file.path} is missing or not the file that was written")
    return parts


def kept_ids(storage: Storage, part: Part) -> pa.ChunkedArray:
    """The doc_ids of a part."""
    tables = [table["doc_id"].combine_chunks() for table in read_part(storage, part, ["doc_id"])]
    return pa.chunked_array(tables, pa.string())
