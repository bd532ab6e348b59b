"""Takes text of evaluation sets out of documents (stage "decontaminate").

Reads documents and the sets' files; writes the documents without those that hold items (action drop), with the spans
cut (cut), or as they are (report). Steps, each a dataset of its own:

    .index      what is looked for (index.py)
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
from collections.abc import Iterator
from typing import Any

from tasks.config import for_source
from tasks.dataset import Dataset, Workspace
from tasks.decontaminate.apply import REASONS, clean_part
from tasks.decontaminate.decisions import COMMON_SCHEMA, DECISION_SCHEMA, HITS_SCHEMA, REPORT_SCHEMA
from tasks.decontaminate.evaluation_sets import read_items, read_set_file
from tasks.decontaminate.settings import DecontaminateConfig
from tasks.documents import DOCUMENT_SCHEMA
from tasks.guard_rail import check_dropped_share
from tasks.manifest import Manifest
from tasks.parts import Part, PartFunction, Unit, read_part

__all__ = ["DecontaminateConfig", "drop_evaluation_text"]


def drop_evaluation_text(documents: Manifest, *, into: Workspace, config: DecontaminateConfig) -> Manifest:
    """Documents without text of the evaluation sets.

    `extra`: evaluation_sets, the report per set; findings, the dataset that names every item found and its document.

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
        decisions, extra = _decide(dataset, documents, config, files) if files else ({}, {"evaluation_sets": {}})
        units = [
            dataset.unit(
                [part, *([decisions[part.key]] if part.key in decisions else [])],
                source=part.source,
                config=_of(dataset, part),
            )
            for part in documents.parts
        ]
        receipts = dataset.compute(units, clean_part)
        limits = {part.source or "": _of(dataset, part).max_dropped_ratio for part in documents.parts}
        check_dropped_share(dataset.stage, receipts, limits)
        return dataset.publish(receipts, extra=extra)


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
    """(decisions per key of a part of documents, what the manifest says of them)."""
    from tasks.decontaminate.report import report_sets  # late, as below: numba, which a plan does not need
    from tasks.decontaminate.search import count_documents, decide_part, find_hits

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
    by_key = {part.key: own for part, own in zip(parts, decided.parts, strict=True)}
    return by_key, {"evaluation_sets": per_set, "findings": decided.reference}


def _publish_index(dataset: Dataset, config: DecontaminateConfig, files: dict[str, bytes]) -> Manifest:
    keys = {
        name: set_.model_dump(include={"format", "question", "answer", "answer_index", "passage", "id"})
        for name, set_ in config.evaluation_sets.items()
    }
    step = dataset.into.dataset(
        "decontaminate.index", None, inputs={}, module="tasks.decontaminate.index",
        external={"sets": dict(dataset.external), "keys": keys},
    )  # fmt: skip
    if found := step.find():
        return found
    from tasks.decontaminate.index import build_index

    items = {name: read_items(data, name, config.evaluation_sets[name]) for name, data in files.items()}
    tables, counts = build_index(items)
    return step.publish_files(tables, extra={"sets": counts})


def _compute(step: Dataset, units: list[Unit], function: PartFunction) -> Manifest:
    return step.find() or step.publish(step.compute(units, function))


def _rows(dataset: Dataset, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for part in manifest.parts:
        for table in read_part(dataset.storage, part):
            yield from table.to_pylist()
