"""Steps `dedup-near.bands` (exchange), `.edges` and `.components`: which documents may be near duplicates of which.

A signature is cut into 14 bands of 8 values; documents with an equal band share a bucket. A pair of similarity s
shares one with probability 1 - (1 - s^8)^14: 0.57 at 0.7, 0.92 at 0.8, 0.9996 at 0.9. A bucket becomes a star: an
edge from its first node to every other, which gives the same components as all pairs do, whichever node is the
centre. Stars are drawn within a part before the exchange already: a bucket that a third of all documents share sends
one row per part. Documents of an index (index.py) have edges with new documents only: a bucket without a new one makes
none.

A node is (document part << 44) | 44 bits of the doc_id's XXH64: eight bytes, sorted by part. Two documents of one
part with the same node only have their components joined, and every pair is verified later. Components hold 16 bytes
per document that has an edge, and the edges of one part at a time.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset
from tasks.dedup_near.index import IndexPart, kept_ids
from tasks.dedup_near.signatures import signature_matrix
from tasks.errors import ConfigError
from tasks.exchange import (
    check_exchange,
    count,
    num_partitions,
    partition_pieces,
    partition_units,
    remove_parts,
    spread,
    write_partitions,
)
from tasks.kernels.components import join, settle
from tasks.kernels.minima import NUM_PERMUTATIONS
from tasks.kernels.xxhash64 import hash_values
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, documents_of, read_part

BAND_ROWS = 8
NUM_BANDS = NUM_PERMUTATIONS // BAND_ROWS  # 14
BAND_BYTES = 4 * BAND_ROWS
PART_SHIFT = 44  # bits of a node that tell documents of one part apart
MAX_PARTS = 1 << (64 - PART_SHIFT)
ROW_BYTES = 48  # of an exchanged row while its partition is sorted: key, node, order, sorted key, first node
WRITTEN_ROWS = 1 << 19
BUFFERED_NODES = 1 << 20

BAND_SCHEMA = pa.schema(  # node == linked: the node's band has this key; else: an edge found within a part
    [pa.field(name, pa.uint64(), nullable=False) for name in ("key", "node", "linked")]
)
EDGE_SCHEMA = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in ("node", "linked")])
COMPONENT_SCHEMA = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in ("node", "component")])


def nodes_of(doc_ids: pa.ChunkedArray, part: int) -> np.ndarray:
    """The nodes of documents of one part, uint64."""
    return (hash_values(doc_ids) >> np.uint64(64 - PART_SHIFT)) | np.uint64(part << PART_SHIFT)


def connect(dataset: Dataset, signatures: Manifest, index: Sequence[IndexPart]) -> Manifest:
    """The components of documents that share buckets; extra: members, components, largest."""
    if len(signatures.parts) + len(index) > MAX_PARTS:
        raise ConfigError(f"{len(signatures.parts)} parts, but near dedup takes {MAX_PARTS}: raise ingest.part_bytes")
    step = _step(dataset, "components", COMPONENT_SCHEMA, signatures, index)
    if found := step.find():
        return found
    edges = _edges(dataset, signatures, index)
    [receipt] = step.compute([step.unit(edges.parts)], connect_edges)
    return step.publish([receipt], extra=receipt.extra)


def _step(dataset: Dataset, name: str, schema: pa.Schema, signatures: Manifest, index: Sequence[IndexPart]) -> Dataset:
    known = [[old.signatures.digest, old.kept.digest] for old in index]
    external = {"index": known} if known else {}
    inputs = {"signatures": signatures}
    return dataset.step(name, schema, inputs=inputs, config=None, module=__name__, external=external)


def _edges(dataset: Dataset, signatures: Manifest, index: Sequence[IndexPart]) -> Manifest:
    step = _step(dataset, "edges", EDGE_SCHEMA, signatures, index)
    if found := step.find():
        return found
    new = len(signatures.parts)
    rows = signatures.totals["rows_out"] + sum(old.kept.rows or 0 for old in index)
    partitions = num_partitions(rows * NUM_BANDS * ROW_BYTES)
    bands = dataset.step("bands", BAND_SCHEMA, inputs={}, config=None, module=__name__)
    facts = {"partitions": partitions, "for": dataset.fingerprint}
    inputs = [*((part,) for part in signatures.parts), *((old.signatures, old.kept) for old in index)]
    units = [bands.unit(parts, arguments={"part": number, **facts}) for number, parts in enumerate(inputs)]
    sent = bands.compute(units, send_bands)
    parts = [receipt.part for receipt in sent]
    received = step.compute(partition_units(step, parts, partitions, new_parts=new), link_buckets)
    check_exchange(step.stage, sent, received)
    manifest = step.publish(received)
    remove_parts(dataset.storage, sent)
    return manifest


def send_bands(unit: Unit, writer: PartWriter) -> None:
    """Part function: signatures -> the exchange: one row per bucket of this part, and the edges within the part.

    Of an index: (signatures, documents kept) -> every bucket of every document kept, and no edge.
    """
    nodes, keys = [np.empty(0, np.uint64)], [np.empty((0, NUM_BANDS), np.uint64)]
    kept = kept_ids(unit.storage, unit.inputs[1]) if len(unit.inputs) > 1 else None
    for table in documents_of(unit, writer):
        signed = table.filter(pc.is_valid(table["signature"]))
        if kept is not None:
            signed = signed.filter(pc.is_in(signed["doc_id"], value_set=kept))
        nodes.append(nodes_of(signed["doc_id"], int(unit.arguments["part"])))
        keys.append(band_keys(signature_matrix(signed["signature"])))
    flat_keys, flat_nodes = np.concatenate(keys).ravel(), np.repeat(np.concatenate(nodes), NUM_BANDS)
    first = flat_nodes if kept is not None else _first_of_bucket(flat_keys, flat_nodes)
    edges = _unique_pairs(first, flat_nodes)
    heads = flat_nodes == first
    columns = [
        np.concatenate([flat_keys[heads], spread(edges[0])]),
        np.concatenate([flat_nodes[heads], edges[0]]),
        np.concatenate([flat_nodes[heads], edges[1]]),
    ]
    write_partitions(writer, pa.table(columns, schema=BAND_SCHEMA), columns[0])


def band_keys(signatures: np.ndarray) -> np.ndarray:
    """A hash of each band that differs between bands, uint64 [documents, NUM_BANDS]."""
    if not len(signatures):
        return np.empty((0, NUM_BANDS), np.uint64)
    data = np.ascontiguousarray(signatures)
    bounds = np.arange(len(signatures) * NUM_BANDS + 1, dtype=np.int64) * BAND_BYTES
    values = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return spread(hash_values(values).reshape(-1, NUM_BANDS) + np.arange(NUM_BANDS, dtype=np.uint64))


def link_buckets(unit: Unit, writer: PartWriter) -> None:
    """Part function: one partition of the bands -> edges, each once, sorted."""
    keys, nodes, ones, others = ([np.empty(0, np.uint64)] for _ in range(4))
    for table in partition_pieces(unit):
        count(writer, table)
        key, node, linked = (table[name].to_numpy() for name in BAND_SCHEMA.names)
        is_head = node == linked
        keys.append(key[is_head])
        nodes.append(node[is_head])
        ones.append(node[~is_head])
        others.append(linked[~is_head])
    all_nodes = np.concatenate(nodes)
    first = _first_of_bucket(np.concatenate(keys), all_nodes)
    is_new = first < np.uint64(int(unit.arguments["new_parts"]) << PART_SHIFT)  # parts of an index come after those
    linked = (first != all_nodes) & is_new
    pairs = _unique_pairs(np.concatenate([*ones, first[linked]]), np.concatenate([*others, all_nodes[linked]]))
    table = pa.table(pairs, schema=EDGE_SCHEMA)
    for start in range(0, table.num_rows, WRITTEN_ROWS):
        writer.write_row_group(table.slice(start, WRITTEN_ROWS))


def _first_of_bucket(keys: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Of each row the smallest node with the same key. Most rows are alone with theirs."""
    first = nodes.copy()
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    rows, ordered = order[shared], ordered[shared]
    if len(rows):
        begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        first[rows] = np.repeat(np.minimum.reduceat(nodes[rows], begins), np.diff(np.append(begins, len(rows))))
    return first


