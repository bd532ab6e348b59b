"""Naive Bayes over byte n-grams found by an automaton: the model of py3langid, without its Python loop per byte."""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets, inner, kernel

Floats = NDArray[np.float32]
Model = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int32], Floats, Floats, NDArray[np.int64]]


@kernel
def identify(data: Bytes, offsets: Offsets, model: Model) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Class and probability per text; class -1 and 0.0 for a text in which the model recognises nothing.

    model: automaton rows (256 entries each), row of each state, feature that a state completes (or -1), log likelihood
    (features x classes), log prior, and for each class the one that it counts as.
    """
    moves, row_of, completes, likelihood, prior, counts_as = model
    num_texts, num_classes = len(offsets) - 1, len(prior)
    best, probability = np.full(num_texts, -1, np.int64), np.zeros(num_texts)
    seen, found = np.zeros(len(likelihood), np.int32), np.empty(len(likelihood), np.int64)
    scores, merged = np.empty(num_classes, np.float32), np.empty(num_classes)
    for text in range(num_texts):
        used = _count_features(data, offsets[text], offsets[text + 1], moves, (row_of, completes), (seen, found))
        if used == 0:
            continue
        scores[:] = prior
        for k in range(used):
            feature = found[k]
            weight = np.float32(np.log1p(seen[feature]))
            seen[feature] = 0
            for i in range(num_classes):
                scores[i] += weight * likelihood[feature, i]
        # a temperature of sqrt(bytes) keeps probabilities comparable between lengths (py3langid's own scale)
        scale = 1 / np.sqrt(offsets[text + 1] - offsets[text])
        merged[:] = 0
        highest = scores.max()
        for i in range(num_classes):
            merged[counts_as[i]] += np.exp((scores[i] - highest) * scale)
        best[text] = np.argmax(merged)
        probability[text] = merged[best[text]] / merged.sum()
    return best, probability


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
