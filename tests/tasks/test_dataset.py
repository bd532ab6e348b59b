"""Datasets: parts found by key, manifest last, conservation, generations, causes, interruption."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, Field

from tasks.dataset import Dataset, Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import Cancelled, DataError, NotComputed
from tasks.kernels import COMPILING
from tasks.manifest import Manifest
from tasks.parts import PartFunction, PartWriter, Unit, documents_of, read_ledger, read_part

TEXTS = ["keep one", "drop", "keep two", "keep three", "drop", "keep four", "keep five"]


class DropConfig(BaseModel, frozen=True, extra="forbid"):
    word: str = "drop"
    option: bool = Field(default=False, json_schema_extra={"neutral": False})


def drop_part(unit: Unit, writer: PartWriter) -> None:
    assert isinstance(unit.config, DropConfig)
    for table in documents_of(unit, writer):
        bad = pc.equal(table["text"], unit.config.word)
        for row in table.filter(bad).select(["doc_id", "source"]).to_pylist():
            writer.ledger.drop(**row, reason="word", value=1, threshold=0)
        writer.write(table.filter(pc.invert(bad)))


def lose_part(unit: Unit, writer: PartWriter) -> None:
    for table in documents_of(unit, writer):
        writer.write(table.slice(1))


def dataset_of(into: Workspace, documents: Manifest, config: DropConfig | None = None) -> Dataset:
    return into.dataset(
        "select",
        config or DropConfig(),
        inputs={"documents": documents},
        module="tasks.documents",
        schema=DOCUMENT_SCHEMA,
        conservation="documents",
        reasons=frozenset({"word"}),
    )


def drop(
    into: Workspace, documents: Manifest, config: DropConfig | None = None, part: PartFunction = drop_part
) -> Manifest:
    config = config or DropConfig()
    dataset = dataset_of(into, documents, config)
    if found := dataset.find():
        return found
    with dataset.lease():
        units = [dataset.unit([part], source=part.source, config=config) for part in documents.parts]
        return dataset.publish(dataset.compute(units, part))


def texts_of(into: Workspace, manifest: Manifest) -> list[str]:
    tables = [table for part in manifest.parts for table in read_part(into.storage, part)]
    return [text for table in tables for text in table["text"].to_pylist()]


def test_the_first_use_of_kernels_is_told_before_they_are_compiled(
    make_documents: Callable[..., Manifest], workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again where it failed; never where nothing is computed, or by a stage without kernels."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    told: list[str] = []
    into, documents = replace(workspace, on_message=told.append), make_documents(TEXTS)
    drop(into, documents)
    assert told == []

    def compute(word: str, part: PartFunction = drop_part) -> None:
        dataset = replace(dataset_of(into, documents), module="tasks.redact")
        dataset.compute([dataset.unit(documents.parts[:1], config=DropConfig(word=word))], part)

    with pytest.raises(DataError):
        compute("one", lose_part)
    for word in ("one", "two", "two"):
        compute(word)
    assert told == [COMPILING] * 2


def test_counts_and_names_every_document(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    result = drop(workspace, make_documents(TEXTS))
    assert texts_of(workspace, result) == [text for text in TEXTS if text != "drop"]
    assert result.totals["rows_in"] == 7
    assert result.totals["dropped"] == 2
    assert result.reasons == {"word": 2}
    assert result.by_source["web"]["rows_out"] == 5
    rows = pa.concat_tables([read_ledger(workspace.storage, part) for part in result.parts]).to_pylist()
    assert {row["action"] for row in rows} == {"drop"}
    assert all(row["value"] == 1 and row["threshold"] == 0 for row in rows)
    assert len({row["doc_id"] for row in rows}) == 2


def test_a_file_of_another_size_is_not_read_as_the_part(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    """Another sound file with as many rows in the part's place."""
    part = make_documents(TEXTS).parts[0]
    path = Path(workspace.storage.path(part.path))
    table = pq.read_table(path)
    column = table.schema.get_field_index("text")
    other = pa.array([f"{text} and more" for text in table["text"].to_pylist()], pa.large_string())
    pq.write_table(table.set_column(column, table.schema.field(column), other), path)
    with pytest.raises(DataError, match=f"{part.path} has {path.stat().st_size} bytes of {part.bytes}"):
        list(read_part(workspace.storage, part))


