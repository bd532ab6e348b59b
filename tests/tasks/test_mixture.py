"""mix: one row per document, in order; sizes exact; nobody moves when data is added."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.documents import document_id
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.parts import read_part
from tasks.signals import SignalsConfig, measure_signals
from tasks.splits import split_of
from tests.conftest import MakeDocuments

CONFIG = MixConfig(held_out_ratio=0.3, by_source={"code": {"bytes_per_token": 2.5}})
TEXTS = {"web": [f"größe {n} 🙂" * (n % 4) for n in range(20)], "code": [f"x = {n}\n" * 10 for n in range(15)]}


def rows_of(workspace: Workspace, mix: Manifest) -> list[dict[str, Any]]:
    tables = [table for part in mix.parts for table in read_part(workspace.storage, part)]
    return [row for table in tables for row in table.to_pylist()]


def files_of(workspace: Workspace, stage: str) -> dict[str, bytes]:
    folder = Path(workspace.storage.path(f"{stage}/parts"))
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_every_document_has_one_row_in_order_with_its_bytes(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(TEXTS)
    mix = split_documents(documents, into=workspace, config=CONFIG)
    wanted = [
        {
            "doc_id": (doc_id := document_id(source, f"file#{n}")),
            "split": split_of(doc_id, 0.3),
            "sub_source": source,
            "text_bytes": len(text.encode()),
        }
        for source, texts in TEXTS.items()
        for n, text in enumerate(texts)
    ]
    assert rows_of(workspace, mix) == wanted
    assert [(part.rows, part.source) for part in mix.parts] == [(part.rows, part.source) for part in documents.parts]
    assert mix.totals["rows_in"] == mix.totals["rows_out"] == 35


def test_the_size_table_counts_documents_bytes_and_estimated_tokens(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    mix = split_documents(make_documents(TEXTS), into=workspace, config=CONFIG)
    rows = rows_of(workspace, mix)
    assert list(mix.extra["sizes"]) == ["code", "web"]
    for source, bytes_per_token in (("web", 4.0), ("code", 2.5)):
        for split in ("train", "held_out"):
            own = [r["text_bytes"] for r in rows if r["split"] == split and r["doc_id"].startswith(source)]
            assert mix.extra["sizes"][source][split] == {
                "documents": len(own),
                "bytes": sum(own),
                "estimated_tokens": round(sum(own) / bytes_per_token),
            }
    held = [sizes for part in mix.extra["part_bytes"] for sizes in part.values()]
    assert sum(map(sum, held)) == sum(row["text_bytes"] for row in rows)
    assert len(mix.extra["part_bytes"]) == len(mix.parts)


def test_adding_a_source_moves_nobody_and_computes_only_its_parts(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    before = split_documents(make_documents({"web": TEXTS["web"]}), into=workspace, config=CONFIG)
    computed = set(files_of(workspace, "mix"))
    after = split_documents(make_documents(TEXTS), into=workspace, config=CONFIG)
    assert after.parts_of("web") == before.parts
    assert len(set(files_of(workspace, "mix")) - computed) == len(after.parts_of("code"))


def test_a_source_can_have_its_own_ratio(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = MixConfig(held_out_ratio=0.3, by_source={"code": {"held_out_ratio": 0}})
    sizes = split_documents(make_documents(TEXTS), into=workspace, config=config).extra["sizes"]
    assert sizes["code"]["held_out"]["documents"] == 0
    assert sizes["web"]["held_out"]["documents"] > 0


def test_documents_without_rows_or_text_are_counted(workspace: Workspace, make_documents: MakeDocuments) -> None:
    mix = split_documents(make_documents(["", "\x00", "\n"]), into=workspace, config=CONFIG)
    assert [row["text_bytes"] for row in rows_of(workspace, mix)] == [0, 1, 1]
    empty = split_documents(make_documents([]), into=workspace, config=CONFIG)
    assert (empty.parts, empty.extra["sizes"]) == ([], {})


def test_a_second_call_finds_it_and_a_lost_part_is_made_again_alike(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(TEXTS)
    first = split_documents(documents, into=workspace, config=CONFIG)
    assert split_documents(documents, into=workspace, config=CONFIG) == first
    files = files_of(workspace, "mix")
    workspace.storage.delete(first.file_path("manifest.json"))
    workspace.storage.delete(first.parts[2].receipt_path)
    workspace.storage.delete(first.parts[2].path)
    again = split_documents(documents, into=workspace, config=CONFIG)
    assert (again.digest, again.parts, files_of(workspace, "mix")) == (first.digest, first.parts, files)


BUCKETS = {"signal": "mean_word_chars", "edges": [3, 6]}
WORDS = ["x" * n for n in (1, 2, 3, 5, 6, 9, 30)] + ["ภาษาไทย" * 20]  # the length of Thai words is not measured


def test_buckets_divide_a_source_by_a_signal(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """A value equal to an edge lies above it; an unmeasured one has a bucket of its own; the split stays as it was."""
    documents = make_documents({"web": WORDS, "code": WORDS})
    signals = measure_signals(documents, into=workspace, config=SignalsConfig(min_line_words=0))
    config = MixConfig.model_validate({"held_out_ratio": 0.3, "by_source": {"web": {"buckets": BUCKETS}}})
    mix = split_documents(documents, signals, into=workspace, config=config)
    rows = rows_of(workspace, mix)
    numbers = ["0", "0", "1", "1", "2", "2", "2", "unmeasured"]
    assert [row["sub_source"] for row in rows] == [f"web/{name}" for name in numbers] + ["code"] * 8
    plain = split_documents(documents, into=workspace, config=MixConfig(held_out_ratio=0.3))
    assert [row["split"] for row in rows] == [row["split"] for row in rows_of(workspace, plain)]
    assert list(mix.extra["sizes"]) == ["code", "web/0", "web/1", "web/2", "web/unmeasured"]
    documents_of = {name: sum(s["documents"] for s in splits.values()) for name, splits in mix.extra["sizes"].items()}
    assert documents_of == {"code": 8, "web/0": 2, "web/1": 2, "web/2": 3, "web/unmeasured": 1}
    assert [part.key for part in mix.parts_of("code")] == [part.key for part in plain.parts_of("code")]


def test_buckets_need_signals_of_these_documents(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = MixConfig.model_validate({"buckets": BUCKETS})
    documents = make_documents(WORDS, parts=2)
    with pytest.raises(ConfigError, match=r"mix\.buckets: the documents have no signals"):
        split_documents(documents, into=workspace, config=config)
    others = make_documents(WORDS[:-1], parts=2)
    for wrong, message in ((others, "has no signals: they were"), (make_documents(WORDS, parts=1), "other parts")):
        signals = measure_signals(wrong, into=workspace, config=SignalsConfig())
        with pytest.raises(DataError, match=message):
            split_documents(documents, signals, into=workspace, config=config)


def test_documents_that_later_stages_dropped_need_no_bucket(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    """Signals are joined by doc_id, not by place: every other document is gone since they were measured."""
    measured = make_documents(WORDS, parts=1)
    signals = measure_signals(measured, into=workspace, config=SignalsConfig(min_line_words=0))
    refs = [f"file#{n}" for n in range(0, 8, 2)]
    kept = make_documents(WORDS[::2], parts=1, raw_ref=refs)
    mix = split_documents(kept, signals, into=workspace, config=MixConfig.model_validate({"buckets": BUCKETS}))
    assert [row["sub_source"] for row in rows_of(workspace, mix)] == ["web/0", "web/1", "web/2", "web/2"]


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({"signal": "num_wrods", "edges": [1]}, "no signal num_wrods that is a number; did you mean num_words"),
        ({"signal": "language", "edges": [1]}, "that is a number"),
        ({"signal": "num_words", "edges": []}, "at least 1"),
        ({"signal": "num_words", "edges": [3, 3]}, "must rise"),
        ({"signal": "num_words", "edges": [3, float("inf")]}, "finite"),
        ({"signal": "cluster_size", "edges": [1, 5]}, r"edges \[1.0, 5.0\]: sizes of clusters are whole numbers"),
        ({"signal": "cluster_size", "edges": [2.5]}, "1 is the smallest"),
    ],
)
def test_wrong_buckets_are_refused(buckets: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MixConfig.model_validate({"buckets": buckets})


@pytest.mark.parametrize(
    "wrong", [{"held_out_ratio": 1.0}, {"held_out_ratio": -0.1}, {"seed": 3}, {"bytes_per_token": 0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MixConfig.model_validate(wrong)
    with pytest.raises(ValidationError, match=r"by_source\.web"):
        MixConfig.model_validate({"by_source": {"web": wrong}})
