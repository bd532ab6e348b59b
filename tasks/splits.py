"""Train or held out: the rule, the table of the mix stage, and how documents are read by it.

The split of a document follows from its id alone, so adding a source or a file moves nobody, and raising the held-out
ratio only moves documents from train to held out. A sub-source is what weights name and packs hold: a whole source
(`web`), or one bucket of it (`web/0`, `web/1`, ..., `web/unmeasured`; tasks/mixture.py).
"""

from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
import xxhash

from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.parts import Part, read_part
from tasks.storage import Storage

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, Split] = ("train", "held_out")
HASH_RANGE = 1 << 64
SAMPLE_SURPLUS = 2  # candidates per wanted byte, as document sizes scatter; the rate is then rounded up to 2^-k

MIX_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),  # train | held_out
        pa.field("sub_source", pa.string(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),  # UTF-8 bytes of the text
    ]
)


def split_of(doc_id: str, held_out_ratio: float) -> Split:
    """held_out when XXH64 (seed 0) of the id lies in the first `held_out_ratio` of its range."""
    return "held_out" if xxhash.xxh64_intdigest(doc_id.encode()) < held_out_ratio * HASH_RANGE else "train"


def sample_rate(wanted: int, available: int) -> float:
    """Share of documents that become candidates: a power of two, so that growing sources rarely move it."""
    rate = 1.0
    while wanted and available and rate / 2 * available >= SAMPLE_SURPLUS * wanted:
        rate /= 2
    return rate if wanted else 0.0


def whole_source(sub_source: str) -> str:
    """The source that a sub-source is of: `web/0` -> `web`."""
    return sub_source.partition("/")[0]


def read_split(
    storage: Storage, documents: Part, mix: Part, split: Split, sub_source: str | None = None
) -> Iterator[pa.Table]:
    """doc_id and text of the documents of one split (and sub-source), one table per row group that holds any.

    Raises DataError when the two parts do not name the same documents in the same order.
    """
    rows = pa.concat_tables([MIX_SCHEMA.empty_table(), *read_part(storage, mix)])
    if rows.num_rows != (documents.rows or 0):
        raise DataError(f"{mix.path} splits {rows.num_rows} documents, {documents.path} holds {documents.rows}")
    chosen = pa.compute.equal(rows["split"], split)
    if sub_source is not None:
        chosen = pa.compute.and_(chosen, pa.compute.equal(rows["sub_source"], sub_source))
    if not pa.compute.any(chosen, min_count=0).as_py():
        return
    start = 0
    for table in read_part(storage, documents, ["doc_id", "text"]):
        here = slice(start, start + table.num_rows)
        if not table["doc_id"].combine_chunks().equals(rows["doc_id"][here].combine_chunks()):
            raise DataError(f"{mix.path} names other documents than {documents.path} from row {start} on")
        start += table.num_rows
        kept = table.filter(chosen[here])
        if kept.num_rows:
            yield kept


def paired_parts(documents: Manifest, mix: Manifest, sub_source: str) -> list[tuple[Part, Part, dict[Split, int]]]:
    """The parts of a source with their mix parts and the sub-source's text bytes in them per split, in order.

    Raises DataError when the mix was made of other documents.
    """
    made_of = {entry["role"]: entry["digest"] for entry in mix.inputs}.get("documents")
    if made_of != documents.digest:
        raise DataError(f"{mix.reference} was made of other documents than {documents.reference}")
    none = [0] * len(SPLITS)
    sizes = [dict(zip(SPLITS, held.get(sub_source, none), strict=True)) for held in mix.extra["part_bytes"]]
    rows = zip(documents.parts, mix.parts, sizes, strict=True)
    return [(part, split, size) for part, split, size in rows if part.source == whole_source(sub_source)]
