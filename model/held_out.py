"""Held-out rows that judge a model while it is trained: a few rows per source, the same ones each time."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from model.batches import Batch, PackReader
from model.job import Job
from model.order import DataOrder, Pack, slots_of
from model.ranks import Ranks

Measure = Callable[[Batch], Tensor]


class HeldOut:
    """The rows of this rank, by source. Packs without rows are left out."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self.ranks, self.job = ranks, job
        self.batches = {pack.source: self._read(pack) for pack in job.held_out if pack.rows}

    def _read(self, pack: Pack) -> Batch:
        """The same number of rows on every rank, since a forward pass is collective."""
        order = DataOrder(self.job.run.seed, "held-out", slots_of({pack.source: 1.0}), [pack])
        wanted = min(self.job.run.stability.held_out_rows, pack.rows)
        share = -(-wanted // self.ranks.count)
        first = self.ranks.rank * share
        return PackReader(self.job.store, order).read(np.arange(first, first + share, dtype=np.int64))

    def losses(self, measure: Measure, device: torch.device) -> dict[str, float]:
        """Nats per token by source. Collective."""
        losses = {}
        for source, batch in self.batches.items():
            total, targets = self.ranks.sum([float(measure(batch).sum()), batch.num_targets], device)
            losses[source] = total / max(1.0, targets)
        return losses

    def mean_loss(self, measure: Measure, device: torch.device) -> float | None:
        """The mean over the sources; None without held-out rows. Collective."""
        losses = self.losses(measure, device)
        return sum(losses.values()) / len(losses) if losses else None
