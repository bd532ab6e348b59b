"""What a run came to, as figures: the funnel, training's cost, losses, a sample of text, where things are."""

from typing import Any

from model.config import PhaseRun
from tasks.evaluate.scores import score_rows
from tasks.funnel import funnel
from tasks.manifest import Manifest, load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage

TRAINING_FACTS = (
    "step",
    "tokens",
    "tokens_per_second",
    "loss_first",
    "loss_last",
    "sources",
    "compute",
    "skipped_steps",
    "decisions",
)


def summarise(storage: Storage, record: RunRecord) -> dict[str, Any]:
    """The figures of a run as far as it came, JSON values."""
    evaluated, exported = _first(storage, record, "evaluate"), _first(storage, record, "export")
    report = f"runs/{record.run_id}/report.html"
    return {
        "run_id": record.run_id,
        "recipe": record.recipe["name"],
        "state": record.state,
        "attempts": [attempt.model_dump() for attempt in record.attempts],
        "datasets": [line.model_dump() for line in record.datasets],
        "funnel": [row.model_dump() for row in funnel(storage, record)],
        "training": {line.label: _training(storage, line.reference) for line in record.datasets_of("train")},
        "losses": score_rows(evaluated) if evaluated else [],
        "tasks": evaluated.extra.get("tasks", []) if evaluated else [],
        "evaluation_sets": evaluated.extra["evaluation_sets"] if evaluated else {},
        "samples": evaluated.extra["samples"] if evaluated else [],
        **(parameters_of(storage, record) or {"parameters": None, "active_parameters": None}),
        "model": storage.path(exported.reference) if exported else None,
        "report": storage.path(report) if storage.exists(report) else None,
    }


def parameters_of(storage: Storage, record: RunRecord) -> dict[str, int] | None:
    """Of the model of a run: {parameters, active_parameters}, as exported, else as trained; None before training."""
    if exported := _first(storage, record, "export"):
        return {name: exported.extra[name] for name in ("parameters", "active_parameters")}
    if (trained := _first(storage, record, "train")) is None:
        return None
    model = PhaseRun.model_validate(trained.config).model
    return {"parameters": model.num_parameters, "active_parameters": model.num_active_parameters}


def _first(storage: Storage, record: RunRecord, stage: str) -> Manifest | None:
    lines = record.datasets_of(stage)
    return load_manifest(storage, lines[0].reference) if lines else None


def _training(storage: Storage, reference: str) -> dict[str, Any]:
    manifest = load_manifest(storage, reference)
    facts = {name: manifest.extra[name] for name in TRAINING_FACTS} | {"mfu": manifest.extra.get("mfu")}
    return {"reference": reference, "seconds": manifest.totals["seconds"]} | facts
