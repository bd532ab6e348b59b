"""Sorted distinct hashes equal NumPy's, whatever their number and distribution."""

import numpy as np
import pytest

from tasks.kernels.sorting import sort_distinct

RNG = np.random.default_rng(1)


@pytest.mark.parametrize(
    "values",
    [
        np.empty(0, np.uint64),
        np.array([7], np.uint64),
        np.array([2**64 - 1, 0, 2**63, 0], np.uint64),
        RNG.integers(0, 2**64, 5_000, np.uint64),
        np.repeat(RNG.integers(0, 2**64, 50, np.uint64), 100),  # one shingle many times: a crowded bucket
        RNG.integers(0, 2**20, 3_000, np.uint64),  # no hashes at all: all leading bits are the same
        np.arange(3_000, dtype=np.uint64)[::-1].copy(),
    ],
)
def test_gives_each_value_once_in_ascending_order(values: np.ndarray) -> None:
    wanted = np.unique(values)
    number = sort_distinct(values, len(values))
    assert np.array_equal(values[:number], wanted)
