"""What the dashboard shows of a run beside its states: progress, the funnel, samples, the loss curve, the graph.

A failed update never fails a stage, and no artifact is updated more often than every UPDATE_SECONDS (Prefect's server
on SQLite locks under more). What is shown while a stage works is one row of its database, changed in place. Pictures
are data: URLs of at most PICTURE_BYTES; tasks/report escapes text of documents.
"""

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.context import TaskRunContext
from prefect.exceptions import PrefectException, PrefectHTTPStatusError

from tasks.errors import PipelineError
from tasks.journal import LISTENERS, Event, Run
from tasks.report import dashboard_pages, live_pages
from tasks.train.live import LiveTraining

logger = logging.getLogger(__name__)

UPDATE_SECONDS = 2.0
LOOK_SECONDS = 10.0  # between two looks at the live view of a training, which is published every 30
TRAINING_SECONDS = 60.0  # between two updates of its pages where nothing happened but steps
CLOSE_SECONDS = 10.0
# ValueError: what was read of a training is damaged
FORGIVEN = (httpx.HTTPError, PrefectException, PipelineError, OSError, ValueError)
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


@contextmanager
def show_training(run: Run, phase: str) -> Iterator[None]:
    """While it lasts, the loss curve and what the model wrote are shown as they come. None where nothing is trained."""
    if TaskRunContext.get() is None or not run.is_executed:
        yield
        return
    with ExitStack() as stack:
        _forgive(lambda: stack.callback(_Training(LiveTraining(run.storage, run.journal.record, phase)).close))
        yield


class _Training:
    """Loss curve and texts of a phase, read and sent by a thread of its own: training never waits for the dashboard."""

    def __init__(self, live: LiveTraining) -> None:
        self.live = live
        self.artifacts: dict[str, Any] = {}  # ids by key
        self.is_new, self.sent = False, 0.0
        self.over = threading.Event()
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._follow,), name="training-view", daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        while not self.over.wait(LOOK_SECONDS):
            _forgive(lambda: self.look(time.monotonic()))
        _forgive(lambda: self.look(time.monotonic(), is_last=True))

    def look(self, now: float, *, is_last: bool = False) -> None:
        """Read what is new; send it after an event, once a minute without one, and at the end."""
        lines = self.live.read()
        self.is_new |= bool(lines)
        is_due = is_last or now - self.sent >= TRAINING_SECONDS or any("event" in line for line in lines)
        if self.is_new and is_due:
            self.is_new, self.sent = False, now
            for key, description, markdown in live_pages(self.live, picture_bytes=PICTURE_BYTES):
                self._send(key, description, markdown)

    def _send(self, key: str, description: str, markdown: str) -> None:
        """One row per run and page; one that Prefect has forgotten is made again."""
        if known := self.artifacts.get(key):
            with get_client(sync_client=True) as client:
                try:  # not by its update_artifact, which stores the page in an event too
                    client.request("PATCH", "/artifacts/{id}", path_params={"id": known}, json={"data": markdown})
                except PrefectHTTPStatusError as error:
                    if error.response.status_code != httpx.codes.NOT_FOUND:
                        raise
                    known = None
        self.artifacts[key] = known or create_markdown_artifact(markdown, key=key, description=description)

    def close(self) -> None:
        """Show how it ended; a dashboard that hangs is not waited for."""
        self.over.set()
        self.thread.join(CLOSE_SECONDS)


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
    except FORGIVEN as error:
        logger.warning("the dashboard was not updated: %s", error)
