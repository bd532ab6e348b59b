"""The journal of a run, and what a stage learns of its run."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import journal as journal_module
from tasks.errors import Cancelled
from tasks.journal import LISTENERS, Event, Journal, PlanLine, Run, read_events
from tasks.recipe import Recipe
from tasks.runs import RunRecord, load_record

RUN_ID = "20260101-000000-aaaa"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    recipe = Recipe.parse(
        {
            "name": "x",
            "ingest": {"sources": {"web": {"base": str(tmp_path)}}},
            "vocabulary": {"size": 300},
            "model": {"size": "tiny"},
            "train": {
                "phases": [
                    {
                        "name": "main", "tokens": 64, "weights": {"web": 1}, "sequence_length": 8, "batch": 1,
                        "schedule": {"lr": 1e-3},
                    }
                ]
            },
        }
    )  # fmt: skip
    return Run(root=str(tmp_path / "lake"), run_id=RUN_ID, recipe=recipe, from_stage="select", until_stage="mix")


@pytest.fixture
def journal(run: Run) -> Journal:
    record = RunRecord(run_id=RUN_ID, created="2026-01-01", recipe={"name": "x"})
    return Journal(run.storage, record, "flow-run")


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    LISTENERS.append(events.append)
    yield events
    LISTENERS.remove(events.append)


def test_events_lie_in_numbered_segments_and_are_read_in_order(run: Run, journal: Journal) -> None:
    for number in range(25):
        journal.event("noted", number=number)
        journal.flush()
    journal.flush()  # nothing new: no empty segment
    journal.end("completed")
    again = Journal(run.storage, load_record(run.storage, RUN_ID))
    again.end("failed", "why")
    keys = [info.key for info in run.storage.list_files(f"runs/{RUN_ID}/events")]
    assert keys[:2] == [f"runs/{RUN_ID}/events/1-0000{n}.jsonl" for n in (1, 2)]
    assert len(keys) == 27
    events = read_events(run.storage, RUN_ID)
    assert [event["number"] for event in events if event["kind"] == "noted"] == list(range(25))
    assert [(e["kind"], e["attempt"]) for e in events if e["kind"].startswith("run")] == [
        ("run started", 1), ("run ended", 1), ("run started", 2), ("run ended", 2),
    ]  # fmt: skip
    record = load_record(run.storage, RUN_ID)
    assert [(attempt.state, attempt.message) for attempt in record.attempts] == [("completed", ""), ("failed", "why")]
    assert all(attempt.ended for attempt in record.attempts)


def test_a_segment_is_closed_when_it_is_old(journal: Journal, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    journal.event("first")
    assert not run.storage.list_files(f"runs/{RUN_ID}/events")
    monkeypatch.setattr(journal_module, "SEGMENT_SECONDS", 0.0)
    journal.event("second")
    assert [event["kind"] for event in read_events(run.storage, RUN_ID)] == ["run started", "first", "second"]


def test_threads_lose_no_event(journal: Journal, run: Run) -> None:
    threads = [
        threading.Thread(target=lambda: [journal.event("noted") or journal.flush() for _ in range(20)])  # type: ignore[func-returns-value]
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(event["kind"] == "noted" for event in read_events(run.storage, RUN_ID)) == 80


def test_listeners_hear_events_and_progress_which_is_not_stored(journal: Journal, heard: list[Event], run: Run) -> None:
    journal.progress("select", 3, 9)
    for _ in range(3):  # a stage that waits looks every two seconds
        journal.message("waiting for the lease")
    journal.stage_failed("select", "select", Cancelled("stop"))
    journal.stage_failed("mix", "mix", ValueError("no"))
    journal.message("waiting for the lease")
    kinds = ["progress", "message", "stage cancelled", "stage failed", "message"]
    assert [event["kind"] for event in heard] == kinds
    assert (heard[0]["done"], heard[0]["total"]) == (3, 9)
    assert heard[3]["error"] == "ValueError: no"
    assert "progress" not in [event["kind"] for event in read_events(run.storage, RUN_ID)]


def test_a_run_says_what_it_wants_and_may_compute(run: Run) -> None:
    assert [stage for stage in ("ingest", "select", "mix", "vocabulary") if run.wants(stage)] == [
        "ingest", "select", "mix",
    ]  # fmt: skip
    assert [stage for stage in ("ingest", "signals", "select", "export") if run.may_compute(stage)] == [
        "select", "export",
    ]  # fmt: skip


def test_workspaces_are_dry_before_from_and_in_a_plan(run: Run, journal: Journal) -> None:
    with pytest.raises(RuntimeError, match="no journal"):
        run.workspace("select")
    assert not run.is_executed
    run.keep(journal)
    assert run.is_executed
    assert run.workspace("ingest").dry
    into = run.workspace("select")
    assert not into.dry
    assert into.stop is journal_module.STOP
    assert into.on_progress == journal.progress
    dry = run.as_dry()
    assert dry.is_executed
    assert dry.workspace("select").dry
    dry.plan.append(PlanLine(label="select", stage="select", verdict="cached"))
    assert run.plan == []
    assert run.model_dump() == dry.model_dump() | {"is_dry": False}


def test_plan_lines_read_as_in_the_manual() -> None:
    assert str(PlanLine(label="x", stage="x", verdict="cached", detail="run 7")) == "cached (run 7)"
    assert str(PlanLine(label="x", stage="x", verdict="if changed")) == "if changed"
