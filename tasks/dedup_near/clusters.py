"""What near dedup found, as the manifest and the report show it: clusters, each a document kept and those that went
for it.

`clusters` in the manifest's `extra`: sizes {largest size of the class: clusters} in powers of two, by_source {source:
documents in clusters}, largest [{size, kept, kept_part, dropped}], the LARGEST of the corpus with the first few ids of
what went. Each partition gives its own, which are small, and the driver adds them up.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.documents import source_of

LARGEST = 10
SHOWN_DROPPED = 3


def summary_of(facts: pa.Table, gone: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """Clusters of one partition. facts: doc_id and part per row; row gone[i] goes for row kept[i]."""
    rows, members = np.unique(kept, return_inverse=True)
    sizes = np.bincount(members, minlength=len(rows)) + 1
    classes = 1 << np.ceil(np.log2(sizes)).astype(np.int64)
    ids = facts["doc_id"].take(pa.array(np.concatenate([rows, gone]))).to_pylist()
    kept_ids, dropped_ids = ids[: len(rows)], ids[len(rows) :]
    order = sorted(range(len(rows)), key=lambda place: (-sizes[place], kept_ids[place]))[:LARGEST]
    parts = facts["part"].take(pa.array(rows)).to_pylist()
    largest = []
    for place in order:
        dropped = sorted(dropped_ids[index] for index in np.flatnonzero(members == place))
        entry = {"size": int(sizes[place]), "kept": kept_ids[place], "kept_part": parts[place]}
        largest.append(entry | {"dropped": dropped[:SHOWN_DROPPED]})
    return {
        "sizes": {str(size): int(number) for size, number in zip(*np.unique(classes, return_counts=True), strict=True)},
        "by_source": dict(Counter(map(source_of, ids))),
        "largest": largest,
    }


def joined(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The clusters of all partitions."""
    largest = [entry for summary in summaries for entry in summary["largest"]]
    return {
        "sizes": _sum(summary["sizes"] for summary in summaries),
        "by_source": _sum(summary["by_source"] for summary in summaries),
        "largest": sorted(largest, key=lambda entry: (-entry["size"], entry["kept"]))[:LARGEST],
    }


def _sum(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: (len(item[0]), item[0])))
