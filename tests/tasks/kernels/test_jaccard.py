"""The greedy walk against its definition, in both ways of finding kept documents."""

import random
from itertools import pairwise

import numpy as np
import pytest

from tasks.kernels import jaccard
from tasks.kernels.jaccard import walk_groups


def random_sets(rng: random.Random, groups: int) -> tuple[list[set[int]], list[int]]:
    """Sets that overlap in every degree, and where groups begin."""
    sets: list[set[int]] = []
    starts = [0]
    for _ in range(groups):
        pool = [rng.getrandbits(64) for _ in range(30)]
        common = [rng.getrandbits(64) for _ in range(rng.randrange(40))]
        for _ in range(rng.randrange(1, 12)):
            sets.append(set(rng.sample(pool, rng.randrange(1, 30))) | set(common))
        starts.append(len(sets))
    return sets, starts


def slow_walk(
    sets: list[set[int]], order: list[int], starts: list[int], stays: np.ndarray, threshold: float
) -> dict[int, tuple[int, float]]:
    dropped: dict[int, tuple[int, float]] = {}
    for begin, end in pairwise(starts):
        kept: list[int] = []
        for row in order[begin:end]:
            for earlier in [] if stays[row] else kept:
                value = len(sets[row] & sets[earlier]) / len(sets[row] | sets[earlier])
                if value >= threshold:
                    dropped[row] = (earlier, value)
                    break
            else:
                kept.append(row)
    return dropped


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("small", [0, 6, 100])
def test_equals_the_definition(threshold: float, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaccard, "SMALL_GROUP", small)
    rng = random.Random(small)
    sets, starts = random_sets(rng, 40)
    order = [row for begin, end in pairwise(starts) for row in rng.sample(range(begin, end), end - begin)]
    hashes = np.array([value for members in sets for value in sorted(members)], np.uint64)
    bounds = np.cumsum([0, *map(len, sets)])
    stays = np.array([rng.random() < 0.2 for _ in sets])
    matched, values = walk_groups((hashes, bounds), np.array(order), np.array(starts), stays, threshold)
    found = {row: (int(matched[row]), float(values[row])) for row in np.flatnonzero(matched >= 0).tolist()}
    assert found == slow_walk(sets, order, starts, stays, threshold)
    assert found or threshold == 1.0


def test_a_group_of_revisions_equals_the_definition() -> None:
    rng = random.Random(5)
    sets: list[set[int]] = []
    for _ in range(60):
        members = [rng.getrandbits(64) for _ in range(40)]
        for _ in range(8):
            members[rng.randrange(40)] = rng.getrandbits(64)
            sets.append(set(members) | set(range(20)))
    rng.shuffle(sets)
    hashes = np.array([value for members in sets for value in sorted(members)], np.uint64)
    order = np.arange(len(sets))
    stays, bounds = np.zeros(len(sets), np.bool_), np.cumsum([0, *map(len, sets)])
    matched, _ = walk_groups((hashes, bounds), order, np.array([0, len(sets)]), stays, 0.7)
    expected = slow_walk(sets, order.tolist(), [0, len(sets)], stays, 0.7)
    assert {row: int(matched[row]) for row in np.flatnonzero(matched >= 0).tolist()} == {
        row: kept for row, (kept, _) in expected.items()
    }
    assert 100 < len(expected) < 480


@pytest.mark.parametrize("small", [0, 100])
def test_a_similarity_of_exactly_the_threshold_drops(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaccard, "SMALL_GROUP", small)
    one, other = list(range(17)), list(range(3, 20))  # 14 of 20: 0.7
    hashes = np.array(one + other, np.uint64)
    walk = ((hashes, np.array([0, 17, 34])), np.array([1, 0]), np.array([0, 2]), np.zeros(2, np.bool_))
    assert walk_groups(*walk, 0.7)[0].tolist() == [1, -1]
    assert walk_groups(*walk, 0.7000001)[0].tolist() == [-1, -1]


def test_no_groups_give_nothing() -> None:
    empty = np.empty(0, np.int64)
    sets = (np.empty(0, np.uint64), np.array([0]))
    assert len(walk_groups(sets, empty, np.array([0]), np.zeros(0, np.bool_), 0.7)[0]) == 0
