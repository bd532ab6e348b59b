"""Records of runs: written, found by a piece of their id, stages between two."""

import re
from pathlib import Path

import pytest

from tasks.errors import ConfigError, DataError
from tasks.runs import (
    RUN_STAGES,
    DatasetLine,
    RunRecord,
    find_record,
    list_records,
    list_run_ids,
    load_record,
    new_run_id,
    next_generation,
    stages_between,
)
from tasks.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def a_record(run_id: str, **facts: object) -> RunRecord:
    return RunRecord.model_validate({"run_id": run_id, "created": "2026-01-01", "recipe": {"name": "x"}} | facts)


def a_line(label: str, reference: str) -> DatasetLine:
    stage = label.split()[0]
    return DatasetLine(
        label=label, stage=stage, reference=reference, digest="d", code="c", made_by="r", cached=False, attempt=1,
        seconds=0.5,
    )  # fmt: skip


def test_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(50)]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run_id) for run_id in ids)
    assert len(set(ids)) > 45
    assert sorted({run_id[:15] for run_id in ids}) == list(dict.fromkeys(run_id[:15] for run_id in ids))


def test_a_record_survives_writing_and_holds_no_root(storage: Storage) -> None:
    record = a_record("20260101-000000-aaaa", until_stage="mix", generations={"select": 2})
    assert record.state == "running"
    record.begin_attempt("flow-run-1").state = "failed"
    record.begin_attempt(None).state = "completed"
    record.set_dataset(a_line("pack web train 64", "pack/1"))
    record.set_dataset(a_line("mix", "mix/1"))
    record.set_dataset(a_line("pack web train 64", "pack/2"))  # a later attempt's takes its place
    record.save(storage)
    read = load_record(storage, record.run_id)
    assert read == record
    assert [attempt.number for attempt in read.attempts] == [1, 2]
    assert read.state == "completed"
    assert [line.reference for line in read.datasets] == ["pack/2", "mix/1"]
    assert [line.label for line in read.datasets_of("pack")] == ["pack web train 64"]
    assert storage.url.encode() not in storage.read_bytes(f"runs/{record.run_id}/run.json")


def state_of(record: RunRecord) -> str:
    """Asked anew each time: a property may change between two reads."""
    return record.state


def test_a_killed_attempt_is_called_so() -> None:
    record = a_record("20260101-000000-aaaa")
    attempt = record.begin_attempt(None)
    assert state_of(record) == "running"
    attempt.pid = 2**22 + 1  # no process has such a number
    assert state_of(record) == "killed"
    attempt.host = "elsewhere"  # nothing is known of processes there
    assert state_of(record) == "running"
    record.begin_attempt(None).state = "completed"
    assert [attempt.state for attempt in record.attempts] == ["killed", "completed"]


def test_runs_are_found_by_what_a_person_types(storage: Storage) -> None:
    ids = ["20260101-000000-aaaa", "20260101-000001-bbbb", "20260202-000000-cccc"]
    with pytest.raises(ConfigError, match="no such run"):
        find_record(storage, "latest")
    for run_id in reversed(ids):
        a_record(run_id).save(storage)
    storage.write_json("runs/20260303-000000-dddd/inputs.json", {})  # killed before its record was written
    assert list_run_ids(storage) == ids
    assert [record.run_id for record in list_records(storage)] == ids
    typed = {"latest": ids[2], ids[0]: ids[0], "202602": ids[2], "bbbb": ids[1], "01-bb": ids[1], "0202-0": ids[2]}
    for text, run_id in typed.items():
        assert find_record(storage, text).run_id == run_id
    for text in ("202601", "0101-00"):
        with pytest.raises(ConfigError, match=rf"2 runs match \({ids[0]}, {ids[1]}\)"):
            find_record(storage, text)
    with pytest.raises(ConfigError, match="run 'zzzz': no such run"):
        find_record(storage, "zzzz")


@pytest.mark.parametrize("name", ["", "..", "../runs/x", "/", "x\x00", "\x1b[31m", "*", "runs/20260101-000000-aaaa"])
def test_no_name_reaches_other_folders_or_the_terminal(storage: Storage, name: str) -> None:
    storage.write_json("secret/run.json", {})
    for run_id in ("20260101-000000-aaaa", "20260101-000000-bbbb"):
        a_record(run_id).save(storage)
    with pytest.raises(ConfigError, match=r"no such run|2 runs match") as caught:
        find_record(storage, name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"run_id": 1}', b"\xff"])
def test_a_damaged_record_is_named(storage: Storage, data: bytes) -> None:
    storage.write_bytes("runs/20260101-000000-aaaa/run.json", data)
    with pytest.raises(DataError, match=r"runs/20260101-000000-aaaa/run\.json is no record of a run"):
        find_record(storage, "latest")


def test_a_forced_run_gets_a_generation_of_its_own(storage: Storage) -> None:
    assert next_generation(storage) == 1
    a_record("20260101-000000-aaaa", generations={"select": 3, "mix": 1}).save(storage)
    assert next_generation(storage) == 4


def test_stages_between_two_are_both_included() -> None:
    assert stages_between(None, None) == RUN_STAGES
    assert stages_between("mix", "vocabulary") == ("mix", "vocabulary")
    assert stages_between("export", None) == ("export",)
    assert stages_between(None, "ingest") == ("ingest",)
