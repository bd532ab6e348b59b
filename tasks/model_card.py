"""The model card of an export (README.md): what the model is, what it was trained on, what that text was cleaned of.

Everything is read from the manifests of its lineage, so the card of the same model has the same bytes.
"""

from collections.abc import Iterator
from typing import Any

from model.config import PhaseRun
from tasks.contamination import ancestors, status_of_sets
from tasks.manifest import Manifest, load_manifest
from tasks.storage import Storage
from tasks.trained_model import context_of

HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [base-model, basemill]
---
"""


def model_card(storage: Storage, trained: Manifest, parity: dict[str, Any]) -> str:
    """The card as Markdown. `parity`: the certificate that lies beside it."""
    run = PhaseRun.model_validate(trained.config)
    model = run.model
    facts = [
        ("shape", parity["shape"]),
        ("parameters", f"{model.num_parameters:,}, of which a token meets {model.num_active_parameters:,}"),
        ("layers, width", f"{model.num_layers}, {model.width}"),
        ("heads", f"{model.num_heads} for queries, {model.num_kv_heads} for keys and values"),
        ("vocabulary", f"{parity['vocabulary']:,}"),
        ("context", f"{context_of(storage, trained):,} tokens"),
        ("weights", parity["weights_dtype"]),
        ("trained in", run.precision),
    ]
    certificate = (
        f"Logits of {parity['rows']} rows ({parity['tokens']:,} tokens) of its training text, computed in fp32 by "
        f"basemill and by transformers {parity['transformers']}, differ by at most "
        f"{parity['max_logit_difference']:.2g} (largest logit {parity['largest_logit']:.3g}); see `parity.json`."
    )
    sections = [
        "# A base language model trained with basemill",
        "It continues text. It was not tuned to follow instructions or to refuse.",
        _table(("", ""), facts),
        "## Training",
        _table(("phase", "tokens", "row length", "learning rate", "text", "last loss"), _phases(storage, trained)),
        "## Evaluation text in the training data",
        _contamination(storage, trained),
        "## Agreement with transformers",
        certificate,
        "## Lineage",
        _table(("stage", "dataset", "digest"), _lineage(storage, trained)),
    ]
    return HEAD + "\n" + "\n\n".join(sections) + "\n"


def _phases(storage: Storage, trained: Manifest) -> list[tuple[str, ...]]:
    """A row per phase, the first one first."""
    rows: list[tuple[str, ...]] = []
    for entry in trained.inputs:
        if entry["stage"] in ("train", "fork"):
            rows += _phases(storage, load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}"))
    if trained.stage == "fork":
        phase = PhaseRun.model_validate(trained.extra["config"]).phase
        place = f"{phase.name}, to step {trained.extra['step']} (run {trained.extra['run']})"
        numbers = f"{trained.extra['tokens']:,}", f"{phase.sequence_length:,}", f"{phase.schedule.lr:g}"
        return [*rows, (place, *numbers, ", ".join(sorted(phase.weights)), "")]
    phase, facts = PhaseRun.model_validate(trained.config).phase, trained.extra
    sources = ", ".join(f"{name} ({source['epochs']:.2f} epochs)" for name, source in sorted(facts["sources"].items()))
    numbers = f"{facts['tokens']:,}", f"{phase.sequence_length:,}", f"{phase.schedule.lr:g}"
    return [*rows, (phase.name, *numbers, sources, f"{facts['loss_last']:.4f}")]


def _contamination(storage: Storage, trained: Manifest) -> str:
    """Status of each evaluation set, and what was found where."""
    status = status_of_sets(storage, trained, [], [])
    if not status:
        return "No evaluation set was searched for: take any score as not decontaminated."
    reports: dict[str, dict[str, Any]] = {}
    for manifest in ancestors(storage, trained):
        if manifest.stage == "decontaminate":
            reports |= manifest.extra["evaluation_sets"]
    rows = [
        (name, status[name], str(report.get("items_found", "")), str(report.get("documents_found", "")))
        for name, report in ((name, reports.get(name, {})) for name in sorted(status))
    ]
    return _table(("evaluation set", "status", "items found", "documents found"), rows)


def _lineage(storage: Storage, trained: Manifest) -> Iterator[tuple[str, str, str]]:
    """Every dataset that the model was made from."""
    datasets = [trained, *ancestors(storage, trained)]
    for manifest in sorted(datasets, key=lambda manifest: (manifest.stage, manifest.fingerprint)):
        yield manifest.stage, manifest.fingerprint[:16], manifest.digest[:16]


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
