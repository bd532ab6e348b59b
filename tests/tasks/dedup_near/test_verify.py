"""Verification: members find their component, and the shared gold pairs are judged by true Jaccard."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset import Workspace
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates, verify
from tasks.dedup_near.candidates import COMPONENT_SCHEMA, PART_SHIFT
from tasks.kernels.shingles import normalise_texts
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, read_ledger, read_part

MakeDocuments = Callable[..., Manifest]
GOLD = Path(__file__).parents[4] / "shared/data/gold"


def write_components(unit: Unit, writer: PartWriter) -> None:
    """Part function: nodes of parts 0, 2 and the last possible one, a row group for every two rows."""
    nodes = np.array([1, 5, (2 << PART_SHIFT) + 3, ((1 << 20) - 1 << PART_SHIFT) + 7, (1 << 64) - 1], np.uint64)
    table = pa.table([nodes, nodes % np.uint64(4)], schema=COMPONENT_SCHEMA)
    for start in range(0, len(nodes), 2):
        writer.write_row_group(table.slice(start, 2))


def test_each_document_part_reads_its_own_slice_of_the_components(workspace: Workspace) -> None:
    dataset = workspace.dataset("components", None, inputs={}, module="tasks.dedup_near", schema=COMPONENT_SCHEMA)
    [receipt] = dataset.compute([dataset.unit()], write_components)
    unit = dataset.unit()
    slices = [verify._components_of(unit, receipt.part, number) for number in (0, 1, 2, (1 << 20) - 1)]
    offsets = [(nodes & np.uint64((1 << PART_SHIFT) - 1)).tolist() for nodes, _ in slices]
    assert offsets == [[1, 5], [], [3], [7, (1 << PART_SHIFT) - 1]]
    assert slices[0][1].tolist() == [1, 1]


def shingles_of(text: str) -> set[str]:
    words = normalise_texts(pa.chunked_array([pa.array([text], pa.large_string())]))[0].as_py().split(" ")
    return {" ".join(words[start : start + 5]) for start in range(len(words) - 4)}


@pytest.mark.skipif(not GOLD.exists(), reason="the shared gold data is not here")
def test_natural_near_duplicates_are_found_and_none_is_dropped_below_the_threshold(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    gold = pq.read_table(GOLD / "neardup_natural_docs.parquet", columns=["id", "text"])
    ids, texts = gold["id"].to_pylist(), gold["text"].to_pylist()
    documents = make_documents(texts, parts=4, raw_ref=ids)
    kept = drop_near_duplicates(documents, into=workspace, config=NearDedupConfig())
    survivors = [table for part in kept.parts for table in read_part(workspace.storage, part, ["raw_ref"])]
    stay = set(pa.concat_tables(survivors)["raw_ref"].to_pylist())
    pairs = pq.read_table(GOLD / "neardup_natural_pairs.parquet").to_pylist()
    for limit, recall in ((0.8, 0.95), (0.9, 0.999)):
        alike = [pair for pair in pairs if pair["jaccard_w5"] >= limit]
        together = [pair for pair in alike if pair["id_a"] in stay and pair["id_b"] in stay]
        assert len(together) <= (1 - recall) * len(alike)
    tables = [table for part in documents.parts for table in read_part(workspace.storage, part, ["doc_id", "text"])]
    text_of = {row["doc_id"]: row["text"] for row in pa.concat_tables(tables).to_pylist()}
    dropped = [row for part in kept.parts for row in read_ledger(workspace.storage, part).to_pylist()]
    for row in dropped[::9]:
        one, other = shingles_of(text_of[row["doc_id"]]), shingles_of(text_of[row["matched_id"]])
        assert row["value"] == len(one & other) / len(one | other) >= 0.7
