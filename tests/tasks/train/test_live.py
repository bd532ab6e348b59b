"""A training while it lasts: its curve and texts after each look, whatever attempt trained it."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from model.job import live_segment
from tasks.charts import MAX_POINTS
from tasks.dataset import Workspace
from tasks.errors import Cancelled
from tasks.report import dashboard_pages, live_pages, write_report
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage
from tasks.train.live import LiveTraining, read_curves
from tasks.train.view import SHOWN_SAMPLES, marks_of
from tests.tasks.test_train import LENGTH, ROWS, STEPS, make_pack, make_run, train

RUN = "20260104-000000-dddd"


@pytest.fixture
def record() -> RunRecord:
    return RunRecord(run_id=RUN, created="2026-01-01", recipe={"name": "x"})


def step(number: int, **facts: Any) -> dict[str, Any]:
    return {"step": number, "phase": "main", "tokens": number * 100, "loss": 9.0 - number, "action": "apply"} | facts


def sample(number: int, text: str) -> dict[str, Any]:
    return {"event": "sample", "phase": "main", "step": number, "source": "web", "prompt": "so", "text": text}


@pytest.fixture
def storage(workspace: Workspace) -> Storage:
    return workspace.storage


class Ranks:
    """What the ranks write while they train: a note as they begin, then segments."""

    def __init__(self, storage: Storage, attempt: str, run_id: str = RUN) -> None:
        self.storage, self.attempt, self.number = storage, attempt, 0
        self.prefix = f"runs/{run_id}/live/train-main"
        note = {"phase": "main", "reference": "train/x", "inputs": [], "attempt": attempt}
        storage.write_json(f"runs/{run_id}/train/main.json", note)

    def write(self, *lines: dict[str, Any]) -> None:
        self.number += 1
        key = live_segment(self.prefix, self.attempt, self.number)
        self.storage.write_bytes(key, "\n".join(map(json.dumps, lines)).encode())


def test_lines_are_read_once_and_what_happened_is_marked(storage: Storage, record: RunRecord) -> None:
    live = LiveTraining(storage, record, "main")
    assert live.read() == []  # nothing is trained yet
    ranks = Ranks(storage, "a1")
    ranks.write({"event": "begin", "message": "fresh start"}, step(1), step(2))
    ranks.write(step(3, action="skip", loss=None), step(4))
    assert len(live.read()) == 5
    assert live.read() == []
    ranks.write({"event": "save failed", "message": "503 " * 100, "in_a_row": 1}, step(5, action="skip"))
    back = {"event": "roll back", "step": 5, "to_step": 2, "bad_steps": [3, 5], "attempt": 1}
    ranks.write(back, step(3, loss=5.0), {"event": "level shift", "step": 3, "to_step": None}, step(4))
    ranks.write({"event": "halted", "step": 4, "message": "why"})
    assert [line.get("event") for line in live.read()] == [
        "save failed", None, "roll back", None, "level shift", None, "halted",
    ]  # fmt: skip
    [curve] = live.curves
    assert curve.points == [(100, 8), (200, 7), (300, 5), (400, 5)]
    told = [(mark.x, mark.label[:16]) for mark in marks_of(live.curves)]
    assert told == [
        (200, "step 5: roll bac"),
        (300, "step 3: level sh"),
        (400, "save failed: 503"),
        (400, "halted: why"),
    ]
    [(key, _, page)] = live_pages(live, picture_bytes=200_000)
    assert key == "loss"
    assert "data:image/svg+xml" in page
    assert "- 200 tokens: step 5: roll back to step 2\n- 300 tokens: step 3: level shift\n" in page


def test_a_long_training_keeps_few_points_and_its_spikes(storage: Storage, record: RunRecord) -> None:
    live = LiveTraining(storage, record, "main")
    ranks = Ranks(storage, "a1")
    for start in range(0, 6000, 1000):
        ranks.write(*(step(n, loss=99.0 if n == 1234 else 2.0 + n % 3) for n in range(start + 1, start + 1001)))
    live.read()
    [curve] = live.curves
    assert len(curve.points) <= 4 * MAX_POINTS
    assert (123_400, 99.0) in curve.points
    assert curve.points[-1][0] == curve.tokens == 600_000


def test_texts_are_the_latest_and_without_personal_data(storage: Storage, record: RunRecord) -> None:
    live = LiveTraining(storage, record, "main")
    Ranks(storage, "a1").write(*(sample(n, f"mail ann@example.org ``` {n}") for n in range(SHOWN_SAMPLES + 2)))
    live.read()
    [(key, _, page)] = live_pages(live, picture_bytes=200_000)
    assert key == "writing"
    assert "ann@example.org" not in page
    assert page.count("**phase main, step") == SHOWN_SAMPLES
    assert f"step {SHOWN_SAMPLES + 1}**" in page


def test_an_attempt_that_resumes_goes_on_with_the_curve_of_the_checkpoint(
    workspace: Workspace, record: RunRecord
) -> None:
    packs = [make_pack(workspace, source) for source in ("web", "code")]
    into, stop = replace(workspace, run_id=RUN), threading.Event()
    first = LiveTraining(workspace.storage, record, "main")
    with pytest.raises(Cancelled):
        train(packs, replace(into, stop=stop, on_progress=lambda *_: stop.set()))
    first.read()
    [stopped] = read_curves(workspace.storage, record)  # of a phase that is not finished
    assert stopped.points == first.curves[0].points
    assert "loss" in {key for key, _, _ in dashboard_pages(workspace.storage, record, picture_bytes=200_000)}

    again = LiveTraining(workspace.storage, record, "main")
    assert again.read() == []  # the attempt that was stopped is over
    trained = train(packs, into, make_run())
    again.read()
    line = DatasetLine(
        label="train main", stage="train", reference=trained.reference, digest=trained.digest, code="", made_by=RUN,
        cached=False, attempt=1, seconds=0.0,
    )  # fmt: skip
    record.set_dataset(line)
    faults = {"event": "save failed", "tokens": 100, "message": "503"}, {"event": "halted", "message": "why"}
    workspace.storage.write_bytes(
        live_segment(f"runs/{RUN}/live/train-main", "a9", 1), "\n".join(map(json.dumps, (step(1), *faults))).encode()
    )
    [curve] = again.curves
    assert read_curves(workspace.storage, record, but="a9")[0].marks == []
    [finished] = read_curves(workspace.storage, record)
    assert [(mark.x, mark.label) for mark in finished.marks] == [
        (100, "save failed: 503"), (STEPS * ROWS * LENGTH, "halted: why"),
    ]  # fmt: skip
    pages = {key: page for key, _, page in dashboard_pages(workspace.storage, record, picture_bytes=200_000)}
    assert "- 100 tokens: save failed: 503" in pages["loss"]
    assert "<title>save failed: 503" in workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert curve.points == finished.points
    assert [tokens for tokens, _ in curve.points] == [n * ROWS * LENGTH for n in range(1, STEPS + 1)]
    assert 0 < len(stopped.points) < STEPS
