"""What report and dashboard show of a training: its loss with what happened on the way, and what the model wrote."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import orjson
import pyarrow as pa

from tasks.charts import COLOURS, Mark, Series, line_chart
from tasks.manifest import load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage

ROLL_BACK = "roll back"
FAULTS = ("save failed", "halted")
MESSAGE_CHARS = 200
DECISION_COLOURS = {ROLL_BACK: COLOURS[1], "level shift": COLOURS[3]}
SKIP_COLOUR, PHASE_COLOUR, FAULT_COLOUR = COLOURS[4], COLOURS[7], COLOURS[6]
SHOWN_SAMPLES = 8  # the latest


@dataclass
class Curve:
    """The loss of a phase (tokens of the phase, nats per token), and what happened at which of its tokens."""

    phase: str
    tokens: float = 0
    points: list[tuple[float, float]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @classmethod
    def of(cls, phase: str, metrics: pa.Table, decisions: Sequence[Mapping[str, Any]]) -> "Curve":
        """From the metrics of a phase and what training decided by itself; a roll-back stands where it went back to."""
        columns = (metrics[name].to_pylist() for name in ("step", "tokens", "loss", "action"))
        curve, places = cls(phase), dict[int, int]()
        for step, tokens, loss, action in zip(*columns, strict=True):
            places[step] = tokens
            curve.add(step, tokens, loss, action)
        for decision in decisions:
            step = decision["to_step"] if decision["kind"] == ROLL_BACK else decision["step"]
            curve.marks.append(decision_mark(decision, places.get(step, 0)))
        return curve

    def add(self, step: int, tokens: float, loss: float | None, action: str) -> None:
        """The next step. One that went back in the phase voids the losses and skips from there on."""
        if tokens <= self.tokens:
            self.points = [point for point in self.points if point[0] < tokens]
            self.marks = [mark for mark in self.marks if mark.x < tokens or mark.colour != SKIP_COLOUR]
        self.tokens = tokens
        if loss is not None and math.isfinite(loss):
            self.points.append((tokens, loss))
        if action != "apply":
            self.marks.append(Mark(tokens, f"step {step}: skipped", SKIP_COLOUR))


def decision_mark(decision: Mapping[str, Any], tokens: float) -> Mark:
    """What training decided by itself."""
    kind = decision["kind"]
    told = f"step {decision['step']}: {kind}" + (f" to step {decision['to_step']}" if kind == ROLL_BACK else "")
    return Mark(tokens, told, DECISION_COLOURS[kind])


def fault_mark(event: Mapping[str, Any], last: float) -> Mark:
    """A save that failed, or why training halted; `last`: the tokens where the curve ends."""
    message = f"{event['event']}: {event['message'][:MESSAGE_CHARS]}"
    return Mark(min(last, event.get("tokens", last)), message, FAULT_COLOUR)


def marks_of(curves: Sequence[Curve]) -> list[Mark]:
    """What happened in all phases, in order, each at its place in the whole training."""
    marks, start = list[Mark](), 0.0
    for curve in curves:
        marks += [Mark(start, f"phase {curve.phase} begins", PHASE_COLOUR)] if start else []
        marks += [replace(mark, x=start + mark.x) for mark in curve.marks]
        start += curve.tokens
    return sorted(marks, key=lambda mark: mark.x)


def loss_chart(curves: Sequence[Curve]) -> str:
    """Training loss over tokens, one line per phase; skips, roll-backs, new levels and new phases are marked."""
    starts = accumulate((curve.tokens for curve in curves), initial=0.0)
    series = [
        Series(curve.phase, [start + tokens for tokens, _ in curve.points], [loss for _, loss in curve.points])
        for start, curve in zip(starts, curves, strict=False)
    ]
    return line_chart("training loss", series, "tokens", "nats per token", marks_of(curves))


def read_forks(storage: Storage, record: RunRecord) -> list[tuple[str, dict[str, Any]]]:
    """(phase, what was taken and what is fresh) of the phases that began with a checkpoint of another run."""
    manifests = [load_manifest(storage, line.reference) for line in record.datasets_of("train")]
    return [(m.config["phase"]["name"], m.extra["fork"]) for m in manifests if "fork" in m.extra]


def read_written(storage: Storage, record: RunRecord) -> list[dict[str, Any]]:
    """The latest texts that the model wrote while it was trained: phase, step, source, prompt, text; in their order."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in record.datasets_of("train"):
        for event in live_events(storage, line.made_by, line.label.removeprefix("train ")):
            if event["event"] == "sample":  # a step that was trained again counts as it was at last
                found[event["phase"], event["step"]] = event
    return list(found.values())[-SHOWN_SAMPLES:]


def live_events(storage: Storage, run_id: str, phase: str, but: str | None = None) -> Iterator[dict[str, Any]]:
    """What all attempts of a run noted of a phase beside its steps, in order; without those of attempt `but`."""
    files = storage.list_files(f"runs/{run_id}/live/train-{phase}")
    for file in sorted(files, key=lambda file: (file.modified, file.key)):
        name = file.key.rpartition("/")[2]
        if name.endswith(".jsonl") and not (but and name.startswith(f"{but}-")):
            yield from _events_in(storage, file.key)


@lru_cache(maxsize=100_000)
def _events_in(storage: Storage, key: str) -> list[dict[str, Any]]:
    """Read once: a segment never changes, and a training of days has thousands."""
    return [line for line in map(orjson.loads, storage.read_bytes(key).splitlines()) if "event" in line]
