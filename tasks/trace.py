"""Which documents were in a training batch, down to their raw records (`basemill trace RUN --step N`).

Nothing is stored per step but positions: source, pack part and row of each follow from the seed (model/order.py), and a
packed row names its documents. Their raw references are read from the documents that were packed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from model.checkpoint_files import read_metrics, read_state
from model.config import PhaseRun
from model.job import EXACT_METRICS, order_of
from model.order import GROUP_ROWS, RowRef, next_positions
from tasks.errors import ConfigError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, Receipt, read_part
from tasks.runs import RunRecord
from tasks.storage import Storage
from tasks.train import pack_of

EXCERPT_CHARS = 160


class Span(BaseModel, frozen=True):
    """A document's piece in a row: `num_tokens` tokens from `token_offset` of the document on."""

    doc_id: str
    token_offset: int
    num_tokens: int
    raw_ref: str = ""
    url: str | None = None
    excerpt: str = ""


class TracedRow(BaseModel, frozen=True):
    """One row of the batch."""

    position: int
    source: str
    epoch: int
    pack_part: str
    row: int
    spans: list[Span]


class Trace(BaseModel, frozen=True):
    """One training step and everything that was in its batch."""

    run_id: str
    phase: str
    step: int
    metrics: dict[str, Any]
    rows: list[TracedRow]


def trace_step(storage: Storage, record: RunRecord, step: int, phase: str | None = None) -> Trace:
    """The batch of a step of a phase (default: the last phase). Raises ConfigError when there is no such step."""
    known = _trained(storage, record, phase)
    trained = known[phase] if phase else next(iter(known.values()))
    checkpoint = trained.extra["checkpoint"]
    state = read_state(storage, checkpoint)
    config = PhaseRun.model_validate(state.config)
    metrics = _metrics_of(storage, known, config.phase.name, step)
    packs, used = inputs_of(storage, trained.inputs)
    order = order_of(config, [pack_of(source, manifest) for source, manifest in packs.items()], used)
    skipped = [(skip.start, skip.stop) for skip in state.events.skips if skip.phase == config.phase.name]
    positions = next_positions(metrics["position_from"], metrics["rows"], skipped)
    rows = traced_rows(storage, order.rows_of_positions(positions))
    facts = facts_of(storage, packs, rows)
    return Trace(
        run_id=record.run_id,
        phase=config.phase.name,
        step=step,
        metrics=metrics,
        rows=[
            row.model_copy(update={"spans": [span.model_copy(update=facts[span.doc_id]) for span in row.spans]})
            for row in rows
        ],
    )


def _trained(storage: Storage, record: RunRecord, phase: str | None) -> dict[str, Manifest]:
    """What trained each phase, the last first: datasets of the run, or what they were forked from, up to that step."""
    known: dict[str, Manifest] = {}
    for line in reversed(record.datasets_of("train")):
        for manifest in _line_of_descent(storage, line.reference):
            known.setdefault(_phase_of(manifest), manifest)
    if not known or phase not in (None, *known):
        if not known:
            raise ConfigError(f"run {record.run_id} has trained no model; see `basemill show {record.run_id}`")
        raise ConfigError(f"run {record.run_id}: no trained phase {phase!r}; phases: {', '.join(reversed(known))}")
    return known


def _line_of_descent(storage: Storage, reference: str) -> Iterator[Manifest]:
    """A trained phase, the one it continues, and so on; forks stand for what they were taken from."""
    manifest: Manifest | None = load_manifest(storage, reference)
    while manifest is not None and manifest.stage in ("train", "fork"):
        yield manifest
        entries = [entry for entry in manifest.inputs if entry["role"] == "parent"]
        manifest = load_manifest(storage, f"{entries[0]['stage']}/{entries[0]['fingerprint']}") if entries else None


def _phase_of(manifest: Manifest) -> str:
    name: str = manifest.extra["phase"] if manifest.stage == "fork" else manifest.config["phase"]["name"]
    return name


