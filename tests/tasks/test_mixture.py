"""mix: one row per document, in order; sizes exact; nobody moves when data is added."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.documents import document_id
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.parts import read_part
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
    assert sum(map(sum, mix.extra["part_bytes"])) == sum(row["text_bytes"] for row in rows)
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


@pytest.mark.parametrize(
    "wrong", [{"held_out_ratio": 1.0}, {"held_out_ratio": -0.1}, {"seed": 3}, {"bytes_per_token": 0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MixConfig.model_validate(wrong)
    with pytest.raises(ValidationError, match=r"by_source\.web"):
        MixConfig.model_validate({"by_source": {"web": wrong}})
