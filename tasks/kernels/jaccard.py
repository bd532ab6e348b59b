"""The greedy walk through groups of candidate duplicates with true Jaccard similarity, compiled.

A group is walked in order: a document is dropped if and only if its Jaccard similarity with one that was kept is at
least the threshold; the first such in order is named. Documents are sets of shingle hashes, ascending.

Small groups compare each with each. In a large group (a band shared by a third of the corpus) that would be
quadratic, so kept documents are found by an index: two sets with J >= t share at least t * size elements, hence one
of the first size - ceil(t * size) + 1 elements of each in any common order (prefix filtering, Chaudhuri et al. 2006).
In the order rare shingles first, what all share comes last and finds nobody. Both ways give the same result.
"""

from typing import Any

import numpy as np
from numba import njit

SMALL_GROUP = 32
ROUNDING = 1e-9  # bounds that only save work err on the safe side


def walk_groups(
    hashes: np.ndarray, bounds: np.ndarray, order: np.ndarray, starts: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Who is dropped for whom: (row of the kept document or -1, their Jaccard), per row.

    hashes, bounds: the set of row i is hashes[bounds[i] : bounds[i + 1]]. order: rows, group after group, each in
    keeper order; starts: where groups begin in `order`, and its length at the end.
    """
    small = np.diff(starts) <= SMALL_GROUP
    matched, values = _walk_small(hashes, bounds, order, starts, small, threshold)
    for group in np.flatnonzero(~small):
        rows = order[starts[group] : starts[group + 1]]
        ranks, ends = _rare_first(hashes, bounds, rows)
        found, jaccard = _walk_indexed(ranks, ends, threshold)
        dropped = found >= 0
        matched[rows[dropped]] = rows[found[dropped]]
        values[rows[dropped]] = jaccard[dropped]
    return matched, values


def _rare_first(hashes: np.ndarray, bounds: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sets of these rows with each hash replaced by its rank (rare first), ascending, and their bounds."""
    tokens = np.concatenate([hashes[bounds[row] : bounds[row + 1]] for row in rows])
    ends = np.concatenate([[0], np.cumsum(bounds[rows + 1] - bounds[rows])])
    _, inverse, frequencies = np.unique(tokens, return_inverse=True, return_counts=True)
    rank_of = np.empty(len(frequencies), np.int64)
    rank_of[np.argsort(frequencies, kind="stable")] = np.arange(len(frequencies))
    ranks = rank_of[inverse]
    for row in range(len(rows)):
        ranks[ends[row] : ends[row + 1]].sort()
    return ranks, ends


@njit(cache=True)
def _jaccard(sets: Any, bounds: Any, one: int, other: int, threshold: float) -> float:
    """Similarity of two rows, or -1 as soon as it is sure to be below the threshold."""
    a, a_end, b, b_end = bounds[one], bounds[one + 1], bounds[other], bounds[other + 1]
    total = (a_end - a) + (b_end - b)
    needed = threshold / (1.0 + threshold) * total - ROUNDING
    if min(a_end - a, b_end - b) < needed:
        return -1.0
    shared = 0
    while a < a_end and b < b_end:
        if sets[a] == sets[b]:
            shared += 1
            a += 1
            b += 1
        else:
            if sets[a] < sets[b]:
                a += 1
            else:
                b += 1
            if shared + min(a_end - a, b_end - b) < needed:
                return -1.0
    similarity = shared / (total - shared)
    return similarity if similarity >= threshold else -1.0


@njit(cache=True)
def _walk_small(sets: Any, bounds: Any, order: Any, starts: Any, small: Any, threshold: float) -> Any:
    matched, values = np.full(len(order), -1, np.int64), np.zeros(len(order), np.float64)
    for group in range(len(small)):
        if not small[group]:
            continue
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            for earlier in range(starts[group], place):
                kept = order[earlier]
                if matched[kept] >= 0:
                    continue
                similarity = _jaccard(sets, bounds, row, kept, threshold)
                if similarity >= 0:
                    matched[row], values[row] = kept, similarity
                    break
    return matched, values


@njit(cache=True)
def _walk_indexed(sets: Any, bounds: Any, threshold: float) -> Any:
    """One group whose rows are in keeper order; elements are ranks from 0."""
    rows = len(bounds) - 1
    matched, values = np.full(rows, -1, np.int64), np.zeros(rows, np.float64)
    heads = np.full(sets.max() + 1, -1, np.int64)  # of each element: its latest posting
    posted, following = np.empty(len(sets), np.int64), np.empty(len(sets), np.int64)
    postings = 0
    seen, candidates = np.full(rows, -1, np.int64), np.empty(rows, np.int64)
    for row in range(rows):
        size = bounds[row + 1] - bounds[row]
        prefix = min(size, size - int(np.ceil(threshold * size - ROUNDING)) + 1)
        number = 0
        for place in range(bounds[row], bounds[row] + prefix):
            posting = heads[sets[place]]
            while posting >= 0:
                kept = posted[posting]
                if seen[kept] != row:
                    seen[kept] = row
                    candidates[number] = kept
                    number += 1
                posting = following[posting]
        for kept in np.sort(candidates[:number]):
            similarity = _jaccard(sets, bounds, row, kept, threshold)
            if similarity >= 0:
                matched[row], values[row] = kept, similarity
                break
        if matched[row] < 0:
            for place in range(bounds[row], bounds[row] + prefix):
                posted[postings], following[postings] = row, heads[sets[place]]
                heads[sets[place]] = postings
                postings += 1
    return matched, values
