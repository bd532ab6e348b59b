"""Takes text of evaluation sets out of documents (stage "decontaminate").

Reads documents and the sets' files; writes the documents without those that hold items (action drop), with the spans
cut (cut), or as they are (report). Steps, each a dataset of its own:

    .index      what is looked for (tasks/evaluation_index.py)
    .hits       per part: which probes stand in which document, and where
    .common     probes in more than `max_documents` documents of the whole corpus: no evidence (GPT-3: 10)
    .decisions  per part: items of which a document holds at least `min_overlap` of the probes that are evidence
    .report     per set: items found, in which documents, how sure

A quotation that half the corpus holds marks nobody, an item re-wrapped to 40 columns is found, and a part is computed
again only when its own decisions change. Canaries are searched before each part: a search that finds nothing because it
is broken stops the stage. Ledger: matched_id = "set:item", value = share of its probes found, threshold = min_overlap.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, Field, JsonValue, model_validator

from tasks.config import check_by_source, for_source
from tasks.dataset import Dataset, Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.evaluation_index import CANARY_SET, EvaluationIndex, Finding, build_index, load_index, merged
from tasks.evaluation_sets import EvaluationSetConfig, read_items, read_set_file
from tasks.manifest import Manifest
from tasks.parts import Part, PartFunction, PartWriter, Unit, documents_of, read_part

DROPPED, CUT, REMNANT = "evaluation_text", "evaluation_span_cut", "evaluation_remnant"
REASONS = frozenset([DROPPED, CUT, REMNANT])
SAMPLES = 5  # documents named per set in the report, and items per document in the ledger

HITS_SCHEMA = pa.schema([("doc_id", pa.string()), ("probe", pa.uint64()), ("start", pa.int64()), ("end", pa.int64())])
COMMON_SCHEMA = pa.schema([("probe", pa.uint64()), ("documents", pa.int64())])
DECISION_SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()), ("set", pa.string()), ("item", pa.string()), ("field", pa.string()),
        ("overlap", pa.float64()), ("probes", pa.int64()), ("spans", pa.list_(pa.int64())),
    ]
)  # fmt: skip
REPORT_SCHEMA = pa.schema([("set", pa.string()), ("report", pa.string())])


class DecontaminateConfig(BaseModel, frozen=True, extra="forbid"):
    """Against what documents are decontaminated, and how."""

    enabled: bool = Field(default=True, description="false: documents pass unchanged")
    evaluation_sets: dict[str, EvaluationSetConfig] = Field(default={}, description="name: file, columns, action")
    max_documents: int = Field(default=10, ge=1, description="n-grams in more documents than this are no evidence")
    margin_chars: int = Field(default=200, ge=0, description="cut: characters taken away on both sides of a span")
    min_remaining_chars: int = Field(default=200, ge=0, description="cut: a document that is left shorter is dropped")
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @model_validator(mode="after")
    def _check(self) -> "DecontaminateConfig":
        if CANARY_SET in self.evaluation_sets:
            raise ValueError(f"evaluation_sets: {CANARY_SET!r} is reserved")
        return check_by_source(self)


def drop_evaluation_text(documents: Manifest, *, into: Workspace, config: DecontaminateConfig) -> Manifest:
    """Documents without text of the evaluation sets; `extra["evaluation_sets"]` holds the report per set.

    Raises ConfigError when a set's file is missing and DataError when one cannot be read or is empty.
    """
    files = {name: read_set_file(into.storage, name, set_) for name, set_ in config.evaluation_sets.items()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    dataset = into.dataset(
        "decontaminate", _without_paths(config), inputs={"documents": documents}, module=__name__,
        schema=DOCUMENT_SCHEMA, conservation="documents", reasons=REASONS, external={"evaluation_sets": digests},
    )  # fmt: skip
    if found := dataset.find():
        return found
    with dataset.lease():
        decisions, report = _decide(dataset, documents, config, files) if files else ({}, {})
        units = [
            dataset.unit(
                [part, *([decisions[part.key]] if part.key in decisions else [])],
                source=part.source,
                config=_of(dataset, part),
            )
            for part in documents.parts
        ]
        return dataset.publish(dataset.compute(units, clean_part), extra={"evaluation_sets": report})


def _of(dataset: Dataset, part: Part) -> DecontaminateConfig:
    assert isinstance(dataset.config, DecontaminateConfig)
    return for_source(dataset.config, part.source or "")


def _without_paths(config: DecontaminateConfig) -> DecontaminateConfig:
    """The config as it decides the result: the content of a file counts, not its place."""
    sets = {name: set_.model_copy(update={"path": ""}) for name, set_ in config.evaluation_sets.items()}
    return config.model_copy(update={"evaluation_sets": sets})


def _decide(
    dataset: Dataset, documents: Manifest, config: DecontaminateConfig, files: dict[str, bytes]
) -> tuple[dict[str, Part], dict[str, Any]]:
    """(decisions per key of a part of documents, report per set)."""
    index = _publish_index(dataset, config, files)
    find = {"index": index.reference}
    parts = [part for part in documents.parts if _of(dataset, part).enabled]
    inputs = {"documents": documents, "index": index}
    hits = dataset.step("hits", HITS_SCHEMA, inputs=inputs)
    found = _compute(hits, [hits.unit([part], source=part.source, arguments=find) for part in parts], find_hits)
    common = dataset.step("common", COMMON_SCHEMA, inputs={"hits": found})
    limit = {"max_documents": config.max_documents}
    frequent = _compute(common, [common.unit(found.parts, arguments=limit)], count_documents)
    decisions = dataset.step("decisions", DECISION_SCHEMA, inputs=inputs | {"hits": found, "common": frequent})
    decided = _compute(
        decisions,
        [
            decisions.unit([own, *frequent.parts], source=own.source, config=_of(dataset, own), arguments=find)
            for own in found.parts
        ],
        decide_part,
    )
    report = dataset.step("report", REPORT_SCHEMA, inputs={"decisions": decided, "common": frequent, "index": index})
    rows = _compute(report, [report.unit([*frequent.parts, *decided.parts], arguments=find)], report_sets)
    texts = {row["set"]: json.loads(row["report"]) for row in _rows(dataset, rows)}
    per_set = {
        name: counts | texts[name] | {"share": round(texts[name]["items_found"] / counts["items"], 6)}
        for name, counts in index.extra["sets"].items()
    }
    return {part.key: own for part, own in zip(parts, decided.parts, strict=True)}, per_set


def _publish_index(dataset: Dataset, config: DecontaminateConfig, files: dict[str, bytes]) -> Manifest:
    keys = {
        name: set_.model_dump(include={"format", "question", "answer", "answer_index", "passage", "id"})
        for name, set_ in config.evaluation_sets.items()
    }
    step = dataset.into.dataset(
        "decontaminate.index", None, inputs={}, module="tasks.evaluation_index",
        external={"sets": dict(dataset.external), "keys": keys},
    )  # fmt: skip
    if found := step.find():
        return found
    items = {name: read_items(data, name, config.evaluation_sets[name]) for name, data in files.items()}
    tables, counts = build_index(items)
    return step.publish_files(tables, extra={"sets": counts})


def _compute(step: Dataset, units: list[Unit], function: PartFunction) -> Manifest:
    return step.find() or step.publish(step.compute(units, function))


def _rows(dataset: Dataset, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for part in manifest.parts:
        for table in read_part(dataset.storage, part):
            yield from table.to_pylist()


def find_hits(unit: Unit, writer: PartWriter) -> None:
    """Step hits: where a part's documents hold what the index knows."""
    index = load_index(unit.storage, unit.arguments["index"])
    index.check()
    for table in documents_of(unit, writer, columns=["doc_id", "text"]):
        places, probes = index.find(table["text"])
        ids = table["doc_id"].take(pa.array(places[:, 0]))
        rows = pa.table([ids, probes, places[:, 1], places[:, 2]], schema=HITS_SCHEMA)
        writer.write(rows.sort_by([("doc_id", "ascending"), ("start", "ascending"), ("probe", "ascending")]))


