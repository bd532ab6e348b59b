"""What the dashboard shows of a run beside its states: progress, the funnel, samples, the loss curve, the graph.

A failed update never fails a stage, and no artifact is updated more often than every UPDATE_SECONDS (Prefect's server
on SQLite locks under more). Pictures are data: URLs of at most PICTURE_BYTES; tasks/report escapes text of documents.
"""

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from prefect.exceptions import PrefectException

from tasks.journal import LISTENERS, Event, Run
from tasks.report import dashboard_pages

logger = logging.getLogger(__name__)

UPDATE_SECONDS = 2.0
PICTURE_BYTES = 200_000  # larger data: URLs make the dashboard slow


@contextmanager
def show_progress(stage: str) -> Iterator[None]:
    """While it lasts, the stage's finished parts appear as a progress artifact. None for a stage found cached."""
    if TaskRunContext.get() is None:  # under torchrun there is no dashboard to show it in
        yield
        return
    shown = _Progress(stage)
    LISTENERS.append(shown.listen)
    try:
        yield
    finally:
        LISTENERS.remove(shown.listen)
        shown.close()


class _Progress:
    """One progress artifact, made at the first report of unfinished work."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.context = contextvars.copy_context()  # reports may come from a helper thread, outside the task's context
        self.artifact_id: Any = None
        self.percent = 0.0
        self.updated = 0.0
        self.lock = threading.Lock()

    def listen(self, event: Event) -> None:
        if event["kind"] != "progress" or event["stage"].split(".")[0] != self.stage or not event["total"]:
            return
        self.percent = 100.0 * event["done"] / event["total"]
        due = time.monotonic() - self.updated >= UPDATE_SECONDS
        if due and self.lock.acquire(blocking=False):
            try:
                self.updated = time.monotonic()
                self._send(f"{event['stage']}: {event['done']} of {event['total']}")
            finally:
                self.lock.release()

    def close(self) -> None:
        if self.artifact_id is not None:
            self._send(f"{self.stage}: ended")

    def _send(self, description: str) -> None:
        def send() -> None:
            if self.artifact_id is None:
                key = f"progress-{self.stage}"
                self.artifact_id = create_progress_artifact(self.percent, key=key, description=description)
            else:
                update_progress_artifact(self.artifact_id, progress=self.percent, description=description)

        _forgive(lambda: self.context.run(send))


def show_markdown(key: str, text: str, description: str = "") -> None:
    """A page of the run: table, Mermaid graph or picture."""
    clean = re.sub("[^a-z0-9]+", "-", key.lower()).strip("-")
    _forgive(lambda: create_markdown_artifact(text, key=clean, description=description))


def show_results(run: Run) -> None:
    """The pages of a finished or failed run: funnel, what was dropped and why, loss curve, graph."""
    for key, description, markdown in dashboard_pages(run.storage, run.journal.record, picture_bytes=PICTURE_BYTES):
        show_markdown(key, markdown, description)


def _forgive(send: Callable[[], object]) -> None:
    """The dashboard may be slow or gone; the work goes on."""
    try:
        send()
    except (httpx.HTTPError, PrefectException, TimeoutError) as error:
        logger.warning("the dashboard was not updated: %s", error)