def _unique_pairs(ones: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of two different nodes, sorted."""
    differs = ones != others
    ones, others = ones[differs], others[differs]
    order = np.lexsort((others, ones))
    ones, others = ones[order], others[order]
    fresh = np.ones(len(ones), np.bool_)
    fresh[1:] = (ones[1:] != ones[:-1]) | (others[1:] != others[:-1])
    return ones[fresh], others[fresh]


def connect_edges(unit: Unit, writer: PartWriter) -> None:
    """Part function, one for all: edges -> (node, component), sorted by node; a component is named by its first
    node."""
    nodes = _all_nodes(unit)
    parents = np.arange(len(nodes), dtype=np.int32 if len(nodes) < 1 << 31 else np.int64)
    for ones, others in _edge_pieces(unit):
        join(parents, np.searchsorted(nodes, ones), np.searchsorted(nodes, others))
    sizes = settle(parents)
    for start in range(0, len(nodes), WRITTEN_ROWS):
        rows = slice(start, start + WRITTEN_ROWS)
        writer.write_row_group(pa.table([nodes[rows], nodes[parents[rows]]], schema=COMPONENT_SCHEMA))
    largest = int(sizes.max()) if len(sizes) else 0
    writer.extra = {"members": len(nodes), "components": int((sizes > 0).sum()), "largest": largest}


def _edge_pieces(unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for part in unit.inputs:
        for table in read_part(unit.storage, part):
            yield table["node"].to_numpy(), table["linked"].to_numpy()


def _all_nodes(unit: Unit) -> np.ndarray:
    """Every node that has an edge, sorted. Merged as often as what waits has the size of what is there."""
    nodes = np.empty(0, np.uint64)
    waiting: list[np.ndarray] = []
    held = 0
    for ones, others in _edge_pieces(unit):
        waiting.append(np.unique(np.concatenate([ones, others])))
        held += len(waiting[-1])
        if held > max(BUFFERED_NODES, len(nodes) // 4):
            nodes, waiting, held = np.unique(np.concatenate([nodes, *waiting])), [], 0
    return np.unique(np.concatenate([nodes, *waiting]))