def count_documents(unit: Unit, writer: PartWriter) -> None:
    """Step common: probes that stand in too many documents, which are in one part each. Memory: one count per probe."""
    counts: dict[int, int] = {}
    for part in unit.inputs:
        for table in read_part(unit.storage, part, ["doc_id", "probe"]):
            per_probe = table.group_by("probe").aggregate([("doc_id", "count_distinct")])
            for probe, number in zip(*(column.to_pylist() for column in per_probe.columns), strict=True):
                counts[probe] = counts.get(probe, 0) + number
    frequent = sorted((probe, number) for probe, number in counts.items() if number > unit.arguments["max_documents"])
    columns = [[row[column] for row in frequent] for column in (0, 1)]
    writer.write(pa.table([pa.array(c, f.type) for c, f in zip(columns, COMMON_SCHEMA, strict=True)], COMMON_SCHEMA))


def decide_part(unit: Unit, writer: PartWriter) -> None:
    """Step decisions: the items that each document of a part holds, after common probes are set aside."""
    config = unit.config
    assert isinstance(config, DecontaminateConfig)
    index = load_index(unit.storage, unit.arguments["index"])
    index.check()
    common = _column(unit, unit.inputs[1:], "probe")
    evidence = index.evidence(common)
    hits = pa.concat_tables([HITS_SCHEMA.empty_table(), *read_part(unit.storage, unit.inputs[0])])
    hits = hits.filter(pa.array(~np.isin(hits["probe"].to_numpy(), common)))
    rows: list[dict[str, Any]] = []
    for doc_id, own in _by_document(hits):
        places = np.stack([own["start"].to_numpy(), own["end"].to_numpy()], axis=1)
        for finding in index.judge(own["probe"].to_numpy(), places, evidence):
            rows.extend(_decision(doc_id, finding, index, config))
    writer.write(pa.Table.from_pylist(rows, schema=DECISION_SCHEMA))


