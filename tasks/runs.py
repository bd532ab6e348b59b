"""The record of a run, runs/<run-id>/run.json: what was asked, every attempt, the datasets that it led to.

It is enough to show and to repeat a run when Prefect has forgotten it: the resolved recipe and the parameters without
the root, so that a root can be moved. One line per attempt, one per dataset; the latest attempt's line replaces an
earlier one of the same label. Only the process that executes the run writes it.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from tasks.errors import ConfigError, DataError
from tasks.storage import Storage

FORMAT_VERSION = 1
RunStage = Literal[
    "ingest", "dedup-exact", "classifiers", "signals", "select", "dedup-near", "redact", "decontaminate", "mix",
    "vocabulary", "pack", "import", "fork", "train", "evaluate", "export",
]  # fmt: skip
RUN_STAGES = get_args(RunStage)
LATEST = "latest"

RunState = Literal["running", "completed", "failed", "cancelled", "killed"]


class Attempt(BaseModel):
    """One execution of the run; `ended` is missing while it runs, and for good when it was killed."""

    number: int
    started: str
    host: str
    flow_run_id: str | None
    pid: int = 0
    ended: str | None = None
    state: RunState = "running"
    message: str = ""

    @property
    def is_killed(self) -> bool:
        """Whether it still says that it runs, though its process on this machine is gone."""
        return self.state == "running" and self.host == socket.gethostname() and not Path(f"/proc/{self.pid}").exists()


class DatasetLine(BaseModel):
    """One dataset that the run needed: where it is, who made it, what it took this run."""

    label: str  # "select", "pack web train 256", "train main"
    stage: str
    reference: str
    digest: str
    code: str
    made_by: str
    cached: bool
    attempt: int
    seconds: float


class RunRecord(BaseModel):
    """Contents of run.json."""

    format_version: int = FORMAT_VERSION
    run_id: str
    created: str
    recipe: dict[str, Any]
    from_stage: str | None = None
    until_stage: str | None = None
    force: bool = False
    generations: dict[str, int] = {}
    attempts: list[Attempt] = []
    datasets: list[DatasetLine] = []

    @property
    def state(self) -> RunState:
        """State of the latest attempt."""
        if not self.attempts:
            return "running"
        return "killed" if self.attempts[-1].is_killed else self.attempts[-1].state

    def datasets_of(self, stage: str) -> list[DatasetLine]:
        """The datasets of one stage, in order."""
        return [line for line in self.datasets if line.stage == stage]

    def begin_attempt(self, flow_run_id: str | None) -> Attempt:
        """Append a line for an attempt that starts now; an earlier one that never ended was killed."""
        for earlier in self.attempts:
            if earlier.state == "running":
                earlier.state = "killed"
        number = len(self.attempts) + 1
        attempt = Attempt(
            number=number, started=now(), host=socket.gethostname(), flow_run_id=flow_run_id, pid=os.getpid()
        )
        self.attempts.append(attempt)
        return attempt

    def set_dataset(self, line: DatasetLine) -> None:
        """Add a dataset, in the place of the earlier line of the same label."""
        for index, old in enumerate(self.datasets):
            if old.label == line.label:
                self.datasets[index] = line
                return
        self.datasets.append(line)

    def save(self, storage: Storage) -> None:
        """Write run.json whole."""
        storage.write_json(record_key(self.run_id), self.model_dump(mode="json"))


def new_run_id() -> str:
    """Time and four hex digits: sorts by start, readable aloud."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def now() -> str:
    """UTC, ISO 8601, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def record_key(run_id: str) -> str:
    """Key of a run's record in the storage."""
    return f"runs/{run_id}/run.json"


def load_record(storage: Storage, run_id: str) -> RunRecord:
    """The record of a run. Raises ConfigError when there is none, DataError when it is damaged."""
    try:
        return RunRecord.model_validate(storage.read_json(record_key(run_id)))
    except FileNotFoundError as error:
        raise _no_such_run(storage, run_id) from error
    except ValueError as error:
        raise DataError(f"{record_key(run_id)} is no record of a run: {error}") from error


def find_record(storage: Storage, text: str, besides: str | None = None) -> RunRecord:
    """The run meant by a full id, a part of one, or `latest`; never `besides`. Raises ConfigError."""
    run_ids = [run_id for run_id in list_run_ids(storage) if run_id != besides]
    if text == LATEST and run_ids:
        return load_record(storage, run_ids[-1])
    matching = [text] if text in run_ids else [run_id for run_id in run_ids if text in run_id]
    if not matching:
        raise _no_such_run(storage, text)
    if len(matching) > 1:
        raise ConfigError(f"run {text!r}: {len(matching)} runs match ({', '.join(matching[:5])}); give more of the id")
    return load_record(storage, matching[0])


def _no_such_run(storage: Storage, name: str) -> ConfigError:
    return ConfigError(f"run {name!r}: no such run in {storage.url}; see `basemill runs`")


def list_run_ids(storage: Storage) -> list[str]:
    """Ids of all runs in this root, oldest first."""
    return [info.key.split("/")[1] for info in storage.list_files("runs") if info.key.endswith("/run.json")]


def list_records(storage: Storage) -> Iterator[RunRecord]:
    """All runs in this root, oldest first."""
    return (load_record(storage, run_id) for run_id in list_run_ids(storage))


def next_generation(storage: Storage) -> int:
    """A generation number that no forced run of this root has used."""
    used = (number for record in list_records(storage) for number in record.generations.values())
    return 1 + max(used, default=0)


def stages_between(from_stage: str | None, until_stage: str | None) -> tuple[str, ...]:
    """The stages from one to another, both included. Raises ConfigError on an unknown name or a wrong order."""
    first, last = _stage_index(from_stage, 0), _stage_index(until_stage, len(RUN_STAGES) - 1)
    if first > last:
        raise ConfigError(f"--from {from_stage} comes after --until {until_stage}")
    return RUN_STAGES[first : last + 1]


def _stage_index(stage: str | None, default: int) -> int:
    if stage is None:
        return default
    if stage not in RUN_STAGES:
        raise ConfigError(f"stage {stage!r} does not exist; stages: {', '.join(RUN_STAGES)}")
    return RUN_STAGES.index(stage)
