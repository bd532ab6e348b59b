"""What the dashboard shows of a training while it lasts, on a real server; a dashboard that fails costs nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterTaskRunId
from prefect.context import TaskRunContext

from flows import artifacts, launch
from flows.artifacts import TRAINING_SECONDS, _Training, show_training
from tasks.errors import StorageError
from tasks.journal import Journal, Run
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.storage import Storage
from tasks.train.live import LiveTraining
from tests.tasks.train.test_live import RUN, Ranks, sample, step

LIMIT_SECONDS = 60.0


@pytest.fixture
def run(root: str, recipe_values: dict[str, Any]) -> Run:
    run = Run(root=root, run_id=RUN, recipe=Recipe.parse(recipe_values))
    run.keep(Journal(run.storage, RunRecord(run_id=RUN, created="2026-01-01", recipe=recipe_values)))
    return run


class Sent(_Training):
    """Notes pages in the place of sending them; the thread sleeps."""

    def __init__(self, live: LiveTraining) -> None:
        self.pages: list[str] = []
        super().__init__(live)

    def _send(self, key: str, description: str, markdown: str) -> None:
        self.pages.append(key)


@pytest.fixture
def sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    monkeypatch.setattr(artifacts, "LOOK_SECONDS", 1e6)
    shown = Sent(LiveTraining(run.storage, run.journal.record, "main"))
    yield shown
    shown.close()
    assert not shown.thread.is_alive()


def test_pages_are_sent_once_a_minute_and_after_events(run: Run, sent: Sent) -> None:
    now = time.monotonic()
    sent.look(now)
    assert sent.pages == []  # nothing is trained yet
    ranks = Ranks(run.storage, "a1")
    ranks.write({"event": "begin", "message": "fresh start"})
    sent.look(now)
    assert sent.pages == []  # there is nothing to draw
    for seconds, line, pages in (
        (0, step(1), 0),
        (TRAINING_SECONDS / 2, step(2), 0),
        (TRAINING_SECONDS, step(3), 1),
        (TRAINING_SECONDS + 10, step(4), 1),
        (TRAINING_SECONDS + 20, {"event": "save failed", "message": "503"}, 2),
        (2 * TRAINING_SECONDS + 10, step(5), 2),
        (2 * TRAINING_SECONDS + 20, step(6), 3),
    ):
        ranks.write(line)
        sent.look(now + seconds)
        assert len(sent.pages) == pages, seconds
    sent.look(now + 9 * TRAINING_SECONDS)
    assert len(sent.pages) == 3  # nothing new
    ranks.write(step(7))
    sent.look(now + 2 * TRAINING_SECONDS + 30, is_last=True)
    assert sent.pages == ["loss"] * 4


def test_a_failing_store_costs_a_look(run: Run, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise StorageError("503")

    Ranks(run.storage, "a1").write(step(1))
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read_bytes", refuse)
        artifacts._forgive(lambda: sent.look(1e6))
        assert sent.pages == []
    artifacts._forgive(lambda: sent.look(1e6))
    assert sent.pages == ["loss"]


def pages_of(task_run_id: Any) -> dict[str, tuple[Any, str]]:
    """Key -> (id, text) of the pages of a task run; each has one row."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(task_run_id=ArtifactFilterTaskRunId(any_=[task_run_id]))
        )
    assert len({artifact.key for artifact in found}) == len(found)
    return {str(artifact.key): (artifact.id, str(artifact.data)) for artifact in found}


def wait_for(task_run_id: Any, is_there: Callable[[dict[str, tuple[Any, str]]], bool]) -> dict[str, tuple[Any, str]]:
    until = time.monotonic() + LIMIT_SECONDS
    while not is_there(pages := pages_of(task_run_id)):
        assert time.monotonic() < until, pages
        time.sleep(0.1)
    return pages


def test_curve_and_texts_are_shown_while_the_training_goes_on(
    run: Run, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "LOOK_SECONDS", 0.05)
    ended: list[Any] = []

    @task
    def train() -> None:
        context = TaskRunContext.get()
        assert context is not None
        own = context.task_run.id
        ended.append(own)
        with show_training(run, "main"):
            ranks = Ranks(run.storage, "a1")
            ranks.write({"event": "begin", "message": "fresh start"}, step(1), step(2), sample(2, "it wrote this"))
            first = wait_for(own, lambda pages: set(pages) == {"loss", "writing"})
            assert "data:image/svg+xml" in first["loss"][1]
            assert "it wrote this" in first["writing"][1]
            ranks.write(step(3, action="skip"), {"event": "save failed", "message": "503", "in_a_row": 1})
            second = wait_for(own, lambda pages: "save failed: 503" in pages["loss"][1])
            assert "300 tokens: step 3: skipped" in second["loss"][1]
            assert second["loss"][0] == first["loss"][0]  # the same row of Prefect's database

            with get_client(sync_client=True) as client:
                client.delete_artifact(second["loss"][0])  # as if Prefect had forgotten it
            ranks.write(step(4), {"event": "save failed", "message": "504", "in_a_row": 2})
            wait_for(own, lambda pages: "loss" in pages)
            ranks.write(step(5, action="skip"))

    @flow
    def watched() -> None:
        train()

    with launch.connected(server_url):
        watched()
        page = pages_of(ended[0])["loss"][1]
    assert "save failed: 504" in page
    assert "500 tokens: step 5: skipped" in page  # the last look is at the end


def test_outside_of_a_run_nothing_is_followed(run: Run) -> None:
    before = threading.active_count()
    with show_training(run, "main"):
        assert threading.active_count() == before
