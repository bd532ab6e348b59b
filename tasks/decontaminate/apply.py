"""Applies the decisions to the documents: those that hold items are dropped, cut or left, as their sets say."""

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.decontaminate.decisions import DECISION_SCHEMA, by_document
from tasks.decontaminate.settings import DecontaminateConfig
from tasks.documents import with_texts
from tasks.parts import PartWriter, Unit, documents_of, read_part
from tasks.spans import cut_spans

DROPPED, CUT, REMNANT = "evaluation_text", "evaluation_span_cut", "evaluation_remnant"
REASONS = frozenset([DROPPED, CUT, REMNANT])
SAMPLES = 5  # items named per document in the ledger


def clean_part(unit: Unit, writer: PartWriter) -> None:
    """Apply the decisions (input 1, where the stage is on for this source) to the documents of a part (input 0)."""
    config = unit.config
    assert isinstance(config, DecontaminateConfig)
    decisions = pa.concat_tables(
        [DECISION_SCHEMA.empty_table(), *(t for p in unit.inputs[1:] for t in read_part(unit.storage, p))]
    )
    decided = {doc_id: rows.to_pylist() for doc_id, rows in by_document(decisions)}
    for table in documents_of(unit, writer):
        keep = np.ones(table.num_rows, np.bool_)
        edited: dict[int, str] = {}
        for row, doc_id in enumerate(table["doc_id"].to_pylist()):
            if doc_id in decided:
                keep[row], text = _judge_document(table.slice(row, 1), decided[doc_id], config, writer)
                edited |= {row: text} if text is not None else {}
        writer.write(with_texts(table, edited).filter(pa.array(keep)))


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
