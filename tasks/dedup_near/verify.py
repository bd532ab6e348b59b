"""Steps `dedup-near.members` (exchange) and `.pairs`: what the candidates really have in common.

The documents that have an edge send their shingle hashes to the partition of their component. There each component is
walked in keeper order: a document goes if and only if its true Jaccard with one that stays is at least the threshold.
The pairs name both, the similarity, and the document part that the decision belongs to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset
from tasks.dedup_near.candidates import COMPONENT_SCHEMA, PART_SHIFT, nodes_of
from tasks.dedup_near.clusters import joined, summary_of
from tasks.dedup_near.index import IndexPart
from tasks.exchange import (
    check_exchange,
    num_partitions,
    partition_units,
    read_partition,
    remove_parts,
    rows_between,
    spread,
    write_partitions,
)
from tasks.keepers import (
    INDEX_PRIORITY,
    KEEPER_FIELDS,
    KEEPER_ORDER,
    KEPT,
    PROTECTED_PRIORITY,
    VERDICT_SCHEMA,
    dates_of,
    lengths_of,
    write_verdicts,
)
from tasks.kernels.buffers import text_buffers
from tasks.kernels.jaccard import walk_groups
from tasks.kernels.shingles import shingle_sets
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Unit, read_part

REASON = "near_duplicate"
MATCHED, CLUSTERS = "matched_index", "clusters"
# Of an exchanged row while its partition is judged (measured: 1,060 at 36 shingles): pieces, one array, ids as objects
MEMBER_BYTES, SHINGLE_COPIES = 480, 2
SHINGLE_BYTES = 8

MEMBER_SCHEMA = pa.schema(
    [
        pa.field("component", pa.uint64(), nullable=False),
        *KEEPER_FIELDS,
        pa.field("shingles", pa.large_binary(), nullable=False),  # distinct hashes, ascending, uint64
    ]
)


def verify_pairs(
    dataset: Dataset,
    documents: Manifest,
    components: Manifest,
    *,
    index: Sequence[IndexPart],
    mean_shingles: float,
    rules: Mapping[str, Any],
) -> Manifest:
    """The verified pairs (VERDICT_SCHEMA): every document that goes, and the one kept instead; and those kept (KEPT).

    rules: threshold, and priorities by source.
    extra: matched_index, the documents that go for one of the index, and clusters (clusters.py).
    """
    facts = {**rules, "index": [old.kept.digest for old in index]}
    inputs = {"documents": documents, "components": components}
    step = dataset.step("pairs", VERDICT_SCHEMA, inputs=inputs, config=None, module=__name__, external=facts)
    if found := step.find():
        return found
    members = components.extra["members"]
    partitions = num_partitions(int(members * (MEMBER_BYTES + SHINGLE_COPIES * SHINGLE_BYTES * mean_shingles)))
    exchange = dataset.step("members", MEMBER_SCHEMA, inputs={}, config=None, module=__name__)
    priorities = [rules["priorities"][str(part.source)] for part in documents.parts] + [INDEX_PRIORITY] * len(index)
    units = [
        exchange.unit(
            (part, *components.parts),
            source=part.source,
            arguments={
                "part": number, "partitions": partitions, "priority": priority, "for": dataset.fingerprint
            },
        )
        for number, (part, priority) in enumerate(
            zip([*documents.parts, *(old.kept for old in index)], priorities, strict=True)
        )
    ]  # fmt: skip
    sent = exchange.compute(units, send_members)
    parts = [receipt.part for receipt in sent]
    received = step.compute(partition_units(step, parts, partitions, threshold=rules["threshold"]), judge_members)
    check_exchange(step.stage, sent, received)
    judged = [receipt.extra for receipt in received if CLUSTERS in receipt.extra]
    found_facts = {
        MATCHED: sum(extra[MATCHED] for extra in judged),
        CLUSTERS: joined([extra[CLUSTERS] for extra in judged]),
    }
    manifest = step.publish(received, extra=found_facts)
    remove_parts(dataset.storage, sent)
    return manifest


def send_members(unit: Unit, writer: PartWriter) -> None:
    """Part function: (documents, components) -> the exchange: the documents that have an edge, with their shingles."""
    number = int(unit.arguments["part"])
    nodes, components = _components_of(unit, unit.inputs[1], number)
    if not len(nodes):
        return
    found = [MEMBER_SCHEMA.empty_table()]
    part, columns = unit.inputs[0], ["doc_id", "text", "timestamp"]
    ids = enumerate(read_part(unit.storage, part, ["doc_id"]))
    wanted = [group for group, table in ids if np.isin(nodes_of(table["doc_id"], number), nodes).any()]
    for table in read_part(unit.storage, part, columns, wanted):
        own = nodes_of(table["doc_id"], number)
        places = np.minimum(np.searchsorted(nodes, own), len(nodes) - 1)
        is_member = nodes[places] == own
        if is_member.any():
            members = table.filter(pa.array(is_member))
            found.append(_member_rows(members, components[places[is_member]], unit.arguments))
    rows = pa.concat_tables(found)
    write_partitions(writer, rows, spread(rows["component"].to_numpy()))


def _member_rows(table: pa.Table, components: np.ndarray, arguments: Mapping[str, int]) -> pa.Table:
    hashes, bounds = shingle_sets(table["text"])
    buffers = [None, pa.py_buffer(bounds * SHINGLE_BYTES), pa.py_buffer(hashes)]
    columns = {
        "component": components,
        "doc_id": table["doc_id"],
        "part": np.full(table.num_rows, arguments["part"], np.int32),
        "priority": np.full(table.num_rows, arguments["priority"], np.int64),
        "length": lengths_of(table["text"]),
        "date": dates_of(table["timestamp"]),
        "shingles": pa.Array.from_buffers(pa.large_binary(), table.num_rows, buffers),
    }
    return pa.table(columns, schema=MEMBER_SCHEMA)


def _components_of(unit: Unit, part: Part, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(nodes, components) of one document part, sorted by node; reads only the row groups that can hold some."""
    low, high = number << PART_SHIFT, (number + 1) << PART_SHIFT
    table = pa.concat_tables([COMPONENT_SCHEMA.empty_table(), *rows_between(unit.storage, part, low, high)])
    nodes, components = table["node"].to_numpy(), table["component"].to_numpy()
    own = nodes >> np.uint64(PART_SHIFT) == number
    return nodes[own], components[own]


