"""Cuts made one after the other are the same as cuts made at once."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_array, text_buffers
from tasks.kernels.cuts import apply_cuts
from tasks.later_cuts import Cuts, join_cuts

Gaps = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=4)


def cuts_of(spans: list[list[tuple[int, int]]]) -> Cuts:
    """Spans per document as the kernels give them."""
    offsets = np.cumsum([0, *map(len, spans)])
    return offsets, np.array([span for own in spans for span in own], np.int64).reshape(-1, 2)


def laid_out(gaps: Gaps, length: int) -> list[tuple[int, int]]:
    """Sorted, disjoint spans inside a text of that length, from gaps and widths."""
    found, at = [], 0
    for gap, width in gaps:
        start, at = at + gap, at + gap + width + 1
        if at <= length:
            found.append((start, at))
    return found


def apply(texts: list[str], cuts: Cuts) -> list[str]:
    kept: list[str] = text_array(*apply_cuts(*text_buffers(pa.array(texts, pa.large_string())), *cuts)).to_pylist()
    return kept


def test_worked_example() -> None:
    offsets, spans = join_cuts(cuts_of([[(2, 4)], []]), cuts_of([[(1, 3)], [(0, 1)]]))
    assert (offsets.tolist(), spans.tolist()) == ([0, 1, 2], [[1, 5], [0, 1]])


def test_spans_that_touch_become_one_and_documents_stay_apart() -> None:
    offsets, spans = join_cuts(cuts_of([[(2, 4)], [(0, 2)]]), cuts_of([[(2, 4)], [(1, 2)]]))
    assert (offsets.tolist(), spans.tolist()) == ([0, 1, 3], [[2, 6], [0, 2], [3, 4]])
    only = cuts_of([[(2, 4)], []])
    nothing = cuts_of([[], []])
    assert join_cuts(only, nothing) is only
    assert join_cuts(nothing, only) is only


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.text("abcdefg\n ", max_size=30), SPANS, SPANS), min_size=1, max_size=4))
def test_equal_to_one_after_the_other(
    documents: list[tuple[str, Gaps, Gaps]],
) -> None:
    texts = [text for text, _, _ in documents]
    first = cuts_of([laid_out(gaps, len(text)) for text, gaps, _ in documents])
    between = apply(texts, first)
    later = cuts_of([laid_out(gaps, len(text)) for text, (_, _, gaps) in zip(between, documents, strict=True)])
    offsets, spans = joined = join_cuts(first, later)
    assert apply(texts, joined) == apply(between, later)
    for doc in range(len(texts)):
        own = spans[offsets[doc] : offsets[doc + 1]].ravel()
        assert (np.diff(own) > 0).all() or joined is first or joined is later
