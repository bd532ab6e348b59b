"""The minima of all permutations, against numpy."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from tasks.kernels.minima import NUM_PERMUTATIONS, lower_minima


@njit  # type: ignore[untyped-decorator]
def lower(hashes: Any, number: int, permutations: Any, signatures: Any, row: int) -> None:
    lower_minima(hashes, number, permutations, signatures, row * NUM_PERMUTATIONS)


@pytest.mark.parametrize("number", [0, 1, 2, 33])
def test_minima_of_one_row(number: int) -> None:
    rng = np.random.default_rng(number)
    hashes = rng.integers(0, 2**32, 33, np.uint32)
    permutations = rng.integers(0, 2**32, (2, NUM_PERMUTATIONS), np.uint32)
    signatures = rng.integers(2**27, 2**32, (3, NUM_PERMUTATIONS), np.uint32)
    images = permutations[0] * hashes[:number, None] + permutations[1]
    expected = signatures.copy()
    expected[1] = np.minimum(expected[1], images.min(axis=0, initial=0xFFFFFFFF))
    lower(hashes, number, permutations, signatures, 1)
    np.testing.assert_array_equal(signatures, expected)
