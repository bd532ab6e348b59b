"""Step report: per evaluation set, which items were found in which documents, and how sure that is."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.decontaminate.decisions import REPORT_SCHEMA
from tasks.decontaminate.evaluation_sets import CANARY_SET
from tasks.decontaminate.index import EvaluationIndex, load_index
from tasks.decontaminate.search import common_probes
from tasks.parts import PartWriter, Unit, read_part

SAMPLES = 5  # documents named per set; the dataset of step decisions names all
COLUMNS = ["doc_id", "set", "item", "field", "overlap", "probes"]


@dataclass
class Findings:
    """What was found of one set. Memory: a number per item."""

    best: dict[str, float] = field(default_factory=dict)  # per item, the largest share that one document holds
    documents: Counter[str] = field(default_factory=Counter)  # per source
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rows: list[dict[str, Any]], source: str) -> None:
        """Add what one part's documents hold; a document lies in one part."""
        for row in rows:
            self.best[row["item"]] = max(row["overlap"], self.best.get(row["item"], 0.0))
        self.documents[source] += len({row["doc_id"] for row in rows})
        order = sorted(
            [*self.samples, *rows], key=lambda row: (-row["overlap"], -row["probes"], row["doc_id"], row["item"])
        )
        self.samples = order[:SAMPLES]


def report_sets(unit: Unit, writer: PartWriter) -> None:
    """Step report: input 0 is the common probes, the others are the decisions of each part."""
    index = load_index(unit.storage, unit.arguments["index"])
    evidence = index.evidence(common_probes(unit, unit.inputs[:1]))
    found = {name: Findings() for name in sorted(set(index.targets["set"]) - {CANARY_SET})}
    for part in unit.inputs[1:]:
        rows = [row for table in read_part(unit.storage, part, COLUMNS) for row in table.to_pylist()]
        for name in {row["set"] for row in rows}:
            found[name].add([row for row in rows if row["set"] == name], part.source or "")
    reports = [
        {"set": name, "report": json.dumps(_report(own, name, index, evidence), sort_keys=True)}
        for name, own in found.items()
    ]
    writer.write(pa.Table.from_pylist(reports, schema=REPORT_SCHEMA))


def _report(found: Findings, name: str, index: EvaluationIndex, evidence: NDArray[np.int64]) -> dict[str, Any]:
    columns = (index.targets[key] for key in ("set", "item", "field", "text"))
    own = [(row[1:], left > 0) for *row, left in zip(*columns, evidence, strict=True) if row[0] == name]
    previews = {(item, field): text for (item, field, text), _ in own}
    testable = {item for (item, _, _), has_evidence in own if has_evidence}
    return {
        "items_found": len(found.best),
        "items_by_overlap": dict(sorted(Counter(f"{int(share * 10) / 10}" for share in found.best.values()).items())),
        "items_common": len({item for item, _ in previews} - testable),
        "documents_found": found.documents.total(),
        "documents_by_source": dict(sorted(found.documents.items())),
        "samples": [
            {key: row[key] for key in COLUMNS if key != "set"} | {"text": previews[row["item"], row["field"]]}
            for row in found.samples
        ],
    }
