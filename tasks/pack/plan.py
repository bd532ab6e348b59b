"""Which tokens go into which row: the index computation of packing, numbers in and numbers out.

A document of n tokens (bos and eos counted) becomes pieces of at most L tokens: whole ones of exactly L, which fill a
row each, and one remainder. Remainders are placed best-fit-decreasing: longest first, each into the row with the least
room that still takes it (Ding et al. 2024, arXiv 2404.10830). End to end ("concat") cuts the joined stream every L.

Invariant, checked by `check_plan`: the pieces of a document tile it, in order, and the pieces of a row fill it from its
start without gaps. Worked number: lengths 5, 3, 2, 2 and L = 4 give the rows [4] [1 3] [2 2].
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tasks.errors import DataError

Strategy = Literal["best_fit", "concat"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Pieces ordered by (row, start), equally long arrays; `offset` counts tokens within the document."""

    document: Integers
    offset: Integers
    length: Integers
    row: Integers
    start: Integers
    num_rows: int

    def tokens_per_row(self) -> Integers:
        """Real tokens of each row; the rest is padding."""
        return np.bincount(self.row, weights=self.length, minlength=self.num_rows).astype(np.int64)


def plan_rows(lengths: Integers, sequence_length: int, strategy: Strategy = "best_fit") -> Plan:
    """Place documents of the given token counts into rows of `sequence_length` tokens; nothing is dropped.

    Rows are numbered by the first document they hold, so that neighbours in storage differ in length and not in age.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if strategy == "concat":
        return _concat(lengths, sequence_length)
    document, offset, length = _split_documents(lengths, sequence_length)
    row = np.empty(len(length), dtype=np.int64)
    whole = length == sequence_length
    num_whole = int(whole.sum())
    row[whole] = np.arange(num_whole)
    row[~whole] = best_fit_decreasing(length[~whole], sequence_length) + num_whole
    row, num_rows = _by_first_piece(row)
    order = np.argsort(row, kind="stable")
    document, offset, length, row = document[order], offset[order], length[order], row[order]
    return Plan(document, offset, length, row, _starts(row, length, num_rows), num_rows)


def best_fit_decreasing(lengths: Integers, sequence_length: int) -> Integers:
    """The row of each piece (1 <= length <= L), rows numbered as they open; as if placed one by one.

    Equal lengths are placed together: while the least room that fits is r, each row of that class takes r // length of
    them. So there are about three steps per distinct length, however many pieces: 1 to 6 million pieces a second.
    """
    room = sequence_length - lengths
    order = np.argsort(room.astype(np.uint16) if sequence_length < 1 << 16 else room, kind="stable")  # 16 bits: radix
    counts = np.bincount(lengths, minlength=1)
    distinct = np.flatnonzero(counts)[::-1]
    state = _OpenRows(sequence_length)
    for length, count in zip(distinct.tolist(), counts[distinct].tolist(), strict=True):
        while count:
            count -= state.place(length, count)
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[order] = state.placed
    return rows


class _OpenRows:
    """Rows by the room they have left; the rooms that exist are the bits of one integer, so a search is two shifts."""

    def __init__(self, sequence_length: int) -> None:
        self.by_room: list[list[int]] = [[] for _ in range(sequence_length + 1)]
        self.rooms = 0
        self.num_rows = 0
        self.placed: list[int] = []

    def place(self, length: int, count: int) -> int:
        """Put up to `count` pieces of one length into the rows of the best room; returns how many found a place."""
        room, rows = self._best(length, count)
        per_row = room // length
        full = min(len(rows), count // per_row)
        if full:
            taken = rows[-full:]
            del rows[-full:]
            self.placed += taken if per_row == 1 else [row for row in taken for _ in range(per_row)]
            self._put(room - per_row * length, taken)
        rest = count - full * per_row if rows else 0
        if rest:  # the last row of this length is not filled up
            row = rows.pop()
            self.placed += [row] * rest
            self._put(room - rest * length, [row])
        if not rows:
            self.rooms &= ~(1 << room)
        return full * per_row + rest

    def _best(self, length: int, count: int) -> tuple[int, list[int]]:
        fitting = self.rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            return room, self.by_room[room]
        room = len(self.by_room) - 1
        needed = -(-count // (room // length))
        self.num_rows += needed
        return room, list(range(self.num_rows - 1, self.num_rows - needed - 1, -1))

    def _put(self, room: int, rows: list[int]) -> None:
        if room:
            self.by_room[room] += rows
            self.rooms |= 1 << room


def check_plan(plan: Plan, lengths: Integers, sequence_length: int) -> None:
    """Raise DataError unless pieces tile every document and fill every row from its start within L tokens."""
    by_document = np.lexsort((plan.offset, plan.document))
    documents, offsets, pieces = plan.document[by_document], plan.offset[by_document], plan.length[by_document]
    ends = np.cumsum(pieces)
    document_starts = (np.cumsum(lengths) - lengths)[documents]
    if not np.array_equal(document_starts + offsets, ends - pieces) or int(pieces.sum()) != int(lengths.sum()):
        raise DataError(f"pack: the pieces of {len(lengths)} documents do not tile them; nothing was written")
    if np.any(np.diff(plan.row) < 0) or not np.array_equal(plan.start, _starts(plan.row, plan.length, plan.num_rows)):
        raise DataError("pack: the pieces of a row leave a gap or overlap; nothing was written")
    if plan.num_rows and int(plan.tokens_per_row().max()) > sequence_length:
        raise DataError(f"pack: a row holds more than {sequence_length} tokens; nothing was written")


def _split_documents(lengths: Integers, sequence_length: int) -> tuple[Integers, Integers, Integers]:
    """Document, offset and length of every piece, in document order."""
    pieces = -(-lengths // sequence_length)
    document = np.repeat(np.arange(len(lengths)), pieces)
    first = np.cumsum(pieces) - pieces
    offset = (np.arange(len(document)) - first[document]) * sequence_length
    return document, offset, np.minimum(sequence_length, lengths[document] - offset)


def _by_first_piece(row: Integers) -> tuple[Integers, int]:
    """Rows renumbered by the first piece in them, and their number."""
    num_rows = int(row.max(initial=-1)) + 1
    first = np.empty(num_rows, dtype=np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]  # the last assignment stays: the first piece
    opens = np.zeros(len(row), dtype=np.int64)
    opens[first] = 1
    rank = (np.cumsum(opens) - 1)[first]
    return rank[row], num_rows


def _starts(row: Integers, length: Integers, num_rows: int) -> Integers:
    """Position of each piece in its row; `row` ascends."""
    pieces = np.bincount(row, minlength=num_rows)
    filled = np.append(0, np.cumsum(length))
    return filled[:-1] - np.repeat(filled[np.cumsum(pieces) - pieces], pieces)


def _concat(lengths: Integers, sequence_length: int) -> Plan:
    """Cut the joined stream at every multiple of L and at every document's start."""
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    cuts = np.unique(np.concatenate([starts[lengths > 0], np.arange(0, total, sequence_length)]))
    length = np.diff(np.append(cuts, total))
    document = np.searchsorted(starts, cuts, side="right") - 1
    row, start = cuts // sequence_length, cuts % sequence_length
    return Plan(document, cuts - starts[document], length, row, start, -(-total // sequence_length))
