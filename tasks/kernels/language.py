"""Naive Bayes over byte n-grams found by an automaton: the model of py3langid, without its Python loop per byte."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Int, Offsets, inner, kernel
from tasks.kernels.utf8 import decode

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Model = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int32], Halves, Floats, NDArray[np.int64]]
TABLED = 64  # how often a feature is seen, nearly always below


@kernel
def count_letters(data: Bytes, offsets: Offsets) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(characters of scripts that are not Latin, ASCII letters) of each text."""
    foreign, latin = np.zeros(len(offsets) - 1, np.int64), np.zeros(len(offsets) - 1, np.int64)
    for text in range(len(offsets) - 1):
        for i in range(offsets[text], offsets[text + 1]):
            if data[i] < 0x80:
                latin[text] += np.uint8((data[i] | np.uint8(32)) - np.uint8(97)) < 26
            elif data[i] >= 0xC0:
                code = decode(data, i)[0]
                script = (0x370 <= code < 0x2000 and not 0x1E00 <= code < 0x1F00) or 0x2E80 <= code < 0xFB00
                foreign[text] += script or 0x20000 <= code < 0x40000
    return foreign, latin


@kernel
def identify(data: Bytes, offsets: Offsets, model: Model) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Class and probability per text; class -1 and 0.0 for a text in which the model recognises nothing.

    model: automaton rows (256 entries each), row of each state, feature that a state completes (or -1), log likelihood
    (features x classes; the bits of float16), log prior, and for each class the one that it counts as.
    """
    moves, row_of, completes, likelihood, prior, counts_as = model
    num_texts = len(offsets) - 1
    best, probability = np.full(num_texts, -1, np.int64), np.zeros(num_texts)
    seen, found = np.zeros(len(likelihood), np.int32), np.empty(len(likelihood), np.int64)
    scores, merged = np.empty(len(prior), np.float32), np.empty(len(prior))
    weights = np.log1p(np.arange(TABLED)).astype(np.float32)
    for text in range(num_texts):
        start, end = offsets[text], offsets[text + 1]
        used = _count_features(data, start, end, moves, (row_of, completes), (seen, found))
        if used:
            _score((seen, found), used, likelihood, prior, weights, scores)
            # a temperature of sqrt(bytes) keeps probabilities comparable between lengths (py3langid's own scale)
            best[text], probability[text] = _choose(scores, 1 / np.sqrt(end - start), counts_as, merged)
    return best, probability


@intrinsic
def _of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 of 32 bits."""
    return types.float32(types.uint32), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], ir.FloatType()
    )


@inner
def _score(
    tally: tuple[NDArray[np.int32], NDArray[np.int64]],
    used: int,
    likelihood: Halves,
    prior: Floats,
    weights: Floats,
    scores: Floats,
) -> None:
    """Log posterior of each class; the counts are zero again afterwards."""
    seen, found = tally
    for i in range(len(prior)):
        scores[i] = prior[i]
    for k in range(used):
        feature = np.uint64(found[k])
        count = seen[feature]
        weight = weights[count] if count < TABLED else np.float32(np.log1p(count))
        seen[feature] = 0
        for i in range(len(prior)):
            half = np.uint32(likelihood[feature, i])
            bits = (half & np.uint32(0x8000)) << np.uint32(16) | (half & np.uint32(0x7FFF)) << np.uint32(13)
            scores[i] += weight * (_of_bits(bits) * np.float32(2.0**112))  # float16 has a bias of 15, float32 of 127


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
