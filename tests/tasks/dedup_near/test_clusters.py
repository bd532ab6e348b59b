"""The summary of clusters: sizes by class, sources, the largest; the same whatever the number of partitions."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.dataset import Workspace
from tasks.dedup_near import NearDedupConfig, clusters, drop_near_duplicates
from tasks.dedup_near.clusters import joined, summary_of
from tasks.manifest import Manifest
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]
VOCABULARY = [f"{one}{two}{three}" for one in "abcdefghij" for two in "klmnopqr" for three in "stuvwxyz"]


def test_clusters_are_counted_by_size_and_source_and_the_largest_are_named() -> None:
    ids = ["web:a", "web:b", "books:c", "web:d", "web:e", "web:f", "web:g", "web:h"]
    facts = pa.table({"doc_id": ids, "part": pa.array([0, 0, 1, 1, 2, 2, 3, 3], pa.int32())})
    found = summary_of(facts, np.array([1, 3, 4, 5, 6, 7]), np.array([0, 2, 2, 2, 2, 2]))
    assert found["sizes"] == {"2": 1, "8": 1}
    assert found["by_source"] == {"web": 7, "books": 1}
    assert found["largest"] == [
        {"size": 6, "kept": "books:c", "kept_part": 1, "dropped": ["web:d", "web:e", "web:f"]},
        {"size": 2, "kept": "web:a", "kept_part": 0, "dropped": ["web:b"]},
    ]
    twice = joined([found, found])
    assert twice["sizes"] == {"2": 2, "8": 2}
    assert [entry["size"] for entry in twice["largest"]] == [6, 6, 2, 2]


def test_no_clusters_give_an_empty_summary() -> None:
    empty = summary_of(pa.table({"doc_id": ["a:b"], "part": [0]}), np.empty(0, np.int64), np.empty(0, np.int64))
    assert empty == {"sizes": {}, "by_source": {}, "largest": []} == joined([]) == joined([empty])


def test_exactly_one_of_each_cluster_is_kept_for_any_number_of_partitions(
    make_documents: MakeDocuments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """text-dedup#129, #130: with cluster ids that were no members', every member of a cluster was removed."""
    monkeypatch.setattr(clusters, "LARGEST", 3)
    rng = random.Random(1)
    texts = [" ".join(rng.choices(VOCABULARY, k=60)) for _ in range(8)]
    copies = [f"{text}{'.' * number}" for place, text in enumerate(texts) for number in range(1 + place)]
    rng.shuffle(copies)
    found = []
    for number, partition_bytes in enumerate((1 << 28, 2_000)):
        monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", partition_bytes)
        into = Workspace(Storage(str(tmp_path / str(number))))
        kept = drop_near_duplicates(make_documents(copies, parts=4, into=into), into=into, config=NearDedupConfig())
        assert kept.totals["rows_out"] == 8
        found.append(kept.extra["clusters"])
    assert found[0] == found[1]
    assert found[0]["sizes"] == {"2": 1, "4": 2, "8": 4}
    assert [entry["size"] for entry in found[0]["largest"]] == [8, 7, 6]
    assert found[0]["by_source"] == {"web": 35}
