"""Keeps the documents that pass the rules, with the spans of the line rules cut out (stage "select").

Reads documents and their signals, whose doc_ids are compared row by row; writes the documents that pass. The rules
stand in rules.py and are judged by verdicts.py. A signal that is null (not applied) passes; the receipt
counts how often, by rule. Documents that a drop list names go first, where the rules are off too (drop_list.py).
Ledger: drop (reason; value and threshold; as detail the words of a URL, or the signals of a longer expression); edit
with reason `line_rules`, value = bytes cut, detail = what was cut.

    num_words 49 and gopher_quality.min_words 50 -> drop, reason "gopher_quality.min_words", value 49, threshold 50
"""

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tasks.config import for_source
from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import DataError
from tasks.guard_rail import WARNED_DOCUMENTS, Losses, losses_by_source
from tasks.kernels.buffers import text_array, text_buffers
from tasks.kernels.cuts import apply_cuts
from tasks.ledger import Ledger
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Receipt, Unit, documents_of, read_part
from tasks.select.drop_list import DROP_LIST, Listed, as_bytes, digests_of, leave_out, read_drop_lists
from tasks.select.rules import SelectConfig
from tasks.select.verdicts import first_failing, verdicts
from tasks.signal_table import CUT_SIGNALS

logger = logging.getLogger(__name__)

LINE_RULES = "line_rules"
WHAT_IF = "`basemill whatif RUN --set select.KEY=VALUE` says what other rules would keep"
GUARDED_DOCUMENTS = 1000  # smaller sources may lose any share: a handful of odd files is no accident


def select_documents(documents: Manifest, signals: Manifest, *, into: Workspace, config: SelectConfig) -> Manifest:
    """Documents that pass. Raises DataError when signals are of other documents, or when a source loses too much."""
    listed = read_drop_lists(into.storage, config.drop_lists)
    own = config.model_copy(update={"drop_lists": ()})  # what they hold counts, not where they lie
    dataset = into.dataset(
        "select", own, inputs={"documents": documents, "signals": signals}, module=__name__, schema=DOCUMENT_SCHEMA,
        conservation="documents", reasons=frozenset({*config.reasons, LINE_RULES, *([DROP_LIST] if listed else [])}),
        external={"drop_lists": digests_of(listed)} if listed else {},
    )  # fmt: skip
    if found := dataset.find():
        return found
    if len(documents.parts) != len(signals.parts):
        raise DataError(f"select: {len(documents.parts)} parts of documents, but {len(signals.parts)} of signals")
    with dataset.lease():
        lists = publish_drop_lists(into, listed)
        units = [
            dataset.unit(
                [part, measured, *lists.get(part.source or "", [])],
                source=part.source,
                config=for_source(own, part.source or ""),
            )
            for part, measured in zip(documents.parts, signals.parts, strict=True)
        ]
        receipts = dataset.compute(units, select_part)
        check_losses(receipts, config)
        counts = {
            "listed": sum(map(len, listed.values())),
            "dropped": sum(r.reasons.get(DROP_LIST, 0) for r in receipts),
        }
        return dataset.publish(receipts, extra={"drop_lists": counts} if listed else {})


def publish_drop_lists(into: Workspace, listed: Listed) -> dict[str, list[Part]]:
    """What is listed of each source as a file that the parts of that source read."""
    if not listed:
        return {}
    digests = {"drop_lists": digests_of(listed)}
    step = into.dataset("select.drop-lists", None, inputs={}, module="tasks.select.drop_list", external=digests)
    files = {f"{source}.jsonl": as_bytes(own) for source, own in listed.items()}
    manifest = step.find() or step.publish_files(files)
    return {part.key.removesuffix(".jsonl"): [replace(part, stage=manifest.reference)] for part in manifest.parts}


def select_part(unit: Unit, writer: PartWriter) -> None:
    """One part: documents and signals side by side, row group by row group."""
    config = unit.config
    assert isinstance(config, SelectConfig)
    signals, listed = read_part(unit.storage, unit.inputs[1]), _listed(unit)
    not_applied: Counter[str] = Counter()
    for table in documents_of(unit, writer):
        measured = next(signals, None)
        if measured is None or not table["doc_id"].equals(measured["doc_id"]):
            raise DataError(f"select: {_first_difference(table, measured)} ({unit.inputs[0].path})")
        if listed:
            table, measured = leave_out(table, measured, listed, writer.ledger)
        writer.write(select_rows(table, measured, config, writer.ledger, not_applied) if config.enabled else table)
    if next(signals, None) is not None:
        raise DataError(f"select: more signals than documents in {unit.inputs[0].path}")
    if not_applied:
        writer.extra["not_applied"] = dict(sorted(not_applied.items()))


