"""The order of training rows: position -> source, epoch, row group, row; random access, free of any machine.

Positions m = 0, 1, 2, ... of a phase are rows. The weights become k_s of K = 4,096 slots per block; block b = m div K
is permuted by (seed, phase, b). Position m has source s and rank r among the s-slots of its block, counted in order,
hence ordinal j = c_s + b k_s + r, where c_s is what earlier phases used of that pack. Epoch e = j div n_s. Within an
epoch the row groups of the pack (256 rows; the last of a part may hold fewer) are permuted, then the rows within each
run of 64 permuted groups: consecutive ordinals touch few row groups, and batches still mix 16,384 rows.

Permutations are Feistel networks with cycle walking, keyed by a hash (an affine shuffle correlates batches: Marin). So
lengthening a phase never changes its beginning, and ranks, workers and micro-batches can't.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from model.phases import MAX_SOURCES

BLOCK_SLOTS = MAX_SOURCES
GROUP_ROWS = 256  # rows of a row group: what the packer writes and a reader fetches at once
RUN_GROUPS = 64  # row groups whose rows are mixed: 16,384 rows, the reader's working set for one source
ROUNDS = 8  # Feistel rounds; 4 are a pseudo-random permutation in theory, 8 leave a margin on tiny domains

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackPart:
    """One Parquet file of packed rows."""

    key: str
    rows: int


@dataclass(frozen=True, eq=False)  # eq=False: caches are keyed by identity, never by hashing 10,000 parts
class Pack:
    """The packed rows of one source: what the order needs to know. `tokens` leaves padding out."""

    source: str
    digest: str
    parts: tuple[PackPart, ...]
    tokens: int
    length: int  # of a row

    @property
    def key(self) -> str:
        """Its name among the packs that phases drew from: two sources may hold the same rows."""
        return f"{self.source}:{self.digest}"

    @cached_property
    def rows(self) -> int:
        """Rows in all parts."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """(part index, row group within the part) of every row group, in order."""
        return [(p, g) for p, part in enumerate(self.parts) for g in range(-(-part.rows // GROUP_ROWS))]

    @cached_property
    def group_sizes(self) -> Ints:
        """Rows of every row group."""
        return np.array([min(GROUP_ROWS, self.parts[p].rows - g * GROUP_ROWS) for p, g in self.groups], dtype=np.int64)


@dataclass(frozen=True)
class Located:
    """Where positions read: arrays of one length. `source` indexes the order's packs, `group` the pack's row groups."""

    positions: Ints
    source: Ints
    epoch: Ints
    group: Ints
    offset: Ints


@dataclass(frozen=True)
class RowRef:
    """One row of a batch, for `trace`: row `row` of the pack part `part_key`."""

    position: int
    source: str
    epoch: int
    part_key: str
    row: int


def slots_of(weights: Mapping[str, float]) -> dict[str, int]:
    """Slots of a block per source, by largest remainder; a weight above 0 has at least one. Sums to 4,096."""
    shares = {source: Fraction(weight) for source, weight in sorted(weights.items()) if weight > 0}
    total = sum(shares.values())
    exact = {source: share * BLOCK_SLOTS / total for source, share in shares.items()}
    slots = {source: max(1, int(share)) for source, share in exact.items()}
    while (missing := BLOCK_SLOTS - sum(slots.values())) > 0:
        slots[max(slots, key=lambda source: exact[source] - slots[source])] += 1
    for _ in range(-missing):
        slots[min((s for s in slots if slots[s] > 1), key=lambda source: exact[source] - slots[source])] -= 1
    return slots


def next_positions(position: int, rows: int, skips: Sequence[tuple[int, int]]) -> Ints:
    """The next `rows` positions from `position` on that no half-open range of `skips` holds."""
    taken: list[Ints] = []
    for start, stop in sorted(skips):
        if stop <= position:
            continue
        if rows == 0 or start >= position + rows:
            break
        before = max(0, start - position)
        taken.append(np.arange(position, position + before, dtype=np.int64))
        position, rows = stop, rows - before
    return np.concatenate([*taken, np.arange(position, position + rows, dtype=np.int64)])


def no_text(phase: str, empty: Sequence[str]) -> str:
    """What is wrong where weights name sub-sources that are empty."""
    return (
        f"phase {phase}: weights name {', '.join(empty)}, which has no text to train on; give it weight 0 or more text"
    )


class DataOrder:
    """The order of one phase. `used` holds c_s by pack key: ordinals that earlier phases drew from the same pack."""

    def __init__(
        self,
        seed: int,
        phase: str,
        slots: Mapping[str, int],
        packs: Sequence[Pack],
        used: Mapping[str, int] | None = None,
    ) -> None:
        by_source = {pack.source: pack for pack in packs}
        if missing := sorted(set(slots) - set(by_source)):
            raise ValueError(
                f"phase {phase}: no pack for the weighted sources {missing}; there are {sorted(by_source)}"
            )
        self.packs = [by_source[source] for source in sorted(slots)]
        if empty := [pack.source for pack in self.packs if pack.rows == 0]:
            raise ValueError(no_text(phase, empty))
        self.seed, self.phase = seed, phase
        self.slots = np.array([slots[pack.source] for pack in self.packs], dtype=np.int64)
        self.used = np.array([(used or {}).get(pack.key, 0) for pack in self.packs], dtype=np.int64)

    def locate(self, positions: Ints) -> Located:
        """Source, epoch, row group and offset of each position."""
        source, ordinal = self._ordinals(positions)
        epoch, group, offset = (np.empty_like(ordinal) for _ in range(3))
        for index, pack in enumerate(self.packs):
            mine = source == index
            epoch[mine] = ordinal[mine] // pack.rows
            for number in np.unique(epoch[mine]):
                now = mine & (epoch == number)
                group[now], offset[now] = _rows_of_epoch(self.seed, pack, int(number), ordinal[now] % pack.rows)
        return Located(positions, source, epoch, group, offset)

    def ordinals_until(self, position: int) -> dict[str, int]:
        """c_s of a following phase: pack key -> ordinals drawn once positions 0..position are used (half-open)."""
        block, rest = divmod(position, BLOCK_SLOTS)
        sources, _ = _block(self.seed, self.phase, block, tuple(self.slots.tolist()))
        within = np.bincount(sources[:rest], minlength=len(self.packs)).astype(np.int64)
        drawn = self.used + block * self.slots + within
        return {pack.key: int(count) for pack, count in zip(self.packs, drawn, strict=True)}

    def rows_of_positions(self, positions: Ints) -> list[RowRef]:
        """The pack part and row that each position reads; what `trace` shows of a step's positions."""
        located = self.locate(positions)
        refs = []
        for position, source, epoch, group, offset in zip(
            *(column.tolist() for column in (located.positions, located.source, located.epoch, located.group)),
            located.offset.tolist(),
            strict=True,
        ):
            pack = self.packs[source]
            part, row_group = pack.groups[group]
            row = row_group * GROUP_ROWS + offset
            refs.append(RowRef(position, pack.source, epoch, pack.parts[part].key, row))
        return refs

    def _ordinals(self, positions: Ints) -> tuple[Ints, Ints]:
        blocks, slot = np.divmod(positions, BLOCK_SLOTS)
        source, rank = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(blocks):
            inside = blocks == block
            sources, ranks = _block(self.seed, self.phase, int(block), tuple(self.slots.tolist()))
            source[inside], rank[inside] = sources[slot[inside]], ranks[slot[inside]]
        return source, (self.used[source] + blocks * self.slots[source] + rank).astype(np.int64)


