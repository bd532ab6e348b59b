"""Sizes of near-duplicate clusters reach mix, whatever lies between; each part gets its own."""

import random
from typing import Any

import pytest

from tasks.cluster_sizes import CLUSTER_SIZE, sizes_by_part
from tasks.dataset import Dataset, Workspace
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates
from tasks.documents import document_id
from tasks.errors import ConfigError, DataError
from tasks.keepers import PAIRS
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.parts import read_part
from tasks.select import select_documents
from tasks.select.rules import SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tests.conftest import MakeDocuments

WORDS = ["".join(random.Random(n).choices("abcdefghijklm", k=4 + n % 6)) for n in range(2000)]  # all digits are alike
BUCKETS = MixConfig.model_validate({"held_out_ratio": 0, "buckets": {"signal": CLUSTER_SIZE, "edges": [2, 4]}})


def cluster(rng: random.Random, size: int) -> list[str]:
    """One text and size - 1 copies that end otherwise, each shorter by a word: the first one is kept."""
    words = rng.choices(WORDS, k=120)
    return [" ".join([*words, *["end"] * (size - number)]) for number in range(size)]


def corpus(*sizes: int) -> tuple[list[str], dict[str, int]]:
    """Texts in random order, and the size by text of those that are kept."""
    rng = random.Random(sum(sizes))
    clusters = [cluster(rng, size) for size in sizes]
    texts = [text for own in clusters for text in own]
    rng.shuffle(texts)
    return texts, {own[0]: len(own) for own in clusters}


def rows_of(into: Workspace, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for part in manifest.parts for t in read_part(into.storage, part) for row in t.to_pylist()]


def step_of(into: Workspace, near: Manifest) -> Dataset:
    return into.dataset("mix", None, inputs={"documents": near}, module="tasks.mixture")


def test_every_part_has_the_sizes_of_its_kept_documents(workspace: Workspace, make_documents: MakeDocuments) -> None:
    texts, sizes = corpus(1, 2, 5, 3, 1, 2)
    near = drop_near_duplicates(make_documents(texts, parts=5), into=workspace, config=NearDedupConfig())
    parts = sizes_by_part(step_of(workspace, near), near, workspace.load(near.extra[PAIRS]))
    assert len(parts) == 5
    wanted = {row["doc_id"]: sizes[row["text"]] for row in rows_of(workspace, near)}
    found: dict[str, int] = {}
    for part, documents in zip(parts, near.parts, strict=True):
        own = {row["doc_id"] for table in read_part(workspace.storage, documents) for row in table.to_pylist()}
        rows = [row for table in read_part(workspace.storage, part) for row in table.to_pylist()]
        assert {row["doc_id"] for row in rows} <= own
        found |= {row["doc_id"]: row[CLUSTER_SIZE] for row in rows}
    assert found == {doc_id: size for doc_id, size in wanted.items() if size > 1}
    assert near.totals["dropped"] == sum(size - 1 for size in sizes.values())


def test_buckets_by_cluster_size_after_stages_that_drop_documents(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts, sizes = corpus(1, 2, 3, 4, 9, 1)
    last = texts.index(next(text for text in texts if text not in sizes))  # of another source: it counts as well
    documents = make_documents({"web": [*texts[:last], *texts[last + 1 :]], "code": ["x = 1", texts[last]]}, parts=3)
    near = drop_near_duplicates(documents, into=workspace, config=NearDedupConfig(priorities={"web": 1}))
    signals = measure_signals(near, into=workspace, config=SignalsConfig())
    rules = SelectConfig.model_validate(
        {
            "gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None,
            "rules": {"odd": "num_words == 124"},  # 120 words and as many at the end as the cluster of four has texts
        }
    )  # fmt: skip
    later = select_documents(near, signals, into=workspace, config=rules)
    buckets = {"signal": CLUSTER_SIZE, "edges": [2, 4]}
    config = MixConfig.model_validate({"by_source": {"web": {"buckets": buckets}}})
    mix = split_documents(later, signals, near, into=workspace, config=config)
    by_text = {row["doc_id"]: row["text"] for row in rows_of(workspace, later)}
    names = {by_text[row["doc_id"]]: row["sub_source"] for row in rows_of(workspace, mix)}
    wanted = {text: f"web/{(size >= 2) + (size >= 4)}" for text, size in sizes.items() if size != 4}
    assert names == wanted | {"x = 1": "code"}
    assert list(mix.extra["sizes"]) == ["code", "web/0", "web/1", "web/2"]  # every document has a size
    assert {entry["role"] for entry in mix.inputs} == {"documents", PAIRS}


@pytest.mark.parametrize("workers", [1, 2])
def test_sizes_do_not_depend_on_workers_or_parts(
    workspace: Workspace, make_documents: MakeDocuments, ray_cluster: None, workers: int
) -> None:
    texts, sizes = corpus(2, 6, 1, 3)
    into = Workspace(workspace.storage, run_id="test", workers=workers)
    near = drop_near_duplicates(make_documents(texts, parts=workers + 2), into=into, config=NearDedupConfig())
    mix = split_documents(near, near, into=into, config=BUCKETS)
    by_text = {row["doc_id"]: row["text"] for row in rows_of(into, near)}
    assert {by_text[row["doc_id"]]: row["sub_source"][-1] for row in rows_of(into, mix)} == {
        text: str((size >= 2) + (size >= 4)) for text, size in sizes.items()
    }


def test_documents_of_an_index_have_no_size(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """They lie in another dataset; what is like them is gone, and the others count as ever."""
    texts, _ = corpus(3, 2)
    first, _ = corpus(3, 2, 1)
    old = drop_near_duplicates(make_documents(first), into=workspace, config=NearDedupConfig())
    days = make_documents([*first[:2], *texts], raw_ref=[f"day#{n}" for n in range(len(texts) + 2)])
    near = drop_near_duplicates(days, old, into=workspace, config=NearDedupConfig())
    parts = sizes_by_part(step_of(workspace, near), near, workspace.load(near.extra[PAIRS]))
    rows = [row for part in parts for table in read_part(workspace.storage, part) for row in table.to_pylist()]
    assert sorted(row[CLUSTER_SIZE] for row in rows) == [2, 3]
    assert {row["doc_id"] for row in rows} <= {document_id("web", f"day#{n}") for n in range(len(texts) + 2)}


def test_sizes_must_be_there_and_of_these_documents(workspace: Workspace, make_documents: MakeDocuments) -> None:
    texts, _ = corpus(2, 1)
    near = drop_near_duplicates(make_documents(texts, parts=3), into=workspace, config=NearDedupConfig())
    with pytest.raises(ConfigError, match=r"mix\.buckets: the documents have no dedup-near"):
        split_documents(near, into=workspace, config=BUCKETS)
    other = drop_near_duplicates(make_documents(texts, parts=1), into=workspace, config=NearDedupConfig())
    with pytest.raises(DataError, match="other parts"):
        split_documents(near, other, into=workspace, config=BUCKETS)