def _column(unit: Unit, parts: Sequence[Part], name: str) -> NDArray[np.uint64]:
    pieces = [table[name].to_numpy() for part in parts for table in read_part(unit.storage, part, [name])]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)


def _by_document(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Runs of rows with one doc_id."""
    ids = rows["doc_id"].to_pylist()
    start = 0
    for row in range(1, len(ids) + 1):
        if row == len(ids) or ids[row] != ids[start]:
            yield ids[start], rows.slice(start, row - start)
            start = row


def _decision(
    doc_id: str, finding: Finding, index: EvaluationIndex, config: DecontaminateConfig
) -> Iterator[dict[str, Any]]:
    name = index.targets["set"][finding.target]
    if name == CANARY_SET or finding.overlap < config.evaluation_sets[name].min_overlap:
        return
    yield {
        "doc_id": doc_id,
        "set": name,
        "item": index.targets["item"][finding.target],
        "field": index.targets["field"][finding.target],
        "overlap": finding.overlap,
        "probes": finding.probes,
        "spans": [place for span in finding.spans for place in span],
    }


def report_sets(unit: Unit, writer: PartWriter) -> None:
    """Step report: per set, items and documents found, items that only common text could show, and samples."""
    index = load_index(unit.storage, unit.arguments["index"])
    evidence = index.evidence(_column(unit, unit.inputs[:1], "probe"))
    decided = [row for part in unit.inputs[1:] for table in read_part(unit.storage, part) for row in table.to_pylist()]
    by_set: dict[str, list[dict[str, Any]]] = {name: [] for name in sorted(set(index.targets["set"]) - {CANARY_SET})}
    for row in decided:
        by_set[row["set"]].append(row)
    reports = [
        {"set": name, "report": json.dumps(_report(rows, name, index, evidence), sort_keys=True)}
        for name, rows in by_set.items()
    ]
    writer.write(pa.Table.from_pylist(reports, schema=REPORT_SCHEMA))


def _report(
    found: list[dict[str, Any]], name: str, index: EvaluationIndex, evidence: NDArray[np.int64]
) -> dict[str, Any]:
    columns = (index.targets[key] for key in ("set", "item", "field", "text"))
    own = [(row[1:], left > 0) for *row, left in zip(*columns, evidence, strict=True) if row[0] == name]
    previews = {(item, field): text for (item, field, text), _ in own}
    testable = {item for (item, _, _), has_evidence in own if has_evidence}
    best = sorted(found, key=lambda row: (-row["overlap"], -row["probes"], row["doc_id"], row["item"]))[:SAMPLES]
    return {
        "items_found": len({row["item"] for row in found}),
        "documents_found": len({row["doc_id"] for row in found}),
        "items_common": len({item for item, _ in previews} - testable),
        "samples": [
            {key: row[key] for key in ("doc_id", "item", "field", "overlap", "probes")}
            | {"text": previews[row["item"], row["field"]]}
            for row in best
        ],
    }


def clean_part(unit: Unit, writer: PartWriter) -> None:
    """Apply the decisions (input 1, where the stage is on for this source) to the documents of a part (input 0)."""
    config = unit.config
    assert isinstance(config, DecontaminateConfig)
    decisions = pa.concat_tables(
        [DECISION_SCHEMA.empty_table(), *(t for p in unit.inputs[1:] for t in read_part(unit.storage, p))]
    )
    by_document = {doc_id: rows.to_pylist() for doc_id, rows in _by_document(decisions)}
    for table in documents_of(unit, writer):
        keep = np.ones(table.num_rows, np.bool_)
        edited: dict[int, str] = {}
        for row, doc_id in enumerate(table["doc_id"].to_pylist()):
            if doc_id in by_document:
                keep[row], text = _judge_document(table.slice(row, 1), by_document[doc_id], config, writer)
                edited |= {row: text} if text is not None else {}
        writer.write(_with_texts(table, edited).filter(pa.array(keep)))


def _judge_document(
    document: pa.Table, found: list[dict[str, Any]], config: DecontaminateConfig, writer: PartWriter
) -> tuple[bool, str | None]:
    """(whether the document stays, its new text or None); the ledger row names the best match."""
    actions = {row["set"]: config.evaluation_sets[row["set"]].action for row in found}
    action = min(actions.values(), key=("drop", "cut", "report").index)
    if action == "report":
        return True, None
    acting = sorted(
        (row for row in found if actions[row["set"]] == action),
        key=lambda row: (-row["overlap"], row["set"], row["item"]),
    )
    best = acting[0]
    names = [f"{row['set']}:{row['item']}" for row in acting]
    facts = {
        "value": best["overlap"],
        "threshold": config.evaluation_sets[best["set"]].min_overlap,
        "matched_id": names[0],
        "detail": {
            "field": best["field"],
            "probes": best["probes"],
            "items": len(set(names)),
            "also": names[1:SAMPLES],
        },
    }
    doc_id, source = document["doc_id"][0].as_py(), document["source"][0].as_py()
    if action == "drop":
        writer.ledger.drop(doc_id, source, DROPPED, **facts)
        return False, None
    spans = [(start, end) for row in acting for start, end in zip(row["spans"][::2], row["spans"][1::2], strict=True)]
    text = cut_spans(document["text"][0].as_py(), spans, config.margin_chars)
    if len(text.strip()) < config.min_remaining_chars:
        writer.ledger.drop(doc_id, source, REMNANT, **facts)
        return False, None
    writer.ledger.edit(doc_id, source, CUT, **facts)
    return True, text


def cut_spans(text: str, spans: list[tuple[int, int]], margin_chars: int) -> str:
    """The text without the spans (UTF-8 bytes) and `margin_chars` characters around them.

    Cuts fall between words; what is left on both sides is joined by a line break.
    """
    data = text.encode()
    places = {place: 0 for span in spans for place in span}
    chars = 0
    last = 0
    for place in sorted(places):
        chars += len(data[last:place].decode())
        places[place], last = chars, place
    wide = merged([(max(0, places[a] - margin_chars), min(len(text), places[b] + margin_chars)) for a, b in spans])
    kept, begin = [], 0
    for start, end in wide:
        while start > begin and not text[start - 1].isspace():
            start -= 1
        while end < len(text) and not text[end].isspace():
            end += 1
        piece = text[begin:start].rstrip()  # empty where one cut reaches into the next
        kept.append(piece.lstrip() if begin else piece)
        begin = end
    kept.append(text[begin:].lstrip())
    return "\n".join(piece for piece in kept if piece)


def _with_texts(table: pa.Table, edited: dict[int, str]) -> pa.Table:
    if not edited:
        return table
    mask = np.zeros(table.num_rows, np.bool_)
    mask[list(edited)] = True
    texts = pc.replace_with_mask(table["text"].combine_chunks(), mask, pa.array(edited.values(), pa.large_string()))
    position = table.schema.get_field_index("text")
    return table.set_column(position, table.schema.field(position), texts)
