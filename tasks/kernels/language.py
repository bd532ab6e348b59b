"""Naive Bayes over byte n-grams found by an automaton: the model of py3langid, without its Python loop per byte."""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Int, Offsets, inner, kernel

Floats = NDArray[np.float32]
Model = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int32], Floats, Floats, NDArray[np.int64]]


@kernel
def identify(data: Bytes, offsets: Offsets, model: Model) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Class and probability per text; class -1 and 0.0 for a text in which the model recognises nothing.

    model: automaton rows (256 entries each), row of each state, feature that a state completes (or -1), log likelihood
    (features x classes), log prior, and for each class the one that it counts as.
    """
    moves, row_of, completes, likelihood, prior, counts_as = model
    num_texts = len(offsets) - 1
    best, probability = np.full(num_texts, -1, np.int64), np.zeros(num_texts)
    seen, found = np.zeros(len(likelihood), np.int32), np.empty(len(likelihood), np.int64)
    scores, merged = np.empty(len(prior), np.float32), np.empty(len(prior))
    for text in range(num_texts):
        start, end = offsets[text], offsets[text + 1]
        used = _count_features(data, start, end, moves, (row_of, completes), (seen, found))
        if used:
            _score(seen, found, used, likelihood, prior, scores)
            # a temperature of sqrt(bytes) keeps probabilities comparable between lengths (py3langid's own scale)
            best[text], probability[text] = _choose(scores, 1 / np.sqrt(end - start), counts_as, merged)
    return best, probability


@inner
def _score(
    seen: NDArray[np.int32], found: NDArray[np.int64], used: int, likelihood: Floats, prior: Floats, scores: Floats
) -> None:
    """Log posterior of each class; the counts are zero again afterwards."""
    for i in range(len(prior)):
        scores[i] = prior[i]
    for k in range(used):
        feature = found[k]
        weight = np.float32(np.log1p(seen[feature]))
        seen[feature] = 0
        for i in range(len(prior)):
            scores[i] += weight * likelihood[feature, i]


@inner
def _choose(
    scores: Floats, scale: float, counts_as: NDArray[np.int64], merged: NDArray[np.float64]
) -> tuple[Int, float]:
    """The most probable class, classes that count as one added up, and its share of the probability."""
    highest, best, total = scores[0], 0, 0.0
    for i in range(len(scores)):
        highest = max(highest, scores[i])
        merged[i] = 0
    for i in range(len(scores)):
        weight = np.exp((scores[i] - highest) * scale)
        merged[counts_as[i]] += weight
        total += weight
    for i in range(len(scores)):
        if merged[i] > merged[best]:
            best = i
    return best, merged[best] / total


@inner
def _count_features(
    data: Bytes,
    start: int,
    end: int,
    moves: NDArray[np.uint32],
    states: tuple[NDArray[np.uint32], NDArray[np.int32]],
    tally: tuple[NDArray[np.int32], NDArray[np.int64]],
) -> int:
    """Count features into tally[0], list those met in tally[1]; returns how many are listed."""
    row_of, completes = states
    seen, found = tally
    state = used = 0
    for i in range(start, end):
        state = moves[(np.int64(row_of[state]) << 8) + data[i]]
        feature = completes[state]
        if feature >= 0:
            if seen[feature] == 0:
                found[used] = feature
                used += 1
            seen[feature] += 1
    return used
