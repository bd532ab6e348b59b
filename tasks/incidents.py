"""Incidents of training, told by document (`basemill incidents RUN`): who was unlike the others, and what they share.

At each roll-back training writes the loss and score of every document of the bad steps and of healthy ones before them,
by position (model/incident.py). Here positions become documents: their ids, raw records and signals, looked up in the
lineage the first time that somebody asks, and kept beside training's own files:

    train/<fingerprint>/incidents/step-00000104-1.documents.parquet   SCHEMA: a row per document
                                                 .common.json         what the named ones have in common

A document is named when its score is above 6 in a bad step, pieces of fewer than 4 targets left out: a mean over three
tokens says nothing. What it shares with the other named ones is set against all other documents of the window: for a
number the medians, and how surely a named document lies above (1) or below (-1) another one (2 AUC - 1); for a word
(source, raw file, language) the share of documents that have it, and the difference of shares.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from model.config import PhaseRun
from model.job import order_of
from tasks.errors import ConfigError
from tasks.fork import notes_of
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, read_part
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.select.drop_list import DropListConfig, write_drop_list
from tasks.storage import Storage
from tasks.trace import TracedRow, documents_behind, facts_of, inputs_of, traced_rows
from tasks.train import pack_of

COMMON, DOCUMENTS = ".common.json", ".documents.parquet"
NAMED_ABOVE = 6.0  # MADs of its source
JUDGED_TARGETS = 4
MIN_STRENGTH = 0.5  # of what is worth telling
SHOWN_TRAITS = 10
NO_SIGNALS = {"doc_id", "source"}  # columns of that table

SCHEMA = pa.schema(
    {
        "doc_id": pa.string(), "source": pa.string(), "raw_file": pa.string(), "raw_position": pa.int64(),
        "url": pa.string(), "is_suspect": pa.bool_(), "targets": pa.int64(), "loss": pa.float64(),
        "score": pa.float64(), "signals": pa.string(),
    }
)  # fmt: skip
Row = dict[str, Any]


class Trait(BaseModel, frozen=True):
    """Something that tells the named documents from the rest. `strength`: -1..1, 0 where it tells nothing."""

    trait: str
    named: float
    rest: float
    strength: float


class Incident(BaseModel, frozen=True):
    """One roll-back of a run; `number` counts them."""

    number: int
    phase: str
    step: int
    attempt: int
    bad_steps: list[int]
    verdict: str
    documents: int
    named: int
    in_common: list[Trait]
    prefix: str


def incidents_of(storage: Storage, record: RunRecord) -> list[Incident]:
    """The roll-backs of a run, phase by phase; documents that were not looked up yet are."""
    incidents: list[Incident] = []
    for phase, reference, entries, config in _trainings(storage, record):
        files = [file.key for file in storage.list_files(f"{reference}/incidents")]
        reports = sorted(key for key in files if key.endswith(".json") and not key.endswith(COMMON))
        told = [(key.removesuffix(".json"), storage.read_json(key)) for key in reports]
        told.sort(key=lambda pair: pair[1]["decision"]["skip"]["stop"])  # a later attempt may have an earlier step
        for prefix, report in told:
            if f"{prefix}{COMMON}" not in files:
                _look_up(storage, prefix, config, entries)
            found = storage.read_json(f"{prefix}{COMMON}")
            decision = {name: report["decision"][name] for name in ("step", "attempt", "bad_steps")}
            facts = {"phase": phase, "prefix": prefix, "verdict": report["numerical"]["verdict"]}
            incidents.append(Incident(number=len(incidents) + 1, **facts, **decision, **found))
    return incidents


def documents_of(storage: Storage, incident: Incident) -> list[Row]:
    """The documents of the window of an incident, the highest score first."""
    table = pq.read_table(io.BytesIO(storage.read_bytes(f"{incident.prefix}{DOCUMENTS}")), use_threads=False)
    rows: list[Row] = table.sort_by([("score", "descending"), ("doc_id", "ascending")]).to_pylist()
    return [row | {"signals": orjson.loads(row["signals"])} for row in rows]


def is_named(row: Row, above: float = NAMED_ABOVE) -> bool:
    """Whether a document stands out."""
    return bool(row["is_suspect"] and row["score"] > above)


def exclude(storage: Storage, record: RunRecord, number: int | None, above: float) -> tuple[DropListConfig, int]:
    """A drop list of the documents that an incident named (or all incidents of the run), and how many they are.

    Raises ConfigError when there is no such incident, or none of its documents has a score above `above`.
    """
    incidents = incidents_of(storage, record)
    wanted = [incident for incident in incidents if number in (None, incident.number)]
    if not wanted:
        has = f"incidents 1 to {len(incidents)}" if incidents else "no incidents"
        raise ConfigError(f"run {record.run_id} has {has}{'' if number is None else f', not {number}'}")
    listed: dict[str, Row] = {}
    for incident in wanted:
        for row in (row for row in documents_of(storage, incident) if is_named(row, above)):
            why = {
                "run": record.run_id,
                "phase": incident.phase,
                "step": incident.step,
                "score": round(row["score"], 3),
            }
            if row["doc_id"] not in listed or listed[row["doc_id"]]["score"] < why["score"]:
                listed[row["doc_id"]] = why
    if not listed:
        raise ConfigError(f"run {record.run_id}: no document of these incidents has a score above {above:g}")
    return write_drop_list(storage, listed), len(listed)


def _trainings(storage: Storage, record: RunRecord) -> Iterator[tuple[str, str, Sequence[dict[str, str]], PhaseRun]]:
    """(phase, reference, inputs, settings) of every training of a run, those that halted or go on too."""
    lines = record.datasets_of("train")
    for line in lines:
        manifest = load_manifest(storage, line.reference)
        config = PhaseRun.model_validate(manifest.config)
        yield config.phase.name, manifest.reference, manifest.inputs, config
    known = {line.reference for line in lines}
    for note in (note for note in notes_of(storage, record.run_id) if note["reference"] not in known):
        recipe = Recipe.parse(record.recipe)
        yield note["phase"], note["reference"], note["inputs"], recipe.train.run_of(note["phase"], recipe.model)


def _look_up(storage: Storage, prefix: str, config: PhaseRun, entries: Sequence[dict[str, str]]) -> None:
    """Write both files of an incident."""
    packs, used = inputs_of(storage, entries)
    order = order_of(config, [pack_of(source, manifest) for source, manifest in packs.items()], used)
    losses = pq.read_table(io.BytesIO(storage.read_bytes(f"{prefix}.parquet")), use_threads=False)
    positions = np.unique(losses["position"].to_numpy())
    rows = traced_rows(storage, order.rows_of_positions(positions))
    documents = by_document(losses.to_pylist(), {row.position: row for row in rows})
    facts, signals = facts_of(storage, packs, rows), _signals(storage, packs, rows)
    told = []
    for row in documents:
        file, _, place = facts[row["doc_id"]]["raw_ref"].rpartition("#")
        own = {"raw_file": file, "raw_position": int(place) if place.isdecimal() else None}
        own |= {"url": facts[row["doc_id"]]["url"], "signals": signals.get(row["doc_id"], {})}
        told.append(row | own)
    named = [row for row in told if is_named(row)]
    common = {
        "documents": len(told),
        "named": len(named),
        "in_common": [t.model_dump() for t in in_common(named, [row for row in told if not is_named(row)])],
    }
    table = pa.Table.from_pylist([row | {"signals": orjson.dumps(row["signals"]).decode()} for row in told], SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    storage.write_bytes(f"{prefix}{DOCUMENTS}", sink.getvalue())
    storage.write_json(f"{prefix}{COMMON}", common)


def by_document(losses: Sequence[Row], rows: dict[int, TracedRow]) -> list[Row]:
    """One row per document of the window, by id: its targets, their mean loss, the highest score of its pieces.

    The score is that of the bad steps where it is in any; 0 where all pieces are too short to be judged.
    """
    pieces: dict[str, list[Row]] = {}
    for loss in losses:
        pieces.setdefault(rows[loss["position"]].spans[loss["document"]].doc_id, []).append(loss)
    documents = []
    for doc_id, own in sorted(pieces.items()):
        is_suspect = any(piece["is_suspect"] for piece in own)
        judged = [p["score"] for p in own if p["is_suspect"] == is_suspect and p["targets"] >= JUDGED_TARGETS]
        targets = sum(piece["targets"] for piece in own)
        loss = sum(piece["loss"] * piece["targets"] for piece in own) / targets
        facts = {"source": own[0]["source"], "is_suspect": is_suspect, "targets": targets, "loss": loss}
        documents.append({"doc_id": doc_id, "score": max(judged, default=0.0)} | facts)
    return documents


def _signals(storage: Storage, packs: dict[str, Manifest], rows: Sequence[TracedRow]) -> dict[str, Row]:
    """The signals of every document in the rows, by id; none where the documents were never measured."""
    found: dict[str, Row] = {}
    names = pa.array({span.doc_id for row in rows for span in row.spans})
    measured = {source: signals_behind(storage, pack) for source, pack in packs.items()}
    for source, path in sorted({(row.source, row.pack_part) for row in rows}):
        for part in documents_behind(storage, packs[source], path):
            own = measured[source].get(part.key)
            for table in read_part(storage, own) if own else ():
                for row in table.filter(pc.is_in(table["doc_id"], names)).to_pylist():
                    kept = {name: value for name, value in row.items() if not isinstance(value, list)}  # no spans
                    found[row["doc_id"]] = {name: kept[name] for name in kept if name not in NO_SIGNALS}
    return found


def signals_behind(storage: Storage, pack: Manifest) -> dict[str, Part]:
    """The part of signals that belongs to each part of the packed documents, by key: stages keep parts 1:1."""
    inputs = {entry["role"]: f"{entry['stage']}/{entry['fingerprint']}" for entry in pack.inputs}
    packed = manifest = load_manifest(storage, inputs["documents"])
    while "signals" not in (inputs := {e["role"]: f"{e['stage']}/{e['fingerprint']}" for e in manifest.inputs}):
        if "documents" not in inputs:
            return {}
        manifest = load_manifest(storage, inputs["documents"])
    signals = load_manifest(storage, inputs["signals"])
    return {part.key: own for part, own in zip(packed.parts, signals.parts, strict=True)}


# --- what they share -----------------------------------------------------------------------------------------------


def in_common(named: Sequence[Row], rest: Sequence[Row]) -> list[Trait]:
    """What tells the named documents from the rest, the strongest first; at most SHOWN_TRAITS."""
    if not named or not rest:
        return []
    groups = [
        [{"source": row["source"], "raw_file": row["raw_file"]} | row["signals"] for row in own]
        for own in (named, rest)
    ]
    traits: list[Trait] = []
    for name in dict.fromkeys(name for own in groups for features in own for name in features):
        values = [[value for features in own if (value := features.get(name)) is not None] for own in groups]
        if not all(values):
            continue
        is_number = isinstance(values[0][0], (int, float)) and not isinstance(values[0][0], bool)
        traits += [_number_trait(name, *values)] if is_number else _word_traits(name, *values)
    strong = [trait for trait in traits if abs(trait.strength) >= MIN_STRENGTH]
    return sorted(strong, key=lambda trait: (-abs(trait.strength), trait.trait))[:SHOWN_TRAITS]


def _number_trait(name: str, named: list[float], rest: list[float]) -> Trait:
    ordered = np.sort(np.array(rest, dtype=np.float64))
    below, up_to = (np.searchsorted(ordered, named, side) for side in ("left", "right"))
    strength = float(np.mean((below + up_to) / len(rest) - 1))
    return Trait(trait=name, named=float(np.median(named)), rest=float(np.median(rest)), strength=strength)


def _word_traits(name: str, named: list[Any], rest: list[Any]) -> Iterator[Trait]:
    there, elsewhere = Counter(map(str, named)), Counter(map(str, rest))
    for value, count in there.most_common(SHOWN_TRAITS):
        shares = count / len(named), elsewhere[value] / len(rest)
        yield Trait(trait=f"{name} = {value}", named=shares[0], rest=shares[1], strength=shares[0] - shares[1])
