"""Packing: documents per CPU-second and utilisation of the index computation, beside one-by-one best fit.

`pytest tests/bench/bench_pack.py -m bench -s` prints one line per sequence length: ours, peer, ratio, target.
"""

import bisect

import numpy as np
import pytest

from tasks.pack.plan import Integers, plan_rows
from tests.bench.clock import cpu_seconds

NUM_DOCUMENTS = 200_000
TARGET_DOCUMENTS_PER_SECOND = 1_000_000
TARGET_UTILISATION = 0.9999


def lognormal_lengths(count: int) -> Integers:
    """Web-like token counts: median 400, mean 730, 99th percentile 5,200."""
    lengths: Integers = np.exp(np.random.default_rng(0).normal(np.log(400), 1.1, count)).astype(np.int64) + 1
    return lengths


def one_by_one(lengths: Integers, sequence_length: int) -> int:
    """Best fit over a sorted list of rooms, one piece at a time, as post-training libraries do; returns the rows."""
    rooms: list[int] = []
    rows = int((lengths // sequence_length).sum())
    rest = lengths % sequence_length
    for length in np.sort(rest[rest > 0])[::-1].tolist():
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms.pop(place)
        else:
            room, rows = sequence_length, rows + 1
        if room > length:
            bisect.insort(rooms, room - length)
    return rows


@pytest.mark.bench
@pytest.mark.parametrize("sequence_length", [512, 2048, 8192])
def test_index_computation(sequence_length: int) -> None:
    """Ours plans pieces, rows and starts; the peer counts rows only."""
    lengths = lognormal_lengths(NUM_DOCUMENTS)
    plan = plan_rows(lengths, sequence_length)
    assert plan.num_rows == one_by_one(lengths, sequence_length)
    utilisation = int(lengths.sum()) / (plan.num_rows * sequence_length)
    ours = NUM_DOCUMENTS / cpu_seconds(lambda: plan_rows(lengths, sequence_length))
    peer = NUM_DOCUMENTS / cpu_seconds(lambda: one_by_one(lengths, sequence_length))
    print(
        f"\npack L={sequence_length}: {ours / 1e6:.2f} M documents/s at {utilisation:.6f}, "
        f"one by one {peer / 1e6:.2f} M, ratio {ours / peer:.1f}, target 1.00 M at {TARGET_UTILISATION}"
    )
    assert utilisation >= TARGET_UTILISATION
