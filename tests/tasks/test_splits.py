"""A document's split follows from its id alone; documents are read by split only where both parts agree."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.dataset import Workspace
from tasks.errors import DataError
from tasks.mixture import MixConfig, split_documents
from tasks.signals import SignalsConfig, measure_signals
from tasks.splits import SPLITS, paired_parts, read_split, sample_rate, split_of, whole_source
from tests.conftest import MakeDocuments

TEXTS = [f"text number {n}" for n in range(12)]
HALF = MixConfig(held_out_ratio=0.5)


@pytest.mark.parametrize(
    ("doc_id", "ratio", "split"),
    [  # XXH64 of these ids over 2^64: 0.450099, 0.382353, 0.734039
        ("web:0", 0.4500, "train"),
        ("web:0", 0.4502, "held_out"),
        ("web:1", 0.3823, "train"),
        ("web:1", 0.3824, "held_out"),
        ("code:12", 0.0, "train"),
    ],
)
def test_the_split_is_the_hash_of_the_id_against_the_ratio(doc_id: str, ratio: float, split: str) -> None:
    assert split_of(doc_id, ratio) == split


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 0.999), st.floats(0, 0.999))
def test_a_larger_ratio_only_moves_documents_to_held_out(doc_id: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert (split_of(doc_id, small), split_of(doc_id, large)) != ("held_out", "train")


def test_the_share_held_out_is_the_ratio() -> None:
    held_out = sum(split_of(f"web:{n:032x}", 0.1) == "held_out" for n in range(20_000))
    assert abs(held_out - 2_000) < 4 * (20_000 * 0.1 * 0.9) ** 0.5


def test_reading_both_splits_gives_every_document_once(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    mix = split_documents(documents, into=workspace, config=HALF)
    read = []
    for part, split_rows, _ in paired_parts(documents, mix, "web"):
        for split in ("train", "held_out"):
            for table in read_split(workspace.storage, part, split_rows, split):
                assert {split_of(doc_id, 0.5) for doc_id in table["doc_id"].to_pylist()} == {split}
                read += table["text"].to_pylist()
    assert sorted(read) == sorted(TEXTS)


def test_sub_sources_are_read_apart_and_are_everything_together(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents({"web": [" ".join("a" * n) for n in range(1, 13)], "code": ["x y z"]})
    signals = measure_signals(documents, into=workspace, config=SignalsConfig(min_line_words=0))
    buckets = {"signal": "num_words", "edges": [5, 9]}
    config = MixConfig.model_validate({"held_out_ratio": 0.5, "by_source": {"web": {"buckets": buckets}}})
    mix = split_documents(documents, signals, into=workspace, config=config)
    texts: dict[str, list[str]] = {}
    for name in mix.extra["sizes"]:
        for split in SPLITS:
            for part, rows, sizes in paired_parts(documents, mix, name):
                found = [
                    text for table in read_split(workspace.storage, part, rows, split, name)
                    for text in table["text"].to_pylist()
                ]  # fmt: skip
                assert sum(len(text) for text in found) == sizes[split]
                texts.setdefault(name, []).extend(found)
    words = {name: sorted(len(text.split()) for text in own) for name, own in texts.items()}
    assert words == {"code": [3], "web/0": [1, 2, 3, 4], "web/1": [5, 6, 7, 8], "web/2": [9, 10, 11, 12],
                     "web/unmeasured": []}  # fmt: skip
    assert whole_source("web/unmeasured") == "web" == whole_source("web")


def test_parts_that_name_other_documents_are_refused(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    mix = split_documents(documents, into=workspace, config=HALF)
    with pytest.raises(DataError, match="names other documents"):
        list(read_split(workspace.storage, documents.parts[0], mix.parts[1], "train"))
    with pytest.raises(DataError, match="splits 4 documents"):
        list(read_split(workspace.storage, replace(documents.parts[0], rows=3), mix.parts[0], "train"))


def test_a_mix_of_other_documents_is_refused(workspace: Workspace, make_documents: MakeDocuments) -> None:
    mix = split_documents(make_documents(TEXTS), into=workspace, config=HALF)
    with pytest.raises(DataError, match="was made of other documents"):
        paired_parts(make_documents(TEXTS[:-1]), mix, "web")


@pytest.mark.parametrize(
    ("wanted", "available", "rate"), [(10, 5, 1), (10, 39, 1), (10, 40, 0.5), (1, 1_000, 1 / 256), (0, 9, 0)]
)
def test_candidates_are_at_least_twice_what_is_wanted(wanted: int, available: int, rate: float) -> None:
    assert sample_rate(wanted, available) == rate
