"""A run while it is executed: what flows hand to stages, the journal of events, the signal to stop.

One process executes one run at a time. `Run` is plain values and travels as a flow parameter; the live things (the
record, the event segments, listeners) belong to the process. Events are numbered segments, events/<attempt>-<n>.jsonl,
closed every SEGMENT_SECONDS and when a stage ends, since a store cannot append.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from pydantic import BaseModel, PrivateAttr

from tasks.dataset import Workspace
from tasks.errors import Cancelled
from tasks.manifest import Manifest
from tasks.recipe import Recipe
from tasks.runs import DatasetLine, RunRecord, RunState, now, stages_between
from tasks.storage import Storage

logger = logging.getLogger(__name__)

SEGMENT_SECONDS = 30.0

Event = dict[str, Any]
STOP = threading.Event()  # set by whoever learns that the run of this process is to end: the state poll, Ctrl-C
LISTENERS: list[Callable[[Event], None]] = []  # the command's progress display; called from the thread that reports


class PlanLine(BaseModel, frozen=True):
    """What a dry run says of one dataset: `cached (run X)`, `run (cause)` or `if changed`."""

    label: str
    stage: str
    verdict: str
    detail: str = ""
    reference: str | None = None

    def __str__(self) -> str:
        return f"{self.verdict} ({self.detail})" if self.detail else self.verdict


class Run(BaseModel, frozen=True):
    """What a stage needs to know of the run that it belongs to."""

    root: str
    run_id: str
    recipe: Recipe
    from_stage: str | None = None
    until_stage: str | None = None
    generations: dict[str, int] = {}
    workers: int = -1
    is_dry: bool = False
    _plan: list[PlanLine] = PrivateAttr(default_factory=list)
    _journals: "list[Journal]" = PrivateAttr(default_factory=list)  # one, while it is executed

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """Prefect asks each subflow for it; the recipe's whole schema would take 0.15 s every time."""
        return {"type": "object", "title": cls.__name__}

    @property
    def storage(self) -> Storage:
        """The storage root."""
        return Storage(self.root)

    @property
    def plan(self) -> list[PlanLine]:
        """What a dry run found, in the order of the graph."""
        return self._plan

    @property
    def journal(self) -> "Journal":
        """The journal of the process that executes the run."""
        if not self.is_executed:
            raise RuntimeError("this run is not being executed: it has no journal")
        return self._journals[-1]

    @property
    def is_executed(self) -> bool:
        """Whether this process executes the run; False for a plan."""
        return bool(self._journals)

    def keep(self, journal: "Journal") -> None:
        """From now on stages write to this journal."""
        self._journals.append(journal)

    def as_dry(self) -> "Run":
        """The same run, only looking, with a plan of its own."""
        dry = Run(**{name: getattr(self, name) for name in type(self).model_fields} | {"is_dry": True})
        dry._journals.extend(self._journals)
        return dry

    def wants(self, stage: str) -> bool:
        """Whether the stage lies before or at `until_stage`."""
        return stage in stages_between(None, self.until_stage)

    def may_compute(self, stage: str) -> bool:
        """Whether the stage lies at or after `from_stage`: those before are only looked up."""
        return stage in stages_between(self.from_stage, None)

    def workspace(self, stage: str) -> Workspace:
        """Where the stage computes and reports; dry in a dry run and before `from_stage`."""
        into = Workspace(self.storage, self.run_id, generations=self.generations)
        if self.is_dry or not self.may_compute(stage):
            return replace(into, dry=True)
        journal = self.journal
        return replace(into, workers=self.workers, stop=STOP, on_progress=journal.progress, on_message=journal.message)


class Journal:
    """Writes the record and the events of one attempt, and tells the listeners. Used from several threads."""

    def __init__(self, storage: Storage, record: RunRecord, flow_run_id: str | None = None) -> None:
        self.storage, self.record = storage, record
        self.attempt = record.begin_attempt(flow_run_id)
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._last_message = ""
        self._segment, self._opened = 1, time.monotonic()
        record.save(storage)
        self.event("run started", run_id=record.run_id)

    def event(self, kind: str, **facts: Any) -> None:
        """Note that something happened."""
        event = {"time": now(), "kind": kind, "attempt": self.attempt.number} | facts
        with self._lock:
            self._events.append(event)
            if time.monotonic() - self._opened >= SEGMENT_SECONDS:
                self._close_segment()
        for listener in LISTENERS:
            listener(event)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Parts finished: for the listeners only, receipts are the record."""
        for listener in LISTENERS:
            listener({"time": now(), "kind": "progress", "stage": stage, "done": done, "total": total})

    def message(self, message: str) -> None:
        """What a watcher should know at once: whom a stage waits for, where training went on; not twice in a row."""
        if message != self._last_message:
            self._last_message = message
            logger.info(message)
            self.event("message", message=message)

    def stage_started(self, label: str, stage: str) -> None:
        """A dataset is looked for, and computed where it is missing."""
        self.event("stage started", label=label, stage=stage)

    def stage_finished(self, line: DatasetLine, manifest: Manifest) -> None:
        """A dataset is there."""
        self.record.set_dataset(line)
        self.event("stage finished", **line.model_dump(exclude={"attempt"}), totals=manifest.totals)
        self.flush()

    def stage_failed(self, label: str, stage: str, error: BaseException) -> None:
        """A stage raised; a retry may follow."""
        self._last_message = ""  # the next try may begin with the same words
        kind = "stage cancelled" if isinstance(error, Cancelled) else "stage failed"
        self.event(kind, label=label, stage=stage, error=f"{type(error).__name__}: {error}")
        self.flush()

    def end(self, state: RunState, message: str = "") -> None:
        """The attempt is over."""
        self.attempt.ended, self.attempt.state, self.attempt.message = now(), state, message
        self.event("run ended", state=state, message=message)
        self.flush()

    def flush(self) -> None:
        """Close the segment and write the record."""
        with self._lock:
            self._close_segment()
            self.record.save(self.storage)

    def _close_segment(self) -> None:
        if self._events:
            key = f"runs/{self.record.run_id}/events/{self.attempt.number}-{self._segment:05d}.jsonl"
            self.storage.write_bytes(key, b"".join(orjson.dumps(event) + b"\n" for event in self._events))
            self._segment += 1
        self._events, self._opened = [], time.monotonic()


def read_events(storage: Storage, run_id: str) -> list[Event]:
    """All events of a run, in the order of attempts and segments."""
    infos = storage.list_files(f"runs/{run_id}/events")
    ordered = sorted(infos, key=lambda info: [int(n) for n in info.key.rpartition("/")[2].split(".")[0].split("-")])
    return [orjson.loads(line) for info in ordered for line in storage.read_bytes(info.key).splitlines()]