def _listed(unit: Unit) -> dict[str, dict[str, Any]]:
    files = [f"{part.stage}/{part.key}" for part in unit.inputs[2:]]
    rows = (orjson.loads(line) for file in files for line in unit.storage.read_bytes(file).splitlines())
    return {row.pop("doc_id"): row for row in rows}


def select_rows(
    table: pa.Table, signals: pa.Table, config: SelectConfig, ledger: Ledger, not_applied: Counter[str]
) -> pa.Table:
    """The documents that pass, their text cut; every other one and every cut goes into the ledger."""
    found = verdicts(signals, config)
    for verdict in found:
        if missing := int(verdict.not_applied.sum()):
            not_applied[verdict.reason] += missing
    first = first_failing(found, table.num_rows)
    for row in np.flatnonzero(first >= 0):
        verdict = found[first[row]]
        has_threshold = not np.isnan(verdict.thresholds[row])
        facts = {"value": verdict.values[row], "threshold": verdict.thresholds[row]} if has_threshold else {}
        detail = {name: signals[name][row].as_py() for name in verdict.quoted} or None
        ledger.drop(table["doc_id"][row].as_py(), table["source"][row].as_py(), verdict.reason, detail=detail, **facts)
    passing = first < 0
    return cut_texts(table.filter(passing), signals.filter(passing), ledger)


def cut_texts(table: pa.Table, signals: pa.Table, ledger: Ledger) -> pa.Table:
    """The documents without their cut spans; one ledger row per document that was cut."""
    spans = signals["cut_spans"].combine_chunks()
    values = np.array(spans.flatten()).reshape(-1, 2)
    if len(values) == 0:
        return table
    bounds = np.concatenate([[0], np.cumsum(pc.list_value_length(spans))]) // 2
    data, offsets = apply_cuts(*text_buffers(table["text"]), bounds, values)
    for row in np.flatnonzero(np.diff(bounds)):
        cut = values[bounds[row] : bounds[row + 1]]
        counts = {name.removeprefix("num_cut_"): signals[name][row].as_py() for name in CUT_SIGNALS}
        ledger.edit(
            table["doc_id"][row].as_py(), table["source"][row].as_py(), LINE_RULES,
            value=int((cut[:, 1] - cut[:, 0]).sum()), detail={name: count for name, count in counts.items() if count},
        )  # fmt: skip
    position = table.schema.get_field_index("text")
    return table.set_column(position, table.schema.field(position), text_array(data, offsets))


def loses_too_much(documents: int, dropped: int, config: SelectConfig) -> bool:
    """Whether a source of so many documents may not lose so many."""
    return documents >= GUARDED_DOCUMENTS and dropped > config.max_drop_ratio * documents


def check_losses(receipts: list[Receipt], config: SelectConfig) -> None:
    """The guard rail: raises DataError, with the reasons by number, when a source loses more than the config allows, or
    when none is left of 20 documents or more. A source that ends empty beside others is a warning."""
    found = losses_by_source(receipts)
    for source, own in found.items():
        own_config = for_source(config, source)
        if loses_too_much(own.documents, own.dropped, own_config):
            raise DataError(
                f"select: {own.dropped} of {own.documents} documents of source {source!r} would be dropped "
                f"({_top_reasons(own, 5)}), more than max_drop_ratio {own_config.max_drop_ratio}; set "
                f"select.by_source.{source}.max_drop_ratio: 1 if that is right"
            )
    emptied = {source: own for source, own in found.items() if own.documents and own.dropped == own.documents}
    documents, dropped = (sum(getattr(own, name) for own in found.values()) for name in ("documents", "dropped"))
    if documents == dropped >= WARNED_DOCUMENTS:
        lost = "; ".join(f"{source} {own.documents} ({_top_reasons(own, 1)})" for source, own in emptied.items())
        raise DataError(f"select: every document of every source would be dropped: {lost}. {WHAT_IF}")
    for source, own in emptied.items():
        if own.documents >= WARNED_DOCUMENTS:
            logger.warning(
                "select: all %d documents of source %s dropped (%s). %s",
                own.documents, source, _top_reasons(own, 3), WHAT_IF,
            )  # fmt: skip


def _top_reasons(own: Losses, number: int) -> str:
    drops = Counter({reason: count for reason, count in own.reasons.items() if reason != LINE_RULES})
    return ", ".join(f"{reason} {count}" for reason, count in drops.most_common(number))


def _first_difference(table: pa.Table, measured: pa.Table | None) -> str:
    if measured is None:
        return "fewer signals than documents"
    pairs = zip(table["doc_id"].to_pylist(), measured["doc_id"].to_pylist(), strict=False)
    different = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if different is None:
        return f"{table.num_rows} documents in a row group, but {measured.num_rows} rows of signals"
    return f"document {different[0]} meets the signals of {different[1]}"
