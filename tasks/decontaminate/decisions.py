"""What the steps of "decontaminate" hand on: where probes stand, which are common, which items a document holds."""

from collections.abc import Iterator

import pyarrow as pa

HITS_SCHEMA = pa.schema([("doc_id", pa.string()), ("probe", pa.uint64()), ("start", pa.int64()), ("end", pa.int64())])
COMMON_SCHEMA = pa.schema([("probe", pa.uint64()), ("documents", pa.int64())])
DECISION_SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()), ("set", pa.string()), ("item", pa.string()), ("field", pa.string()),
        ("overlap", pa.float64()), ("probes", pa.int64()), ("spans", pa.list_(pa.int64())),
    ]
)  # fmt: skip
REPORT_SCHEMA = pa.schema([("set", pa.string()), ("report", pa.string())])


def by_document(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Runs of rows with one doc_id, in order."""
    ids = rows["doc_id"].to_pylist()
    start = 0
    for row in range(1, len(ids) + 1):
        if row == len(ids) or ids[row] != ids[start]:
            yield ids[start], rows.slice(start, row - start)
            start = row
