"""What report and dashboard show of a training: its loss with what happened on the way, and what the model wrote.

Losses come from the metrics of the checkpoints, decisions from the manifests, texts from the live view. Without torch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.charts import COLOURS, Mark, Series, line_chart
from tasks.manifest import load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage

DECISION_COLOURS = {"roll back": COLOURS[1], "level shift": COLOURS[3]}
SKIP_COLOUR, PHASE_COLOUR = COLOURS[4], COLOURS[7]
SHOWN_SAMPLES = 8  # the latest

Decisions = dict[str, list[dict[str, Any]]]  # of each phase, as the manifest holds them


def read_training(storage: Storage, record: RunRecord) -> pa.Table | None:
    """The metrics of every step of all phases, in order; None before training."""
    tables = []
    for line in record.datasets_of("train"):
        checkpoint = load_manifest(storage, line.reference).extra["checkpoint"]
        for key in storage.read_json(f"{checkpoint}/manifest.json")["metrics"]:
            with storage.open_input(key) as file:
                tables.append(pq.read_table(file, use_threads=False))
    return pa.concat_tables(tables, promote_options="default") if tables else None


def read_decisions(storage: Storage, record: RunRecord) -> Decisions:
    """What training decided by itself, by phase."""
    manifests = [load_manifest(storage, line.reference) for line in record.datasets_of("train")]
    return {manifest.config["phase"]["name"]: manifest.extra.get("decisions", []) for manifest in manifests}


def loss_chart(metrics: pa.Table | None, decisions: Decisions) -> str:
    """Training loss over tokens, one line per phase; skips, roll-backs, new levels and new phases are marked."""
    if metrics is None:
        return line_chart("training loss", [], "tokens", "nats per token")
    series, marks, start = [], list[Mark](), 0.0
    for phase in metrics["phase"].unique().to_pylist():
        rows = metrics.filter(pc.equal(metrics["phase"], phase))
        tokens = [start + value for value in rows["tokens"].to_pylist()]
        series.append(Series(phase, tokens, [float("nan") if v is None else v for v in rows["loss"].to_pylist()]))
        if start:
            marks.append(Mark(start, f"phase {phase} begins", PHASE_COLOUR))
        marks += _marks(rows, tokens, decisions.get(phase, []))
        start = tokens[-1]
    return line_chart("training loss", series, "tokens", "nats per token", marks)


def _marks(rows: pa.Table, tokens: Sequence[float], decisions: Sequence[dict[str, Any]]) -> Iterator[Mark]:
    """Marks of one phase; a roll-back stands where training went back to."""
    steps = rows["step"].to_pylist()
    for step, at, action in zip(steps, tokens, rows["action"].to_pylist(), strict=True):
        if action != "apply":
            yield Mark(at, f"step {step}: skipped", SKIP_COLOUR)
    places = dict(zip(steps, tokens, strict=True))
    for decision in decisions:
        back = decision["kind"] == "roll back"
        told = f"step {decision['step']}: {decision['kind']}" + (f" to step {decision['to_step']}" if back else "")
        at = places.get(decision["to_step"] if back else decision["step"], tokens[0])
        yield Mark(at, told, DECISION_COLOURS[decision["kind"]])


def read_forks(storage: Storage, record: RunRecord) -> list[tuple[str, dict[str, Any]]]:
    """(phase, what was taken and what is fresh) of the phases that began with a checkpoint of another run."""
    manifests = [load_manifest(storage, line.reference) for line in record.datasets_of("train")]
    return [(m.config["phase"]["name"], m.extra["fork"]) for m in manifests if "fork" in m.extra]


def read_written(storage: Storage, record: RunRecord) -> list[dict[str, Any]]:
    """The latest texts that the model wrote while it was trained: phase, step, source, prompt, text; in their order."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in record.datasets_of("train"):
        folder = f"runs/{line.made_by}/live/{line.label.replace(' ', '-')}"
        for file in sorted(storage.list_files(folder), key=lambda file: (file.modified, file.key)):
            if file.key.endswith(".jsonl"):
                for event in map(orjson.loads, storage.read_bytes(file.key).splitlines()):
                    if event.get("event") == "sample":  # a step that was trained again counts as it was at last
                        found[event["phase"], event["step"]] = event
    return list(found.values())[-SHOWN_SAMPLES:]