def _metrics_of(storage: Storage, known: dict[str, Manifest], phase: str, step: int) -> dict[str, Any]:
    metrics = read_metrics(storage, known[phase].extra["checkpoint"])
    if not 1 <= step <= pc.max(metrics["step"]).as_py():
        tables = {name: read_metrics(storage, manifest.extra["checkpoint"]) for name, manifest in known.items()}
        steps = {name: f"phase {name} has steps 1 to {pc.max(table['step'])}" for name, table in tables.items()}
        told = [steps.pop(phase), *reversed(steps.values())]
        raise ConfigError(f"step {step}: {', '.join(told)}{'; --phase chooses one' if steps else ''}")
    row: dict[str, Any] = metrics.select(EXACT_METRICS).filter(pc.equal(metrics["step"], step)).to_pylist()[0]
    return row


def inputs_of(storage: Storage, entries: Sequence[Mapping[str, str]]) -> tuple[dict[str, Manifest], dict[str, int]]:
    """The packs by source that a training reads, and the ordinals that earlier phases used, from its inputs."""
    inputs = {i["role"]: load_manifest(storage, f"{i['stage']}/{i['fingerprint']}") for i in entries}
    packs = {role.removeprefix("pack:"): pack for role, pack in inputs.items() if role.startswith("pack:")}
    return packs, dict(inputs["parent"].extra["ordinals"]) if "parent" in inputs else {}


def traced_rows(storage: Storage, refs: list[RowRef]) -> list[TracedRow]:
    """The rows with their documents, by position; each row group is read once."""
    wanted: dict[tuple[str, int], list[RowRef]] = defaultdict(list)
    for ref in refs:
        wanted[ref.part_key, ref.row // GROUP_ROWS].append(ref)
    columns = ["doc_ids", "document_starts", "document_offsets", "num_tokens"]
    rows = []
    for (path, group), own in wanted.items():
        with storage.open_input(path) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            table = file.read_row_group(group, columns=columns, use_threads=False)
        for ref in own:
            rows.append(_traced(ref, {name: table[name][ref.row % GROUP_ROWS].as_py() for name in columns}))
    return sorted(rows, key=lambda row: row.position)


def _traced(ref: RowRef, row: dict[str, Any]) -> TracedRow:
    starts = row["document_starts"]
    lengths = np.diff([*starts, row["num_tokens"]]).tolist()
    spans = [
        Span(doc_id=doc_id, token_offset=offset, num_tokens=length)
        for doc_id, offset, length in zip(row["doc_ids"], row["document_offsets"], lengths, strict=True)
    ]
    return TracedRow(
        position=ref.position, source=ref.source, epoch=ref.epoch, pack_part=ref.part_key, row=ref.row, spans=spans
    )


def facts_of(storage: Storage, packs: dict[str, Manifest], rows: list[TracedRow]) -> dict[str, dict[str, Any]]:
    """raw_ref, url and the beginning of the text of every document in the rows, by id."""
    facts: dict[str, dict[str, Any]] = {}
    for pack_part in {(row.source, row.pack_part) for row in rows}:
        names = pa.array(
            {span.doc_id for row in rows if (row.source, row.pack_part) == pack_part for span in row.spans}
        )
        for part in documents_behind(storage, packs[pack_part[0]], pack_part[1]):
            for table in read_part(storage, part, ["doc_id", "raw_ref", "url", "text"]):
                for found in table.filter(pc.is_in(table["doc_id"], names)).to_pylist():
                    excerpt = found["text"][:EXCERPT_CHARS]
                    facts[found["doc_id"]] = {"raw_ref": found["raw_ref"], "url": found["url"], "excerpt": excerpt}
    return facts


def documents_behind(storage: Storage, pack: Manifest, path: str) -> list[Part]:
    """The document parts that a pack part was made of, from its receipt."""
    [own] = [part for part in pack.parts if part.path == path]
    keys = set(Receipt.from_json(storage.read_bytes(own.receipt_path)).inputs)
    [entry] = [entry for entry in pack.inputs if entry["role"] == "documents"]
    documents = load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}")
    return [part for part in documents.parts if part.key in keys]
