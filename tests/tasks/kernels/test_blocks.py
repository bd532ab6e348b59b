"""Sets of 64 bits and folded blocks, against Python byte by byte."""

import random
from typing import Any

import numpy as np
from numba import njit

from tasks.kernels.blocks import BLOCK_BYTES, ascii_classes, copy_folded, count_ones, trailing_zeros


@njit  # type: ignore[untyped-decorator]
def look_at(data: Any, at: int, out: Any, size: int) -> Any:
    copy_folded(data, at, out, size)
    classes = ascii_classes(data, at)
    return classes, count_ones(classes[0]), trailing_zeros(classes[3])


def bits(block: bytes, characters: bytes) -> int:
    return sum(1 << place for place, byte in enumerate(block) if byte in characters)


def folded(byte: int) -> int:
    lower = bytes([byte]).lower()[0]
    return lower if lower in b"abcdefghijklmnopqrstuvwxyz" else ord("0") if byte in b"0123456789" else ord(" ")


def test_classes_and_folded_bytes() -> None:
    letters = b"abcdefghijklmnopqrstuvwxyz" + b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    every = list(range(256))
    random.Random(1).shuffle(every)
    data = np.array(every, np.uint8)
    for at in range(0, 256 - BLOCK_BYTES + 1, 3):
        out, block = np.full(BLOCK_BYTES + 2, 7, np.uint8), data[at : at + BLOCK_BYTES].tobytes()
        found, ones, first = look_at(data, at, out, 1)
        expected = [bits(block, kind) for kind in (letters, b"0123456789", b".,", bytes(range(128, 256)))]
        assert list(found) == expected
        assert ones == expected[0].bit_count()
        assert first == (expected[3] & -expected[3]).bit_length() - 1
        assert out.tolist() == [7, *map(folded, block), 7]


def test_no_bit_set() -> None:
    (letters, digits, points, high), ones, first = look_at(np.full(64, 32, np.uint8), 0, np.zeros(64, np.uint8), 0)
    assert (letters, digits, points, high, ones, first) == (0, 0, 0, 0, 0, 64)
