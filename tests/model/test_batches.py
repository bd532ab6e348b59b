import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from model.architecture import ModelConfig
from model.batches import Batch, Loader, PackReader, StepBatch, rank_slice, targets_of
from model.config import PhaseRun
from model.job import CACHE_BYTES
from model.loss import IGNORED
from model.order import DataOrder, Pack, slots_of
from model.schedule import Events, SkipRange
from tasks.storage import Storage

MakePack = Callable[..., Pack]
WEIGHTS = {"code": 1.0, "web": 3.0}
LENGTH = 32


@pytest.fixture
def order(make_pack: MakePack) -> DataOrder:
    packs = [make_pack("web", [600, 300]), make_pack("code", [280])]
    return DataOrder(3, "main", slots_of(WEIGHTS), packs)


def make_run(batch: object = 8, rows: int = 64) -> PhaseRun:
    phase = {"name": "main", "tokens": rows * LENGTH, "weights": WEIGHTS, "sequence_length": LENGTH, "batch": batch}
    values = {"model": ModelConfig.of_size("tiny"), "phase": phase | {"schedule": {"lr": 1e-3}}}
    return PhaseRun.model_validate(values)


def load(
    store: Storage, order: DataOrder, run: PhaseRun, events: Events | None = None, **place: int
) -> list[StepBatch]:
    loader = Loader(PackReader(store, order), run, events or Events(), **place)
    try:
        return list(loader)
    finally:
        loader.close()


def all_ids(steps: list[StepBatch]) -> torch.Tensor:
    return torch.cat([step.batch.ids_BT for step in steps])


def test_targets_stay_within_their_document() -> None:
    ids = np.array([[0, 5, 6, 0, 7, 9], [0, 1, 2, 3, 4, 5], [8, 9, 0, 0, 0, 0]])
    targets = targets_of(ids, [[0, 3], [0], [0, 2]], np.array([5, 6, 3]))
    x = IGNORED
    assert targets.tolist() == [[5, 6, x, 7, x, x], [1, 2, 3, 4, 5, x], [9, x, x, x, x, x]]


def test_rows_come_as_they_were_packed(store: Storage, order: DataOrder) -> None:
    positions = np.array([0, 1, 2, 500, 77, 1200])
    batch = PackReader(store, order).read(positions)
    for index, ref in enumerate(order.rows_of_positions(positions)):
        table = pq.read_table(store.path(ref.part_key)).slice(ref.row, 1).to_pydict()
        assert batch.ids_BT[index].tolist() == table["input_ids"][0]
        assert batch.document_starts[index] == table["document_starts"][0]
    assert batch.num_targets == sum(int((row != IGNORED).sum()) for row in batch.targets_BT)
    assert not (batch.targets_BT == 0).any()  # bos is never a target


@pytest.mark.parametrize("batch", [8, 4, {0: 4, 256: 8, 512: 16}])
def test_batch_size_does_not_move_rows(store: Storage, order: DataOrder, batch: object) -> None:
    wanted = PackReader(store, order).read(np.arange(64)).ids_BT
    assert torch.equal(all_ids(load(store, order, make_run(batch)))[:64], wanted)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_same_rows(store: Storage, order: DataOrder, ranks: int) -> None:
    whole = load(store, order, make_run())
    shares = [load(store, order, make_run(), rank=rank, ranks=ranks) for rank in range(ranks)]
    for step, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(torch.cat([part.batch.ids_BT for part in parts]), step.batch.ids_BT)
        assert {(part.position_from, part.position_to) for part in parts} == {(step.position_from, step.position_to)}
    assert rank_slice(np.arange(8), 1, 2).tolist() == [4, 5, 6, 7]


def test_longer_phase_begins_alike_and_resume_goes_on(store: Storage, order: DataOrder) -> None:
    short, long = (all_ids(load(store, order, make_run(rows=rows))) for rows in (32, 64))
    assert torch.equal(long[:32], short)
    resumed = load(store, order, make_run(), tokens=32 * LENGTH, position=32)
    assert torch.equal(all_ids(resumed), long[32:])
    assert (resumed[0].position_from, resumed[-1].position_to) == (32, 64)


def test_skipped_ranges_are_passed_over(store: Storage, order: DataOrder) -> None:
    other = SkipRange(phase="anneal", start=0, stop=50)
    events = Events(skips=(SkipRange(phase="main", start=10, stop=30), other))
    steps = load(store, order, make_run(), events)
    wanted = np.concatenate([np.arange(10), np.arange(30, 84)])
    assert torch.equal(all_ids(steps), PackReader(store, order).read(wanted).ids_BT)
    assert [(s.position_from, s.position_to) for s in steps[:3]] == [(0, 8), (8, 36), (36, 44)]
    assert sum(step.plan.batch_rows for step in steps) == 64  # the plan minus the skip list: the clock counts rows read


def test_cache_is_bounded_and_changes_nothing(store: Storage, order: DataOrder) -> None:
    large, small = PackReader(store, order), PackReader(store, order, cache_bytes=45_000)
    for start in range(0, 400, 50):
        positions = np.arange(start, start + 50)
        assert torch.equal(large.read(positions).ids_BT, small.read(positions).ids_BT)
        assert small._held_bytes <= 45_000
    assert len(small._groups) == 1 < len(large._groups) == 7
    assert large._held_bytes == sum(group.nbytes for group in large._groups.values()) < CACHE_BYTES


def test_micro_batches_cover_the_batch(store: Storage, order: DataOrder) -> None:
    batch = PackReader(store, order).read(np.arange(7))
    pieces = list(batch.micro_batches(3))
    assert [len(piece.ids_BT) for piece in pieces] == [3, 3, 1]
    assert torch.equal(torch.cat([piece.targets_BT for piece in pieces]), batch.targets_BT)
    assert [starts for piece in pieces for starts in piece.document_starts] == batch.document_starts
    assert sum(piece.num_targets for piece in pieces) == batch.num_targets
    assert isinstance(pieces[0], Batch)


def test_reading_errors_reach_the_training_thread(store: Storage, order: DataOrder) -> None:
    path = Path(store.path("pack/parts/code-0.parquet"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # inside the first page of input_ids
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"checksum|CRC|corrupt"):
        load(store, order, make_run(rows=200))
    path.unlink()
    with pytest.raises(FileNotFoundError, match="code-0"):
        load(store, order, make_run(rows=200))


def test_tokens_beyond_the_vocabulary_are_refused(store: Storage, make_pack: MakePack) -> None:
    wide = DataOrder(3, "main", {"web": 4096}, [make_pack("web", [300], vocab=9000)])
    with pytest.raises(ValueError, match=r"hold token \d{4}, the model has 512: set model.vocab_size"):
        load(store, wide, make_run())


def test_row_groups_of_another_size_are_refused(store: Storage, order: DataOrder) -> None:
    path = store.path("pack/parts/web-0.parquet")
    pq.write_table(pq.read_table(path), path, row_group_size=100, write_page_checksum=True)
    with pytest.raises(ValueError, match=r"web-0.parquet: row group \d has \d+ rows, not \d+: packs are written in"):
        load(store, order, make_run(rows=200))


def test_closing_early_ends_the_thread(store: Storage, order: DataOrder) -> None:
    loader = Loader(PackReader(store, order), make_run(), Events())
    first = next(iter(loader))
    loader.close()
    assert not loader._thread.is_alive()
    assert dataclasses.asdict(first)["position_to"] == 8
