"""The document: the one schema at which all curation stages meet.

`doc_id` = source + ":" + 128-bit hash of `raw_ref`; `raw_ref` = the file's key relative to the source's base + "#" +
position, so an id is unique by construction, stable when files are added, and holds no root, bucket or home folder.
`meta` is a JSON object with everything else that the input had.
"""

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

SCHEMA_VERSION = 1

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),  # valid UTF-8; int64 offsets: one document can be large
        pa.field("url", pa.string()),
        pa.field("timestamp", pa.string()),
        pa.field("raw_ref", pa.string(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
    ]
)


def document_id(source: str, raw_ref: str) -> str:
    """`source:32 hex digits`: XXH3-128 of the raw reference."""
    return f"{source}:{xxhash.xxh3_128_hexdigest(raw_ref.encode('utf-8', 'surrogatepass'))}"


def source_of(doc_id: str) -> str:
    """The source that a document id names."""
    return doc_id.rpartition(":")[0]


def text_bytes(table: pa.Table) -> int:
    """UTF-8 bytes of the text column, or of all buffers where there is no text."""
    if "text" in table.column_names:
        return int(pc.sum(pc.binary_length(table["text"].cast(pa.large_binary()))).as_py() or 0)
    return int(table.nbytes)


def with_texts(table: pa.Table, edited: Mapping[int, str]) -> pa.Table:
    """The table with other texts in the rows that are named, in order."""
    if not edited:
        return table
    mask = np.zeros(table.num_rows, np.bool_)
    mask[list(edited)] = True
    texts = pc.replace_with_mask(table["text"].combine_chunks(), mask, pa.array(edited.values(), pa.large_string()))
    position = table.schema.get_field_index("text")
    return table.set_column(position, table.schema.field(position), texts)


def meta_json(values: dict[str, object]) -> str:
    """Canonical JSON of a document's further fields (sorted keys; what JSON lacks becomes text)."""
    return json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def split_rows(table: pa.Table, row_group_bytes: int) -> Iterator[pa.Table]:
    """Cut a table into row groups of about `row_group_bytes`; depends on the rows alone, never on workers."""
    if table.num_rows == 0:
        return
    sizes = row_bytes(table)
    start, held = 0, 0
    for row, size in enumerate(sizes):
        if row > start and held + size > row_group_bytes:
            yield table.slice(start, row - start)
            start, held = row, 0
        held += size
    yield table.slice(start)


def row_bytes(table: pa.Table) -> list[int]:
    """Approximate bytes of each row: the text where there is one, else an even share of the table."""
    if "text" in table.column_names:
        lengths = pc.fill_null(pc.binary_length(table["text"].cast(pa.large_binary())), 0)
        return [size + 64 for size in lengths.to_pylist()]
    return [max(1, table.nbytes // table.num_rows)] * int(table.num_rows)