def test_a_finished_dataset_is_found_by_any_run(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    first = drop(workspace, documents)
    again = drop(replace(workspace, run_id="other", dry=True), documents)
    assert again == first
    assert again.run_id == "test"


def test_a_neutral_option_moves_no_fingerprint(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    plain = dataset_of(workspace, documents)
    assert plain.fingerprint == dataset_of(workspace, documents, DropConfig(option=False)).fingerprint
    assert plain.fingerprint != dataset_of(workspace, documents, DropConfig(option=True)).fingerprint


def test_a_killed_stage_repeats_no_finished_part(
    make_documents: Callable[..., Manifest], workspace: Workspace, tmp_path: Path
) -> None:
    documents = make_documents(TEXTS)
    whole = drop(workspace, documents)
    files = {info.key: workspace.storage.read_bytes(info.key) for info in workspace.storage.list_files("select/parts")}
    for key in files:
        if whole.parts[1].key in key or "manifest" in key:
            workspace.storage.delete(key)
    workspace.storage.delete(whole.file_path("manifest.json"))
    receipts = {part.receipt_path: workspace.storage.read_bytes(part.receipt_path) for part in whole.parts[::2]}
    again = drop(workspace, documents)
    assert again.digest == whole.digest
    assert again.parts == whole.parts
    for path, receipt in receipts.items():
        assert workspace.storage.read_bytes(path) == receipt  # seconds and all: the part was not computed again
    parquet = [part.path for part in whole.parts if part.rows] + [
        p.ledger_path for p in whole.parts if p.ledger_path in files
    ]
    assert all(workspace.storage.read_bytes(path) == files[path] for path in parquet)


def test_a_part_of_another_size_is_computed_again(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    documents = make_documents(TEXTS)
    whole = drop(workspace, documents)
    workspace.storage.write_bytes(whole.parts[0].path, b"cut")
    workspace.storage.delete(whole.file_path("manifest.json"))
    again = drop(workspace, documents)
    assert again.parts == whole.parts
    assert workspace.storage.size(whole.parts[0].path) == whole.parts[0].bytes


def test_a_new_input_part_costs_itself_only(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    first = drop(workspace, make_documents({"a": ["x", "y"], "b": ["z"]}, parts=1))
    second = drop(workspace, make_documents({"a": ["x", "y"], "b": ["z"], "c": ["new"]}, parts=1))
    assert second.parts[:2] == first.parts
    assert second.digest != first.digest


def test_equal_output_cuts_off_what_follows(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    first = drop(workspace, documents, DropConfig(word="absent"))
    second = drop(workspace, documents, DropConfig(word="also absent"))
    assert first.fingerprint != second.fingerprint
    assert first.digest == second.digest == documents.digest
    assert dataset_of(workspace, first).fingerprint == dataset_of(workspace, second).fingerprint


def test_a_part_without_rows_has_a_receipt_and_no_file(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    result = drop(workspace, make_documents(["drop", "stay"], parts=2))
    assert [part.rows for part in result.parts] == [0, 1]
    assert workspace.storage.exists(result.parts[0].receipt_path)
    assert not workspace.storage.exists(result.parts[0].path)
    assert list(read_part(workspace.storage, result.parts[0])) == []


def test_losing_a_row_fails_the_stage(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    with pytest.raises(DataError, match=r"select: part [0-9a-f]{32}: 3 rows in, but 2 accounted for"):
        drop(workspace, make_documents(TEXTS), part=lose_part)
    assert not [info for info in workspace.storage.list_files("select") if info.key.endswith("manifest.json")]


def test_leaving_out_a_part_fails_the_stage(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    dataset = dataset_of(workspace, documents)
    units = [dataset.unit([part], source=part.source, config=DropConfig()) for part in documents.parts[1:]]
    with pytest.raises(DataError, match="read 4 documents of 7"):
        dataset.publish(dataset.compute(units, drop_part))


def test_a_missing_part_is_an_error_not_an_empty_one(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    documents = make_documents(TEXTS)
    workspace.storage.delete(documents.parts[0].path)
    with pytest.raises(DataError, match=documents.parts[0].key):
        drop(workspace, documents)


def test_a_flipped_bit_is_noticed_by_the_page_checksum(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    documents = make_documents(["some text " * 500] * 3, parts=1)
    data = bytearray(workspace.storage.read_bytes(documents.parts[0].path))
    offset = (
        pq.ParquetFile(workspace.storage.path(documents.parts[0].path)).metadata.row_group(0).column(2).data_page_offset
    )
    data[offset + 60] ^= 1
    workspace.storage.write_bytes(documents.parts[0].path, bytes(data))
    with pytest.raises(DataError, match=documents.parts[0].key):
        drop(workspace, documents)


def test_a_dry_run_names_the_cause(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    dry = replace(workspace, dry=True)
    with pytest.raises(NotComputed, match="never computed here"):
        drop(dry, documents)
    drop(workspace, documents)
    with pytest.raises(NotComputed, match=r"word: drop -> keep one"):
        drop(dry, documents, DropConfig(word="keep one"))
    with pytest.raises(NotComputed, match="input documents changed"):
        drop(dry, make_documents([*TEXTS, "more"]))
    with pytest.raises(NotComputed, match="forced, generation 1"):
        drop(replace(dry, generations={"select": 1}), documents)


def test_a_forced_recompute_overwrites_nothing(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    first = drop(workspace, documents)
    forced = drop(replace(workspace, generations={"select": 1}), documents)
    assert forced.digest == first.digest
    assert {part.key for part in forced.parts}.isdisjoint({part.key for part in first.parts})


def test_a_recompute_that_differs_is_an_error(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    drop(workspace, documents)

    def other(unit: Unit, writer: PartWriter) -> None:
        for table in documents_of(unit, writer):
            writer.write(table)

    with pytest.raises(DataError, match="not deterministic"):
        drop(replace(workspace, generations={"select": 1}), documents, part=other)


def test_cancelling_keeps_finished_parts(make_documents: Callable[..., Manifest], workspace: Workspace) -> None:
    documents = make_documents(TEXTS)
    stopping = replace(workspace, on_progress=lambda stage, done, total: workspace.stop.set() if done == 1 else None)
    with pytest.raises(Cancelled):
        drop(stopping, documents)
    workspace.stop.clear()
    receipts = [info for info in workspace.storage.list_files("select/parts") if info.key.endswith(".json")]
    assert len(receipts) == 1
    assert drop(workspace, documents).totals["dropped"] == 2


def test_wrong_columns_and_unknown_reasons_are_refused(
    make_documents: Callable[..., Manifest], workspace: Workspace
) -> None:
    def rename(unit: Unit, writer: PartWriter) -> None:
        for table in documents_of(unit, writer):
            writer.write(table.rename_columns(["id", *table.column_names[1:]]))

    def reason(unit: Unit, writer: PartWriter) -> None:
        writer.ledger.drop("web:1", "web", "because")

    with pytest.raises(DataError, match="has columns"):
        drop(workspace, make_documents(TEXTS), part=rename)
    with pytest.raises(DataError, match=r"'because' is not one of \['word'\]"):
        drop(workspace, make_documents(TEXTS), part=reason)


def test_files_of_a_result_are_listed_as_parts(workspace: Workspace) -> None:
    dataset = workspace.dataset("vocabulary", DropConfig(), inputs={}, module="tasks.documents")
    made = dataset.publish_files({"tokenizer.json": b"{}", "report.json": b"[]"}, extra={"size": 2})
    found = dataset.find()
    assert found == made
    assert found.read_file(workspace.storage, "tokenizer.json") == b"{}"
    assert [(part.key, part.rows) for part in found.parts] == [("tokenizer.json", None), ("report.json", None)]
    with pytest.raises(DataError, match="has no file 'other'"):
        found.read_file(workspace.storage, "other")


def test_two_writers_with_different_results_are_an_error(workspace: Workspace) -> None:
    dataset = workspace.dataset("vocabulary", DropConfig(), inputs={}, module="tasks.documents")
    first = dataset.publish_files({"a": b"1"})
    assert dataset.publish_files({"a": b"1"}) == first
    with pytest.raises(DataError, match="two computations differ"):
        dataset.publish_files({"a": b"2"})


def test_logs_one_line_at_start_and_end(
    make_documents: Callable[..., Manifest], workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    documents = make_documents(TEXTS)
    with caplog.at_level(logging.INFO, logger="tasks.dataset"):
        drop(workspace, documents)
    lines = [record.getMessage() for record in caplog.records]
    assert any("select: done" in line and "'dropped': 2" in line for line in lines)
