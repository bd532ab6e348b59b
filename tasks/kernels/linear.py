"""Logistic regression over hashed word n-grams: training, scores, and where given n-grams stand.

A text's margin is bias + (sum of the weights of its n-grams of 1 to `ngram_words` words) / sqrt(their number), over the
words of its first HEAD_BYTES: evidence adds up, more slowly than in naive Bayes, whose words count as independent.
Training is AdaGrad (Duchi et al. 2011, JMLR 12) in the order of the texts given: serial, so the same bits every time.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets
from tasks.kernels.ngrams import power_of, read_words, run_hash, word_room, word_tables
from tasks.kernels.words import Words

Floats = NDArray[np.float64]
START = 1e-8  # of the sums of squared gradients: no division by zero
RARE = 5  # texts that an n-gram must stand in to be shown


def train_weights(
    words: Words, labels: Floats, importance: Floats, *, ngram_words: int, buckets: int, epochs: int, rate: float
) -> tuple[NDArray[np.float32], float]:
    """(weights of all buckets, bias) after so many passes over the texts.

    labels: 1.0 or 0.0 per text; importance: factor of its gradient; buckets: a power of two.
    """
    weights, bias = _train(words, labels, importance, (ngram_words, buckets, epochs, rate))
    return weights.astype(np.float32), float(bias)


def margins(words: Words, weights: NDArray[np.float32], bias: float, ngram_words: int) -> Floats:
    """Margin per text; the bias alone for a text without words."""
    return np.asarray(_margins(words, weights, bias, ngram_words))


def texts_per_bucket(words: Words, ngram_words: int, buckets: int) -> NDArray[np.int32]:
    """How many texts have an n-gram in each bucket."""
    return np.asarray(_texts_per_bucket(words, ngram_words, buckets))


def find_buckets(
    data: Bytes, offsets: Offsets, wanted: NDArray[np.int64], ngram_words: int, buckets: int, limit: int
) -> NDArray[np.int64]:
    """Rows (place in `wanted`, text, first byte, end byte): the first `limit` n-grams in each wanted bucket."""
    place = np.full(buckets, -1, np.int64)
    place[wanted] = np.arange(len(wanted))
    return np.asarray(_find_buckets(data, offsets, word_tables(), place, (ngram_words, len(wanted), limit)))


@njit(cache=True, nogil=True)
def _fill(words: Any, doc: int, ngram_words: int, buckets: int, out: Any) -> int:
    """The bucket of each n-gram of a text's head into `out`; how many there are."""
    first, count, mask = words.bounds[doc], words.heads[doc], np.uint64(buckets - 1)
    size = 0
    for length in range(1, ngram_words + 1):
        power = power_of(length)
        for word in range(first, first + count - length + 1):
            out[size] = run_hash(words.prefix, word, length, power) & mask
            size += 1
    return size


@njit(cache=True, nogil=True)
def _room_of(words: Any, ngram_words: int) -> Any:
    most = np.int64(0)
    for doc in range(len(words.heads)):
        most = max(most, words.heads[doc])
    return np.empty(most * ngram_words, np.int64)


@njit(cache=True, nogil=True)
def _train(words: Any, labels: Any, importance: Any, settings: Any) -> Any:
    ngram_words, buckets, epochs, rate = settings
    weights, squares, found = np.zeros(buckets), np.full(buckets, START), _room_of(words, ngram_words)
    bias, bias_squares = 0.0, START
    for _ in range(epochs):
        for doc in range(len(labels)):
            size = _fill(words, doc, ngram_words, buckets, found)
            if size == 0:
                continue
            scale, margin = 1 / np.sqrt(size), 0.0
            for k in range(size):
                margin += weights[found[k]]
            gradient = (1 / (1 + np.exp(-(margin * scale + bias))) - labels[doc]) * importance[doc]
            bias_squares += gradient * gradient
            bias -= rate * gradient / np.sqrt(bias_squares)
            step = gradient * scale
            for k in range(size):
                squares[found[k]] += step * step
                weights[found[k]] -= rate * step / np.sqrt(squares[found[k]])
    return weights, bias


@njit(cache=True, nogil=True)
def _margins(words: Any, weights: Any, bias: float, ngram_words: int) -> Any:
    out, mask = np.empty(len(words.heads)), np.uint64(len(weights) - 1)
    for doc in range(len(out)):
        first, count = words.bounds[doc], words.heads[doc]
        total, size = 0.0, 0
        for length in range(1, ngram_words + 1):
            power = power_of(length)
            for word in range(first, first + count - length + 1):
                total += weights[run_hash(words.prefix, word, length, power) & mask]
            size += max(count - length + 1, 0)
        out[doc] = bias + (total / np.sqrt(size) if size else 0.0)
    return out


@njit(cache=True, nogil=True)
def _texts_per_bucket(words: Any, ngram_words: int, buckets: int) -> Any:
    counts, last, found = np.zeros(buckets, np.int32), np.full(buckets, -1, np.int32), _room_of(words, ngram_words)
    for doc in range(len(words.heads)):
        for k in range(_fill(words, doc, ngram_words, buckets, found)):
            counts[found[k]] += last[found[k]] != doc
            last[found[k]] = doc
    return counts


@njit(cache=True, nogil=True)
def _find_buckets(data: Any, offsets: Any, tables: Any, place: Any, settings: Any) -> Any:
    ngram_words, wanted, limit = settings
    largest = 0
    for doc in range(len(offsets) - 1):
        largest = max(largest, int(offsets[doc + 1] - offsets[doc]))
    sums, begins, ends = word_room(largest)
    seen, rows, size, mask = np.zeros(wanted, np.int64), np.empty((wanted * limit, 4), np.int64), 0, len(place) - 1
    for doc in range(len(offsets) - 1):
        count = read_words(data, offsets[doc], offsets[doc + 1], tables, sums, begins, ends)[3]
        for length in range(1, ngram_words + 1):
            power = power_of(length)
            for word in range(count - length + 1):
                index = place[run_hash(sums, word, length, power) & np.uint64(mask)]
                if index >= 0 and seen[index] < limit:
                    seen[index] += 1
                    rows[size, 0], rows[size, 1] = index, doc
                    rows[size, 2], rows[size, 3] = begins[word], ends[word + length - 1]
                    size += 1
    return rows[:size].copy()