def check_epochs(phases: Sequence[tuple[DataOrder, int]], max_epochs: float) -> None:
    """Raises ValueError when phases (order, positions consumed; a root first) read a pack above max_epochs times."""
    for order, positions in phases:
        drawn = order.ordinals_until(positions)
        for pack in order.packs:
            epochs = drawn[pack.key] * pack.length / pack.tokens
            if epochs > max_epochs:
                raise ValueError(
                    f"phase {order.phase} would read source {pack.source} {epochs:.2f} times "
                    f"({drawn[pack.key]} rows of {pack.length} from {pack.tokens} tokens); max_epochs is "
                    f"{max_epochs:g}: lower its weight or the phase's tokens, or raise max_epochs"
                )


def permute(values: Ints, size: int, key: str) -> Ints:
    """The keyed permutation of 0..size-1, applied to `values`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest(), dtype=np.uint64)
    found = _feistel(values.astype(np.uint64), half_bits, round_keys)
    while len(
        outside := np.flatnonzero(found >= size)
    ):  # walk the cycle back into the domain: under 4 turns on average
        found[outside] = _feistel(found[outside], half_bits, round_keys)
    return found.astype(np.int64)


def _feistel(
    values: npt.NDArray[np.uint64], half_bits: int, round_keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << bits) | right


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=64)
def _block(seed: int, phase: str, block: int, slots: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Source and rank of every slot of a block."""
    drawn = permute(np.arange(BLOCK_SLOTS, dtype=np.int64), BLOCK_SLOTS, f"{seed}/{phase}/{block}")
    sources = np.searchsorted(np.cumsum(slots), drawn, side="right").astype(np.int64)
    ranks = np.empty_like(sources)
    for source in range(len(slots)):
        ranks[sources == source] = np.arange(slots[source])
    return sources, ranks


@lru_cache(maxsize=64)
def _epoch_groups(seed: int, pack: Pack, epoch: int) -> tuple[Ints, Ints]:
    """The row groups of an epoch in reading order, and where each begins among the epoch's rows (one entry more)."""
    count = len(pack.groups)
    groups = permute(np.arange(count, dtype=np.int64), count, f"{seed}/{pack.source}/{epoch}/groups")
    return groups, np.concatenate([[0], np.cumsum(pack.group_sizes[groups])])


def _rows_of_epoch(seed: int, pack: Pack, epoch: int, index: Ints) -> tuple[Ints, Ints]:
    """(row group, offset in it) of the index-th rows of an epoch."""
    groups, starts = _epoch_groups(seed, pack, epoch)
    run_starts = np.append(starts[:-1:RUN_GROUPS], starts[-1])
    runs = np.searchsorted(run_starts, index, side="right") - 1
    mixed = np.empty_like(index)
    for run in np.unique(runs):
        inside = runs == run
        start, size = int(run_starts[run]), int(run_starts[run + 1] - run_starts[run])
        mixed[inside] = start + permute(index[inside] - start, size, f"{seed}/{pack.source}/{epoch}/{run}")
    place = np.searchsorted(starts, mixed, side="right") - 1
    return groups[place], (mixed - starts[place]).astype(np.int64)
