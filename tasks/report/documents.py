"""What a report shows of text: samples of what was dropped or edited, clusters of near duplicates, what a model wrote.

Reports are passed on, so that personal data is replaced in all samples, those of earlier stages and of dropped
documents too, as the recipe says. Reading and redacting takes seconds, so the result is a dataset (`report.documents`):
the report of a run that found everything cached takes it from there.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tasks.config import for_source
from tasks.dataset import Workspace
from tasks.documents import source_of
from tasks.errors import DataError
from tasks.manifest import Manifest, load_manifest
from tasks.redact import RedactConfig, redact_text
from tasks.runs import RunRecord
from tasks.samples import Sample, read_texts, sample_reasons
from tasks.storage import Storage
from tasks.train.view import read_written

SAMPLED_STAGES = ("dedup-exact", "select", "dedup-near", "redact", "decontaminate")
SAMPLES_PER_REASON = 2
MAX_REASONS = 100  # of a stage
SHOWN_CLUSTERS = 5
CLUSTER_CHARS = 300


class StageSample(BaseModel, frozen=True):
    """A document that a stage dropped or edited; `rank` 0: for the stage's commonest reason."""

    stage: str
    rank: int
    sample: Sample


class ReportDocuments(BaseModel):
    """All that a report shows of text; `faults` say what could not be read."""

    samples: list[StageSample] = []
    written: list[dict[str, Any]] = []  # by the model while it was trained; it may have learnt personal data by heart
    clusters: dict[str, Any] | None = None
    faults: list[str] = []


def read_documents(storage: Storage, record: RunRecord) -> ReportDocuments:
    """Samples and clusters of a run, in the lake already or put there. With a damaged part nothing is put there."""
    lines = [line for stage in SAMPLED_STAGES for line in record.datasets_of(stage)]
    config, written = redaction_of(record), list(read_written(storage, record))
    dataset = Workspace(storage, run_id=record.run_id).dataset(
        "report.documents",
        config,
        inputs={},
        module=__name__,
        external={  # by reference: dropped text moves no digest
            "datasets": [line.reference for line in lines],
            "written": written,
        },
    )
    if found := dataset.find():
        return ReportDocuments.model_validate(found.extra)
    shown = ReportDocuments(written=redacted_events(written, record))
    try:
        for line in lines:
            shown.samples += _samples(storage, line.stage, load_manifest(storage, line.reference), config)
        shown.clusters = _clusters(storage, record, config)
    except DataError as error:
        shown.faults.append(str(error))
        return shown
    with dataset.lease():
        dataset.publish([], extra=shown.model_dump())
    return shown


def redacted_events(written: list[dict[str, Any]], record: RunRecord) -> list[dict[str, Any]]:
    """What the model wrote, without personal data."""
    config = redaction_of(record)
    return [event | {name: redact_text(event[name], config) for name in ("prompt", "text")} for event in written]


def redaction_of(record: RunRecord) -> RedactConfig:
    """How the run's recipe replaces personal data."""
    return RedactConfig.model_validate(record.recipe.get("redact", {}))


def _samples(storage: Storage, stage: str, manifest: Manifest, config: RedactConfig) -> Iterator[StageSample]:
    reasons = sorted(manifest.reasons, key=lambda name: -manifest.reasons[name])[:MAX_REASONS]
    for sample in sample_reasons(storage, manifest, reasons, SAMPLES_PER_REASON):
        redacted = sample.model_copy(update={"text": _shown(sample.text, sample.source, config)})
        yield StageSample(stage=stage, rank=reasons.index(sample.reason), sample=redacted)


def _clusters(storage: Storage, record: RunRecord, config: RedactConfig) -> dict[str, Any] | None:
    """Clusters of near duplicates, the largest with the beginning of the document kept; None where there is none."""
    lines = record.datasets_of("dedup-near")
    manifest = load_manifest(storage, lines[-1].reference) if lines else None
    if manifest is None or not manifest.extra.get("clusters", {}).get("sizes"):
        return None
    clusters, documents = manifest.extra["clusters"], manifest.by_source
    shares = {
        source: (count, count / documents[source]["rows_in"])
        for source, count in clusters["by_source"].items()
        if source in documents  # an index can hold others
    }
    largest = []
    for entry in clusters["largest"][:SHOWN_CLUSTERS]:
        own = [part for part in manifest.parts[entry["kept_part"] : entry["kept_part"] + 1] if part.rows]
        text = read_texts(storage, [(part, entry["kept"]) for part in own]).get(entry["kept"], "(in the index)")
        largest.append(entry | {"text": _shown(text, source_of(entry["kept"]), config)[:CLUSTER_CHARS]})
    sizes = dict(sorted(clusters["sizes"].items(), key=lambda item: int(item[0])))
    return {"sizes": sizes, "shares": shares, "largest": largest}


def _shown(text: str, source: str, config: RedactConfig) -> str:
    own = for_source(config, source)
    return redact_text(text, own) if own.enabled else text
