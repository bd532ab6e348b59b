"""XXH64 (seed 0) of byte ranges, compiled; bit-equal to `xxhash.xxh64_intdigest`.

Specification: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Word 5-grams are about 30 bytes, so the
path below 32 bytes is what counts.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tasks.kernels.buffers import text_buffers

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)


@intrinsic
def load_u64(typingctx: Any, array: Any, index: Any) -> Any:
    """Eight bytes of a uint8 array at any index as one little-endian integer; nothing is checked."""
    return types.uint64(array, index), _unaligned_load(64)


@intrinsic
def load_u32(typingctx: Any, array: Any, index: Any) -> Any:
    """Four bytes of a uint8 array at any index as one little-endian integer; nothing is checked."""
    return types.uint64(array, index), _unaligned_load(32)


def _unaligned_load(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        array = context.make_array(array_type)(context, builder, arguments[0])
        position = context.cast(builder, arguments[1], signature.args[1], types.intp)
        pointer = cgutils.gep_inbounds(builder, array.data, position)
        wide = builder.bitcast(pointer, ir.IntType(bits).as_pointer())
        value = builder.load(wide)
        value.align = 1
        return value if bits == 64 else builder.zext(value, ir.IntType(64))

    return generate


@njit(inline="always")
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(inline="always")
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * P2, 31) * P1


@njit(inline="always")
def xxh64(data: Any, start: int, end: int) -> Any:
    """XXH64 with seed 0 of data[start:end]."""
    length = np.uint64(end - start)
    at = start
    if end - start >= 32:
        one, two, three, four = P1 + P2, P2, np.uint64(0), np.uint64(0) - P1
        while at + 32 <= end:
            one = _round(one, load_u64(data, at))
            two = _round(two, load_u64(data, at + 8))
            three = _round(three, load_u64(data, at + 16))
            four = _round(four, load_u64(data, at + 24))
            at += 32
        value = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        for lane in (one, two, three, four):
            value = (value ^ _round(np.uint64(0), lane)) * P1 + P4
        value += length
    else:
        value = P5 + length
    while at + 8 <= end:
        value = _rotate(value ^ _round(np.uint64(0), load_u64(data, at)), 27) * P1 + P4
        at += 8
    if at + 4 <= end:
        value = _rotate(value ^ (load_u32(data, at) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        value = _rotate(value ^ (np.uint64(data[at]) * P5), 11) * P1
        at += 1
    value = (value ^ (value >> np.uint64(33))) * P2
    value = (value ^ (value >> np.uint64(29))) * P3
    return value ^ (value >> np.uint64(32))


@njit(cache=True)
def _hash_ranges(data: Any, bounds: Any) -> Any:
    hashes = np.empty(len(bounds) - 1, np.uint64)
    for row in range(len(hashes)):
        hashes[row] = xxh64(data, bounds[row], bounds[row + 1])
    return hashes


def hash_values(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """XXH64 of the bytes of each value of a string or binary column, as uint64."""
    if not len(column):
        return np.empty(0, np.uint64)
    return np.asarray(_hash_ranges(*text_buffers(column)))
