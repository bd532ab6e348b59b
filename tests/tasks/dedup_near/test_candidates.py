"""Bands, buckets, edges and components against slow definitions; nodes stay apart by part."""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tasks.dataset import Dataset, Workspace
from tasks.dedup_near import candidates
from tasks.dedup_near.candidates import (
    BAND_ROWS,
    NUM_BANDS,
    PART_SHIFT,
    band_keys,
    connect,
    nodes_of,
)
from tasks.dedup_near.signatures import sign
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import DataError
from tasks.kernels.minima import NUM_PERMUTATIONS
from tasks.manifest import Manifest, list_manifests, load_manifest
from tasks.parts import read_part

MakeDocuments = Callable[..., Manifest]


def random_signatures(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, (rows, NUM_PERMUTATIONS), dtype=np.uint32)


def dataset_of(workspace: Workspace, documents: Manifest) -> Dataset:
    return workspace.dataset(
        "dedup-near", None, inputs={"documents": documents}, module="tasks.dedup_near", schema=DOCUMENT_SCHEMA
    )


def near_texts(groups: int, copies: int, seed: int = 1) -> list[str]:
    """Groups of near copies of 80 words; consecutive."""
    rng = random.Random(seed)
    texts = []
    for group in range(groups):
        words = ["".join(rng.choices("abcdefghij", k=6)) + chr(97 + group) for _ in range(80)]
        for copy in range(copies):
            texts.append(" ".join([*words[:-1], "end" + "x" * copy]))
    return texts


def test_the_shape_of_bands_is_the_documented_one() -> None:
    assert (NUM_BANDS, BAND_ROWS) == (14, 8)
    probability = {s: 1 - (1 - s**BAND_ROWS) ** NUM_BANDS for s in (0.7, 0.8, 0.9)}
    assert [round(value, 3) for value in probability.values()] == [0.565, 0.924, 1.0]


def test_keys_are_equal_exactly_for_equal_bands() -> None:
    one = random_signatures(1, 1)[0]
    other = random_signatures(2, 1)[0]
    for band in (0, 6, 13):
        other[band * BAND_ROWS : (band + 1) * BAND_ROWS] = one[band * BAND_ROWS : (band + 1) * BAND_ROWS]
    keys = band_keys(np.stack([one, other]))
    assert np.flatnonzero(keys[0] == keys[1]).tolist() == [0, 6, 13]
    assert band_keys(np.empty((0, NUM_PERMUTATIONS), np.uint32)).shape == (0, NUM_BANDS)


def test_the_same_values_in_two_bands_have_two_keys() -> None:
    signature = np.tile(np.arange(BAND_ROWS, dtype=np.uint32), NUM_BANDS)[np.newaxis]
    assert len(set(band_keys(signature)[0].tolist())) == NUM_BANDS


def test_nodes_are_sorted_by_part_and_follow_the_id() -> None:
    ids = pa.chunked_array([[f"web:{n:032x}" for n in range(1000)]])
    first, last = nodes_of(ids, 0), nodes_of(ids, (1 << 20) - 1)
    assert len(np.unique(first)) == 1000
    assert first.max() < 1 << PART_SHIFT
    assert (last >> np.uint64(PART_SHIFT)).tolist() == [(1 << 20) - 1] * 1000
    np.testing.assert_array_equal(first, last & np.uint64((1 << PART_SHIFT) - 1))


def test_the_first_of_a_bucket_is_its_smallest_node() -> None:
    rng = np.random.default_rng(3)
    for size in (0, 1, 2, 500):
        keys, nodes = rng.integers(0, 200, size, dtype=np.uint64), rng.integers(0, 1 << 60, size, dtype=np.uint64)
        smallest: dict[int, int] = {}
        for key, node in zip(keys.tolist(), nodes.tolist(), strict=True):
            smallest[key] = min(node, smallest.get(key, node))
        assert candidates._first_of_bucket(keys, nodes).tolist() == [smallest[key] for key in keys.tolist()]


def test_pairs_are_distinct_sorted_and_of_two_nodes() -> None:
    ones, others = np.array([5, 1, 5, 3, 1], np.uint64), np.array([6, 2, 6, 3, 1], np.uint64)
    one, other = candidates._unique_pairs(ones, others)
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == [(1, 2), (5, 6)]


@pytest.mark.parametrize("partition_bytes", [1 << 28, 3_000])
def test_every_group_of_near_copies_becomes_one_component(
    workspace: Workspace, make_documents: MakeDocuments, partition_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", partition_bytes)
    texts = near_texts(groups=12, copies=3)
    order = list(range(len(texts)))
    random.Random(4).shuffle(order)  # copies lie in different parts
    documents = make_documents([texts[place] for place in order], parts=4)
    dataset = dataset_of(workspace, documents)
    manifest = connect(dataset, sign(dataset, documents, {"web": True}), ())
    rows = pa.concat_tables(read_part(workspace.storage, manifest.parts[0])).to_pylist()
    assert manifest.extra == {"members": 36, "components": 12, "largest": 3}
    component_of = {row["node"]: row["component"] for row in rows}
    groups: dict[int, set[int]] = {}
    place = 0
    for number, part in enumerate(documents.parts):
        for table in read_part(workspace.storage, part, ["doc_id"]):
            for node in nodes_of(table["doc_id"], number).tolist():
                groups.setdefault(component_of[node], set()).add(order[place] // 3)
                place += 1
    assert sorted(group for members in groups.values() for group in members) == list(range(12))
    assert [row["node"] for row in rows] == sorted(component_of)
    assert all(min(n for n, c in component_of.items() if c == component) == component for component in groups)


def test_edges_within_a_part_are_stars_not_all_pairs(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(near_texts(groups=1, copies=40), parts=1)
    dataset = dataset_of(workspace, documents)
    connect(dataset, sign(dataset, documents, {"web": True}), ())
    edges = load_manifest(workspace.storage, list_manifests(workspace.storage, "dedup-near.edges")[0])
    assert 39 <= edges.totals["rows_out"] < 3 * 39


def test_a_signature_file_that_was_cut_is_refused(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """datatrove#157, #397: what a killed task left of its signatures was read by the next stage."""
    documents = make_documents(near_texts(groups=2, copies=2), parts=2)
    dataset = dataset_of(workspace, documents)
    signatures = sign(dataset, documents, {"web": True})
    path = signatures.parts[1].path
    workspace.storage.write_bytes(path, workspace.storage.read_bytes(path)[:-10])
    with pytest.raises(DataError, match=r"dedup-near\.signatures"):
        connect(dataset, signatures, ())
