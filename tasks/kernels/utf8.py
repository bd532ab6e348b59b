"""Characters of UTF-8 text; Arrow has checked that it is valid."""

import numpy as np

from tasks.kernels.buffers import Bytes, Int, inner


@inner
def decode(data: Bytes, i: Int) -> tuple[Int, int]:
    """Code point and width in bytes of the character at i."""
    byte = np.int64(data[i])
    if byte < 0x80:
        return byte, 1
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | (data[i + 1] & 0x3F), 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | np.int64(data[i + 1] & 0x3F) << 6 | (data[i + 2] & 0x3F), 3
    high = (byte & 0x07) << 18 | np.int64(data[i + 1] & 0x3F) << 12
    return high | np.int64(data[i + 2] & 0x3F) << 6 | (data[i + 3] & 0x3F), 4


@inner
def lower(byte: int) -> int:
    """A byte of ASCII text in lower case."""
    return byte + 32 if 65 <= byte <= 90 else byte
