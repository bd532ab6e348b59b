"""Held-out rows that judge a model: every rank the same number, the same rows each time."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.architecture import ModelConfig
from model.batches import Batch
from model.config import PhaseRun
from model.held_out import HeldOut
from model.job import Job
from model.loss import IGNORED
from model.ranks import Ranks
from tasks.storage import Storage

CPU = torch.device("cpu")


@pytest.fixture
def job(store: Storage, make_pack: Any, tmp_path: Path) -> Job:
    phase = {
        "name": "main", "tokens": 64, "weights": {"web": 1}, "batch": 2, "sequence_length": 32, "schedule": {"lr": 1},
    }  # fmt: skip
    stability = {"held_out_rows": 5}
    run = PhaseRun.model_validate({"model": ModelConfig.of_size("tiny"), "phase": phase, "stability": stability})
    held_out = (make_pack("web", [9]), make_pack("code", [3]), make_pack("empty", [0]))
    return Job(run, (), store, "train/x", "a1", str(tmp_path), held_out=held_out)


def ones(batch: Batch) -> Tensor:
    """A loss of 1 for each target."""
    return (batch.targets_BT != IGNORED).float()


def test_as_many_rows_of_each_source_as_wanted_and_there(job: Job) -> None:
    held_out = HeldOut(job, Ranks())
    assert {source: len(batch.ids_BT) for source, batch in held_out.batches.items()} == {"web": 5, "code": 3}
    again = HeldOut(job, Ranks())
    assert torch.equal(held_out.batches["web"].ids_BT, again.batches["web"].ids_BT)


def test_every_rank_has_the_same_number_of_rows(job: Job) -> None:
    shares = [HeldOut(job, Ranks(rank, 2, rank, 2)).batches["web"].ids_BT for rank in (0, 1)]
    assert [len(share) for share in shares] == [3, 3]
    whole = HeldOut(job, Ranks()).batches["web"].ids_BT
    assert torch.equal(torch.cat(shares)[:5], whole)


def test_losses_are_means_over_targets_and_sources(job: Job) -> None:
    held_out = HeldOut(job, Ranks())
    assert held_out.figures(ones, CPU) == {"web": (1.0, None), "code": (1.0, None)}
    assert held_out.mean_loss(lambda batch: 2 * ones(batch), CPU) == 2.0
    held_out.batches.clear()
    assert held_out.mean_loss(ones, CPU) is None


def test_bits_per_byte_leave_special_tokens_out(job: Job) -> None:
    """Even ids stand for 3 bytes, odd ones are special: 2 nats per token are 2 / (3 ln 2) bits per byte."""
    sizes = [3 * (token % 2 == 0) for token in range(job.run.model.vocab_size)]
    job.store.write_bytes("vocabulary/v/token_bytes.json", json.dumps(sizes).encode())
    held_out = HeldOut(replace(job, token_bytes="vocabulary/v/token_bytes.json"), Ranks())
    assert any(int(batch.targets_BT.max()) % 2 for batch in held_out.batches.values())
    figures = held_out.figures(lambda batch: 2 * ones(batch), CPU)
    for own in figures.values():
        assert own.nats_per_token == 2.0
        assert own.bits_per_byte == pytest.approx(2 / math.log(2) / 3)
