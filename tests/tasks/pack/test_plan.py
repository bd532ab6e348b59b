"""Rows are planned exactly: best fit as if one by one, every document tiled, no gap in a row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import DataError
from tasks.pack.plan import Strategy, best_fit_decreasing, check_plan, plan_rows

LENGTHS = st.lists(st.integers(1, 60), max_size=80)
Row = list[tuple[int, int, int]]  # (document, offset, length) of each piece


def rows_of(lengths: list[int], sequence_length: int, strategy: Strategy = "best_fit") -> list[Row]:
    plan = plan_rows(np.array(lengths, dtype=np.int64), sequence_length, strategy)
    rows: list[Row] = [[] for _ in range(plan.num_rows)]
    for document, offset, length, row in zip(plan.document, plan.offset, plan.length, plan.row, strict=True):
        rows[row].append((int(document), int(offset), int(length)))
    return rows


def one_by_one(lengths: list[int], sequence_length: int) -> list[int]:
    """The textbook: longest first, into the row with the least room that takes it. Tokens per row, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        room = min(fitting) if fitting else sequence_length
        if fitting:
            rooms.remove(room)
        rooms.append(room - length)
    return sorted(sequence_length - room for room in rooms)


@pytest.mark.parametrize(
    ("lengths", "sequence_length", "expected"),
    [
        ([5, 3, 2, 2], 4, [[(0, 0, 4)], [(0, 4, 1), (1, 0, 3)], [(2, 0, 2), (3, 0, 2)]]),
        ([4], 4, [[(0, 0, 4)]]),
        ([9], 4, [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 1)]]),
        ([1, 1, 1, 1, 1], 2, [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1), (3, 0, 1)], [(4, 0, 1)]]),
        ([2, 6, 5, 3], 8, [[(0, 0, 2), (1, 0, 6)], [(2, 0, 5), (3, 0, 3)]]),
        ([], 4, []),
    ],
)
def test_best_fit_places_by_hand_checked_examples(
    lengths: list[int], sequence_length: int, expected: list[Row]
) -> None:
    assert sorted(rows_of(lengths, sequence_length)) == sorted(expected)


def test_concat_cuts_the_stream_every_l_tokens_and_counts_offsets_within_documents() -> None:
    assert rows_of([3, 6, 1], 4, "concat") == [[(0, 0, 3), (1, 0, 1)], [(1, 1, 4)], [(1, 5, 1), (2, 0, 1)]]
    assert rows_of([], 4, "concat") == []


def test_rows_keep_the_order_of_their_first_documents() -> None:
    firsts = [row[0][0] for row in rows_of([3, 8, 1, 7, 2, 6, 5, 5], 8)]
    assert firsts == sorted(firsts)


@given(LENGTHS, st.integers(2, 40), st.sampled_from(["best_fit", "concat"]))
@settings(max_examples=150, deadline=None)
def test_every_document_is_tiled_and_every_row_filled_from_its_start(
    lengths: list[int], sequence_length: int, strategy: Strategy
) -> None:
    array = np.array(lengths, dtype=np.int64)
    plan = plan_rows(array, sequence_length, strategy)
    check_plan(plan, array, sequence_length)
    rows = rows_of(lengths, sequence_length, strategy)
    covered = [(d, t) for row in rows for d, o, n in row for t in range(o, o + n)]
    assert sorted(covered) == [(d, t) for d, n in enumerate(lengths) for t in range(n)]
    assert int(plan.tokens_per_row().sum()) == sum(lengths)
    short = {d for d, n in enumerate(lengths) if n <= sequence_length}
    if strategy == "best_fit":
        assert all(n == lengths[d] for row in rows for d, _, n in row if d in short)


@given(LENGTHS, st.integers(2, 60))
@settings(max_examples=150, deadline=None)
def test_placing_equal_lengths_together_is_placing_them_one_by_one(lengths: list[int], sequence_length: int) -> None:
    pieces = [min(length, sequence_length) for length in lengths]
    rows = best_fit_decreasing(np.array(pieces, dtype=np.int64), sequence_length)
    assert sorted(np.bincount(rows, weights=pieces).astype(int).tolist()) == one_by_one(pieces, sequence_length)


def test_the_number_of_rows_does_not_depend_on_the_order_of_documents() -> None:
    lengths = np.random.default_rng(1).integers(1, 700, 3_000)
    counts = {plan_rows(np.random.default_rng(seed).permutation(lengths), 256).num_rows for seed in range(4)}
    assert len(counts) == 1


def test_a_large_part_is_filled_to_four_nines() -> None:
    lengths = np.exp(np.random.default_rng(0).normal(np.log(400), 1.1, 100_000)).astype(np.int64) + 1
    plan = plan_rows(lengths, 2048)
    assert lengths.sum() / (plan.num_rows * 2048) >= 0.9999


@pytest.mark.parametrize("field", ["offset", "start", "length", "document"])
def test_a_wrong_plan_is_refused(field: str) -> None:
    lengths = np.array([9, 3, 2], dtype=np.int64)
    plan = plan_rows(lengths, 4)
    check_plan(plan, lengths, 4)
    wrong = getattr(plan, field).copy()
    wrong[1] += 1
    with pytest.raises(DataError, match="pack:"):
        check_plan(replace(plan, **{field: wrong}), lengths, 4)


def test_a_row_over_its_length_is_refused() -> None:
    lengths = np.array([3, 3], dtype=np.int64)
    plan = plan_rows(lengths, 4)
    joined = replace(plan, row=np.zeros(2, np.int64), start=np.array([0, 3]), num_rows=1)
    with pytest.raises(DataError, match="more than 4 tokens"):
        check_plan(joined, lengths, 4)
