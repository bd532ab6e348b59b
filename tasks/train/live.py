"""A training while it lasts: the curve of each phase so far and the latest texts, from what the ranks have written.

Checkpoints hold the losses up to the newest one, whatever run or attempt trained them; the segments of the live view
hold what came since, failed saves included, and the texts. Each segment is read once, by its name: listing a folder
costs more the longer a training lasts. No torch here: the driver reads.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from model.checkpoint_files import list_steps, read_metrics, read_state, step_key
from model.job import live_segment
from tasks.charts import MAX_POINTS, thin
from tasks.fork import notes_of
from tasks.manifest import load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage
from tasks.train.view import FAULTS, ROLL_BACK, SHOWN_SAMPLES, Curve, decision_mark, fault_mark, live_events

Line = dict[str, Any]


class LiveSegments:
    """The lines of one attempt, each once, in the order in which they were written."""

    def __init__(self, storage: Storage, prefix: str, attempt: str) -> None:
        self.storage, self.prefix, self.attempt, self.number = storage, prefix, attempt, 1

    def read(self) -> Iterator[Line]:
        """What was published since the last call. Raises StorageError."""
        while True:
            try:
                data = self.storage.read_bytes(live_segment(self.prefix, self.attempt, self.number))
            except FileNotFoundError:
                return
            self.number += 1
            yield from map(orjson.loads, data.splitlines())


class LiveTraining:
    """One phase while a run trains it. Make it before the training begins: an attempt noted earlier is over."""

    def __init__(self, storage: Storage, record: RunRecord, phase: str) -> None:
        self.storage, self.record, self.phase = storage, record, phase
        self.over = self._attempt()
        self.segments: LiveSegments | None = None
        self.curves: list[Curve] = []
        self.written: list[Line] = []
        self.gone_back: Line | None = None  # a roll-back; the next step says to where

    def read(self) -> list[Line]:
        """What was written since the last call, noted in curves and texts. Raises StorageError, ValueError."""
        if self.segments is None:
            attempt = self._attempt()
            if attempt in (None, self.over):
                return []
            known = {curve.phase: curve for curve in read_curves(self.storage, self.record, but=attempt)}
            own = known.pop(self.phase, Curve(self.phase))
            self.curves = [*known.values(), own]
            prefix = f"runs/{self.record.run_id}/live/train-{self.phase}"
            self.segments = LiveSegments(self.storage, prefix, str(attempt))
        lines = []
        for line in self.segments.read():
            self._note(line)
            lines.append(line)
        return lines

    def _attempt(self) -> str | None:
        """The attempt that trains or trained the phase, as the run has noted."""
        notes = notes_of(self.storage, self.record.run_id)
        return next((note.get("attempt") for note in notes if note["phase"] == self.phase), None)

    def _note(self, line: Line) -> None:
        curve, event = self.curves[-1], line.get("event")
        if event is None:
            curve.add(line["step"], line["tokens"], line["loss"], line["action"])
            if self.gone_back:
                before = curve.points[-2:-1] or [(0.0, 0.0)]
                curve.marks.append(decision_mark(self.gone_back, before[0][0]))
                self.gone_back = None
            if len(curve.points) > 4 * MAX_POINTS:
                curve.points = thin(curve.points)
        elif event == ROLL_BACK:
            self.gone_back = line | {"kind": event}
        elif event == "level shift":
            curve.marks.append(decision_mark(line | {"kind": event}, curve.tokens))
        elif event in FAULTS:
            curve.marks.append(fault_mark(line, curve.tokens))
        elif event == "sample":
            self.written = [*self.written, line][-SHOWN_SAMPLES:]


def read_curves(storage: Storage, record: RunRecord, but: str | None = None) -> list[Curve]:
    """The curve of every phase, in order: finished ones to their end, another one to its newest sound checkpoint.

    Failed saves and halts are marked, but for those of attempt `but`.
    """
    curves, runs = dict[str, Curve](), dict[str, str]()
    for line in record.datasets_of("train"):
        manifest = load_manifest(storage, line.reference)
        metrics = read_metrics(storage, manifest.extra["checkpoint"])
        curve = Curve.of(manifest.config["phase"]["name"], metrics, manifest.extra.get("decisions", []))
        curves[curve.phase], runs[curve.phase] = curve, line.made_by
    for note in notes_of(storage, record.run_id):
        if note["phase"] not in curves and (unfinished := _unfinished(storage, note["phase"], note["reference"])):
            curves[note["phase"]] = unfinished
    for phase, curve in curves.items():
        events = live_events(storage, runs.get(phase, record.run_id), phase, but)
        curve.marks += [fault_mark(event, curve.tokens) for event in events if event["event"] in FAULTS]
    return list(curves.values())


def _unfinished(storage: Storage, phase: str, reference: str) -> Curve | None:
    """The curve up to the newest checkpoint that can be read; a damaged one is for the training to tell of."""
    folder = f"{reference}/checkpoints"
    for step in list_steps(storage, folder):
        try:
            state, metrics = (read(storage, step_key(folder, step)) for read in (read_state, read_metrics))
        except (ValueError, FileNotFoundError):
            continue
        return Curve.of(phase, metrics, [decision.model_dump() for decision in state.events.decisions])
    return None
