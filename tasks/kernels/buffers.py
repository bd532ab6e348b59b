"""Text columns as the kernels see them: UTF-8 bytes and int64 offsets, without a copy in either direction."""

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

# kernel: called from Python, may allocate. inner: called by kernels of its own module, allocates nothing: it goes
# without numba's reference counts, two atomic operations per array and call (measured: a third of a text scan's time)
kernel = njit(cache=True, nogil=True)
inner = njit(cache=True, nogil=True, _nrt=False)

Item = TypeVar("Item", bound=np.generic)
Bytes = NDArray[np.uint8]
Int = int | np.signedinteger[Any]  # what numba takes and gives for an int64
Offsets = NDArray[np.int64]


def text_buffers(column: pa.ChunkedArray | pa.Array) -> tuple[Bytes, Offsets]:
    """The bytes of a text or binary column and the n + 1 offsets of its values; a null is an empty value.

    Document i is data[offsets[i] : offsets[i + 1]]; offsets need not begin at 0. Read-only arrays.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array.cast(pa.large_binary())
    if array.null_count:
        array = array.fill_null(b"")
    _, offsets, data = array.buffers()
    if len(array) == 0:
        return frozen(np.zeros(0, np.uint8)), frozen(np.zeros(1, np.int64))
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return frozen(np.frombuffer(data or b"", np.uint8)), frozen(bounds)


def text_array(data: Bytes, offsets: Offsets) -> pa.Array:
    """A large_string array over these bytes; the caller no longer changes them."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def frozen(array: NDArray[Item]) -> NDArray[Item]:
    """The array, read-only: numba would compile every kernel a second time for writable input."""
    array.setflags(write=False)
    return array
