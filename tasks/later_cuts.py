"""Cuts made in texts that were cut before, as cuts of the texts as they came.

"ab|cd|ef" without 2..4 is "abef"; what is cut there from 1 to 3 is 1..5 of the whole
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Offsets

Cuts = tuple[Offsets, NDArray[np.int64]]  # n + 1 offsets into the spans; spans (start, end) in bytes of the document


def join_cuts(first: Cuts, later: Cuts) -> Cuts:
    """The cuts of both, `later` being those of the texts without the `first`; spans that touch become one."""
    if not len(first[1]) or not len(later[1]):
        return first if len(first[1]) else later
    earlier, width = first[1], int(max(first[1].max(initial=0), later[1].max() + _most_cut(first))) + 1
    docs, later_docs = _documents(first[0]), _documents(later[0])
    cut = np.concatenate([[0], np.cumsum(earlier[:, 1] - earlier[:, 0])])
    cut_before = cut[first[0][:-1]]  # in all documents before each
    seen_at = docs * width + earlier[:, 0] - (cut[:-1] - cut_before[docs])  # where a first cut stands in what is left
    base, lost = later_docs * width, cut_before[later_docs]
    starts, ends = (later[1][:, side] for side in (0, 1))
    starts = base + starts + cut[np.searchsorted(seen_at, base + starts, side="right")] - lost
    ends = base + ends + cut[np.searchsorted(seen_at, base + ends, side="left")] - lost
    return _union(
        np.concatenate([docs * width + earlier[:, 0], starts]),
        np.concatenate([docs * width + earlier[:, 1], ends]),
        width, len(first[0]) - 1,
    )  # fmt: skip


def _most_cut(cuts: Cuts) -> int:
    """Bytes that the longest cuts of a document could have together."""
    return int((cuts[1][:, 1] - cuts[1][:, 0]).sum())


def _documents(offsets: Offsets) -> NDArray[np.int64]:
    """The document of each span."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _union(starts: NDArray[np.int64], ends: NDArray[np.int64], width: int, num_docs: int) -> Cuts:
    """Spans at document * width + byte, joined where they overlap or touch."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], starts[1:] > ends[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    starts, ends = starts[is_first], ends[is_last]
    offsets = np.searchsorted(starts, np.arange(num_docs + 1) * width)
    return offsets, np.stack([starts, ends], axis=1) % width
