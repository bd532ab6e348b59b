"""Rows of packs as batches: random access by position, one prefetch thread, a bounded cache of row groups.

Reads Parquet packs with `input_ids` (fixed-size list), `document_starts`, `num_tokens` in row groups of 256 rows. The
target of a token is the next id of the same document, else IGNORED: the last token of a document, padding and the first
token of what follows never have one, so bos, which begins a document, is never a target. Example: ids
[bos a b bos c pad], starts [0, 3], 5 tokens -> targets [a b - c - -].

The loader's whole state is the clock and the next position; every rank takes its slice of each global batch.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from torch import Tensor

from model.config import PhaseRun
from model.job import CACHE_BYTES
from model.loss import IGNORED
from model.order import DataOrder, Ints, Pack, next_positions
from model.schedule import Events, StepPlan, plan_phase
from model.store import Store

COLUMNS = ["input_ids", "document_starts", "num_tokens"]
OPEN_FILES = 64  # footers kept: opening a file on S3 costs two requests
PREFETCHED_STEPS = 2


@dataclass(frozen=True)
class Batch:
    """Rows of one rank: ids and targets (B, T) int64 on the CPU, and where documents begin in each row."""

    ids_BT: Tensor
    targets_BT: Tensor
    document_starts: list[list[int]]

    @property
    def num_targets(self) -> int:
        """Tokens that have a target."""
        return int((self.targets_BT != IGNORED).sum())

    def micro_batches(self, rows: int) -> Iterator["Batch"]:
        """Pieces of at most `rows` rows."""
        for start in range(0, len(self.ids_BT), rows):
            piece = slice(start, start + rows)
            yield Batch(self.ids_BT[piece], self.targets_BT[piece], self.document_starts[piece])


@dataclass(frozen=True)
class StepBatch:
    """One step: its plan, the half-open range of positions that it passes, and this rank's rows."""

    plan: StepPlan
    position_from: int
    position_to: int
    batch: Batch


class RowGroup(NamedTuple):
    """A decoded row group."""

    ids: npt.NDArray[Any]  # (rows, T)
    starts: list[list[int]]
    num_tokens: Ints

    @property
    def nbytes(self) -> int:
        """Memory held; a list entry costs about 8 bytes and its small int is shared."""
        return self.ids.nbytes + 72 * len(self.starts) + 8 * sum(map(len, self.starts))


class PackReader:
    """Reads single rows of packs; holds the last row groups that fit into `cache_bytes`. Used by one thread."""

    def __init__(self, store: Store, order: DataOrder, cache_bytes: int = CACHE_BYTES) -> None:
        self.store, self.order, self.cache_bytes = store, order, cache_bytes
        self._groups: OrderedDict[tuple[int, int], RowGroup] = OrderedDict()
        self._files: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._held_bytes = 0

    def read(self, positions: Ints) -> Batch:
        """The rows at these positions, in this order."""
        located = self.order.locate(positions)
        rows = [
            (self._group(source, group), offset)
            for source, group, offset in zip(
                located.source.tolist(), located.group.tolist(), located.offset.tolist(), strict=True
            )
        ]
        ids = np.stack([group.ids[offset] for group, offset in rows]).astype(np.int64)
        starts = [group.starts[offset] for group, offset in rows]
        num_tokens = np.array([group.num_tokens[offset] for group, offset in rows])
        return Batch(torch.from_numpy(ids), torch.from_numpy(targets_of(ids, starts, num_tokens)), starts)

    def _group(self, source: int, group: int) -> RowGroup:
        key = (source, group)
        if key not in self._groups:
            self._groups[key] = loaded = self._load(self.order.packs[source], group)
            self._held_bytes += loaded.nbytes
            while self._held_bytes > self.cache_bytes and len(self._groups) > 1:
                self._held_bytes -= self._groups.popitem(last=False)[1].nbytes
        self._groups.move_to_end(key)
        return self._groups[key]

    def _load(self, pack: Pack, group: int) -> RowGroup:
        part, row_group = pack.groups[group]
        key = pack.parts[part].key
        table = self._file(key).read_row_group(row_group, columns=COLUMNS)
        if table.num_rows != pack.group_sizes[group]:
            raise ValueError(
                f"{key}: row group {row_group} has {table.num_rows} rows, not {pack.group_sizes[group]}: "
                "packs are written in row groups of 256 rows"
            )
        ids = table["input_ids"].combine_chunks()
        values = ids.flatten().to_numpy().reshape(table.num_rows, ids.type.list_size)
        return RowGroup(values, table["document_starts"].to_pylist(), table["num_tokens"].to_numpy())

    def _file(self, key: str) -> pq.ParquetFile:
        if key not in self._files:
            self._files[key] = pq.ParquetFile(self.store.open_input(key), page_checksum_verification=True)
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)[1].close(force=True)
        self._files.move_to_end(key)
        return self._files[key]


def targets_of(ids_BT: Ints, starts: list[list[int]], num_tokens: Ints) -> Ints:
    """The next id of the same document, else IGNORED."""
    rows, length = ids_BT.shape
    begins = np.zeros((rows, length), dtype=bool)
    begins[np.repeat(np.arange(rows), [len(row) for row in starts]), np.concatenate(starts).astype(np.int64)] = True
    follows = ~begins[:, 1:] & (np.arange(1, length) < num_tokens[:, None])
    targets = np.full_like(ids_BT, IGNORED)
    targets[:, :-1] = np.where(follows, ids_BT[:, 1:], IGNORED)
    return targets


def rank_slice(positions: Ints, rank: int, ranks: int) -> Ints:
    """The positions of a global batch that one rank reads: consecutive ones."""
    share = len(positions) // ranks
    return positions[rank * share : (rank + 1) * share]


class Loader:
    """Iterates over the steps of a phase from a clock and position on, reading ahead on a thread of its own.

    An error while reading is raised by the iteration. Close it to end the thread.
    """

    def __init__(
        self,
        reader: PackReader,
        run: PhaseRun,
        events: Events | None = None,
        *,
        tokens: int = 0,
        position: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._steps = _read_steps(reader, run, events or Events(), tokens, position, rank, ranks)
        self._queue: queue.Queue[StepBatch | BaseException | None] = queue.Queue(PREFETCHED_STEPS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[StepBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """End the prefetch thread."""
        self._closed.set()
        self._thread.join()

    def _fill(self) -> None:
        try:
            for step in self._steps:
                if not self._put(step):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the training thread, which raises it
            self._put(error)

    def _put(self, item: StepBatch | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def _read_steps(
    reader: PackReader, run: PhaseRun, events: Events, tokens: int, position: int, rank: int, ranks: int
) -> Iterator[StepBatch]:
    for plan in plan_phase(run, tokens, events):
        positions = next_positions(position, plan.batch_rows, events.skipped(plan.phase))
        end = int(positions[-1]) + 1
        batch = reader.read(rank_slice(positions, rank, ranks))
        if (largest := int(batch.ids_BT.max())) >= run.model.vocab_size:
            raise ValueError(
                f"the packs hold token {largest}, the model has {run.model.vocab_size}: set model.vocab_size to the "
                "tokenizer's size or more"
            )
        yield StepBatch(plan, position, end, batch)
        position = end