def judge_members(unit: Unit, writer: PartWriter) -> None:
    """Part function: one partition of the members -> verdicts on those that go."""
    table = read_partition(unit, writer)
    if table is None:
        return
    facts = table.drop_columns(["shingles"]).combine_chunks()
    order = pc.sort_indices(facts, sort_keys=[("component", "ascending"), *KEEPER_ORDER]).to_numpy().astype(np.int64)
    components = facts["component"].to_numpy()[order]
    starts = np.concatenate([[0], np.flatnonzero(components[1:] != components[:-1]) + 1, [len(order)]])
    data, bounds = text_buffers(table["shingles"])
    hashes = data[: len(data) // SHINGLE_BYTES * SHINGLE_BYTES].view(np.uint64)
    priority = facts["priority"].to_numpy()
    sets, stays = (hashes, bounds // SHINGLE_BYTES), priority >= PROTECTED_PRIORITY
    matched, values = walk_groups(sets, order, starts, stays, float(unit.arguments["threshold"]))
    gone = np.flatnonzero(matched >= 0)
    writer.extra[CLUSTERS] = summary_of(facts, gone, matched[gone])
    dropped, kept = facts.take(pa.array(gone)), facts["doc_id"].take(pa.array(matched[gone]))
    writer.extra[MATCHED] = int((priority[matched[gone]] == INDEX_PRIORITY).sum())
    columns = [dropped["part"], dropped["doc_id"], pa.array([REASON] * len(gone), pa.string()), kept, values[gone]]
    pairs = pa.table(columns, schema=VERDICT_SCHEMA)
    write_verdicts(writer, pa.concat_tables([pairs, _sizes_of(facts, matched[gone])]))


def _sizes_of(facts: pa.Table, kept: np.ndarray) -> pa.Table:
    """A verdict on each document that was kept instead of others, those of an index left out: they are not written."""
    rows, counts = np.unique(kept, return_counts=True)
    is_new = facts["priority"].to_numpy()[rows] != INDEX_PRIORITY
    own, sizes = facts.take(pa.array(rows[is_new])), counts[is_new] + 1.0
    reasons = pa.array([KEPT] * len(sizes), pa.string())
    return pa.table([own["part"], own["doc_id"], reasons, own["doc_id"], sizes], schema=VERDICT_SCHEMA)
