"""Records of runs: written, found by a piece of their id, stages between two."""

import re
from pathlib import Path

import pytest

from tasks.errors import ConfigError
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
