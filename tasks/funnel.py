"""The funnel of a run: documents and bytes in and out of each stage, by source, and why documents left.

Read from the manifests that run.json names; everything that shows a funnel (command, dashboard, report) takes it here.
"""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from tasks.dataset import COUNTS
from tasks.manifest import Manifest, load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage

FUNNEL_STAGES = ("ingest", "dedup-exact", "select", "dedup-near", "redact", "decontaminate", "mix", "pack")
SHOWN_REASONS = 3


class FunnelRow(BaseModel, frozen=True):
    """One stage, one source. Ingest reads records; pack gives rows of tokens, all its datasets of a split together."""

    stage: str
    source: str
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    dropped: int
    edited: int
    errors: int
    skipped: int
    tokens: int | None
    reasons: dict[str, int]

    @property
    def top_reasons(self) -> str:
        """The commonest reasons with their counts."""
        ordered = sorted(self.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
        shown = [f"{name} {count:,}" for name, count in ordered[:SHOWN_REASONS]]
        return ", ".join(shown + (["..."] if len(ordered) > SHOWN_REASONS else []))


def funnel(storage: Storage, record: RunRecord) -> list[FunnelRow]:
    """Rows in the order of stages, then of sources; only of stages that the run has reached."""
    rows: list[FunnelRow] = []
    for stage in FUNNEL_STAGES:
        lines = record.datasets_of(stage)
        manifests = [load_manifest(storage, line.reference) for line in lines]
        if stage == "pack":
            manifests = _first_length(manifests)
        rows += [
            _row(stage, source, counts, manifest) for manifest in manifests for source, counts in _by_source(manifest)
        ]
    return rows


def _by_source(manifest: Manifest) -> list[tuple[str, dict[str, Any]]]:
    """Counts by source; of mix those of sub-sources: the documents and the text that its rows stand for."""
    if manifest.stage != "mix":
        return sorted(manifest.by_source.items())
    return [(name, _mixed(splits.values())) for name, splits in sorted(manifest.extra["sizes"].items())]


def _mixed(splits: Collection[dict[str, int]]) -> dict[str, Any]:
    documents, size, tokens = (sum(split[n] for split in splits) for n in ("documents", "bytes", "estimated_tokens"))
    counts = {"rows_in": documents, "rows_out": documents, "bytes_in": size, "bytes_out": size, "tokens": tokens}
    return dict.fromkeys(COUNTS, 0) | counts | {"reasons": {}, "skipped_by": {}}


def _first_length(packs: list[Manifest]) -> list[Manifest]:
    """The train packs of the first sequence length: the others hold the same documents again."""
    requests = [(manifest, manifest.config.get("request", {})) for manifest in packs]
    train = [(manifest, request) for manifest, request in requests if request.get("split") == "train"]
    lengths = {request["sequence_length"] for _, request in train[:1]}
    return [manifest for manifest, request in train if request["sequence_length"] in lengths]


def _row(stage: str, source: str, counts: dict[str, Any], manifest: Manifest) -> FunnelRow:
    figures: dict[str, Any] = {name: counts[name] for name in COUNTS} | {"tokens": counts.get("tokens")}
    if stage == "pack":
        figures["tokens"] = manifest.extra["tokens"]
    return FunnelRow(stage=stage, source=source, reasons=counts["reasons"] | counts["skipped_by"], **figures)
