"""Held-out rows that judge a model while it is trained: a few rows per source, the same ones each time.

Bits per byte = nats / (ln 2 x bytes of text that the targets stand for); special tokens stand for none and are left out
of both sums, as in tasks/evaluate/__init__.py.
"""

import json
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.batches import Batch, PackReader
from model.job import Job
from model.order import DataOrder, Pack, slots_of
from model.ranks import Ranks

Measure = Callable[[Batch], Tensor]


class Figures(NamedTuple):
    """Of one source; bits_per_byte is None where the bytes of the tokens are not known."""

    nats_per_token: float
    bits_per_byte: float | None


class HeldOut:
    """The rows of this rank, by source. Packs without rows are left out."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self.ranks, self.job = ranks, job
        self.batches = {pack.source: self._read(pack) for pack in job.held_out if pack.rows}
        sizes = json.loads(job.store.read_bytes(job.token_bytes)) if job.token_bytes else None
        self.token_bytes = None if sizes is None else torch.tensor(sizes, dtype=torch.int64)

    def _read(self, pack: Pack) -> Batch:
        """The same number of rows on every rank, since a forward pass is collective."""
        order = DataOrder(self.job.run.seed, "held-out", slots_of({pack.source: 1.0}), [pack])
        wanted = min(self.job.run.stability.held_out_rows, pack.rows)
        share = -(-wanted // self.ranks.count)
        first = self.ranks.rank * share
        return PackReader(self.job.store, order).read(np.arange(first, first + share, dtype=np.int64))

    def figures(self, measure: Measure, device: torch.device) -> dict[str, Figures]:
        """What the model makes of each source. Collective."""
        figures = {}
        for source, batch in self.batches.items():
            nll_BT = measure(batch)
            bytes_BT = self._bytes_of(batch.targets_BT)
            text_nats = float((nll_BT * (bytes_BT > 0)).sum())
            own = [float(nll_BT.sum()), batch.num_targets, text_nats, float(bytes_BT.sum())]
            nats, targets, text_nats, num_bytes = self.ranks.sum(own, device)
            bits = text_nats / (math.log(2) * num_bytes) if num_bytes else None
            figures[source] = Figures(nats / max(1.0, targets), bits)
        return figures

    def mean_loss(self, measure: Measure, device: torch.device) -> float | None:
        """Nats per token, the mean over the sources; None without held-out rows. Collective."""
        losses = [own.nats_per_token for own in self.figures(measure, device).values()]
        return sum(losses) / len(losses) if losses else None

    def _bytes_of(self, targets_BT: Tensor) -> Tensor:
        if self.token_bytes is None:
            return torch.zeros_like(targets_BT)
        return self.token_bytes[targets_BT.clamp(min=0)] * (targets_BT >= 0)
