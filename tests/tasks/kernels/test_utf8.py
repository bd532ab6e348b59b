"""Characters against Python's own decoder."""

import numpy as np
import pytest

from tasks.kernels.buffers import frozen
from tasks.kernels.utf8 import decode, lower

BOUNDS = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)


@pytest.mark.parametrize("code", BOUNDS, ids=hex)
def test_the_first_and_last_character_of_each_width(code: int) -> None:
    encoded = chr(code).encode()
    data = frozen(np.frombuffer(b"a" + encoded + b"z", np.uint8))
    assert decode(data, 1) == (code, len(encoded))


def test_only_letters_of_ascii_have_a_lower_case() -> None:
    assert bytes(lower(byte) for byte in range(128)) == bytes(range(128)).lower()
    assert [lower(byte) for byte in (0xC3, 0x9C)] == [0xC3, 0x9C]
