"""Steps hits, common and decisions: which items which document holds, and how sure that is.

.hits       per part: which probes stand in which document, and where
.common     probes in more than `max_documents` documents of the whole corpus: no evidence (GPT-3: 10)
.decisions  per part: items of which a document holds at least `min_overlap` of the probes that are evidence
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.decontaminate.decisions import COMMON_SCHEMA, DECISION_SCHEMA, HITS_SCHEMA, by_document
from tasks.decontaminate.evaluation_sets import CANARY_SET
from tasks.decontaminate.index import EvaluationIndex, Finding, load_index
from tasks.decontaminate.settings import DecontaminateConfig
from tasks.parts import Part, PartWriter, Unit, documents_of, read_part


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
    common = common_probes(unit, unit.inputs[1:])
    evidence = index.evidence(common)
    hits = pa.concat_tables([HITS_SCHEMA.empty_table(), *read_part(unit.storage, unit.inputs[0])])
    hits = hits.filter(pa.array(~np.isin(hits["probe"].to_numpy(), common)))
    rows: list[dict[str, Any]] = []
    for doc_id, own in by_document(hits):
        places = np.stack([own["start"].to_numpy(), own["end"].to_numpy()], axis=1)
        for finding in index.judge(own["probe"].to_numpy(), places, evidence):
            rows.extend(_decision(doc_id, finding, index, config))
    writer.write(pa.Table.from_pylist(rows, schema=DECISION_SCHEMA))


def common_probes(unit: Unit, parts: Sequence[Part]) -> NDArray[np.uint64]:
    """The probes of step common."""
    pieces = [table["probe"].to_numpy() for part in parts for table in read_part(unit.storage, part, ["probe"])]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)


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
