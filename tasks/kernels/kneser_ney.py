"""Word n-gram model with modified Kneser-Ney smoothing: n-grams as 64-bit keys, counts to probabilities, perplexity.

Chen and Goodman 1998 (TR-10-98), interpolated form. The highest order counts n-grams, a lower one in how many different
words' company each was seen (the number of distinct words before it). A text begins with order - 1 marks, so that each
n-gram has a word before it. With c the count, C(h) the sum of counts after the context h and D the discount of c:

    p(w | h) = (c - D) / C(h) + gamma(h) p(w | h without its first word)      p(w) ends in 1 / (vocabulary + 1)

gamma(h) is the mass that discounts free, that of pruned n-grams included, so that p(. | h) always sums to 1. An
unknown word has the share of the "+ 1". Two n-grams share a key with probability 2^-64.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.kernels.ngrams import power_of, run_hash
from tasks.kernels.words import Words

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

ORDER_MIX, MARK_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
KEY_MIX = np.uint64(0xBF58476D1CE4E5B9)
EMPTY = np.uint64(0)  # of a slot; a key of 0 becomes 1
NOT_LOOKED_UP = -2
FALLBACK = (0.5, 1.0, 1.5)  # discounts where too few n-grams occur 1 to 4 times to estimate them (KenLM's)


class Model(NamedTuple):
    """n-grams of all orders, sorted by key: log p(w | h), and log gamma of the n-gram as a context (0: never one)."""

    keys: Keys
    log_probabilities: NDArray[np.float32]
    log_backoffs: NDArray[np.float32]
    log_unknown: float


class _Level(NamedTuple):
    """The different n-grams of one order; `token`: where each was seen first."""

    keys: Keys
    token: NDArray[np.int64]
    counts: NDArray[np.int64]
    contexts: Keys
    suffixes: Keys


def estimate(words: Words, order: int, min_count: int) -> Model:
    """The model of these texts; n-grams of the highest order seen less often than `min_count` are left out."""
    keys, is_first = ngram_keys(words, order)
    levels = _count_levels(keys, is_first, order)
    vocabulary = len(levels[0].keys) + 1
    lower = np.full(vocabulary - 1, 1 / vocabulary)
    found, logs, backoffs = [], [], []
    log_unknown = 0.0
    for n, level in enumerate(levels, start=1):
        kept = level.counts >= (min_count if n == order and n > 1 else 1)
        contexts, alpha, gamma, place = discounted(level, kept)
        if n == 1:
            log_unknown = float(np.log(gamma[0] / vocabulary))
        else:
            lower = lower[np.searchsorted(levels[n - 2].keys, level.suffixes)]
            found.append(contexts)  # joined to the n-grams of the order below
            backoffs.append(np.log(gamma))
        lower = alpha + gamma[place] * lower
        logs.append((level.keys[kept], np.log(lower[kept])))
    return _assemble(logs, found, backoffs, log_unknown)


def discounted(level: _Level, kept: NDArray[np.bool_]) -> tuple[Keys, Floats, Floats, NDArray[np.int64]]:
    """Contexts; per n-gram (c - D) / C(h), 0 where not kept; per context gamma; the context of each n-gram."""
    contexts, place = np.unique(level.contexts, return_inverse=True)
    counts = level.counts.astype(np.float64)
    rest = np.where(kept, np.maximum(counts - discounts_of(level.counts)[np.minimum(level.counts, 3)], 0.0), 0.0)
    totals = np.bincount(place, counts, len(contexts))
    freed = np.bincount(place, counts - rest, len(contexts))
    return contexts, rest / totals[place], freed / totals, place


def discounts_of(counts: NDArray[np.int64]) -> Floats:
    """Discounts of counts 0, 1, 2 and 3 or more; FALLBACK where the estimate is not between 0 and the count."""
    n1, n2, n3, n4 = (float(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    if not (n1 and n2 and n3 and n4):
        return np.array((0.0, *FALLBACK))
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_sound = all(0 < discount <= count for count, discount in enumerate(found, start=1))
    return np.array((0.0, *(found if is_sound else FALLBACK)))


def ngram_keys(words: Words, order: int) -> tuple[Keys, NDArray[np.bool_]]:
    """(order x tokens) the key of the n-gram that ends at each token, n from 1; which tokens begin a text."""
    keys, is_first = _ngram_keys(words, order)
    return np.asarray(keys), np.asarray(is_first)


def _count_levels(keys: Keys, is_first: NDArray[np.bool_], order: int) -> list[_Level]:
    """Orders 1 to `order`."""
    levels = []
    found, token, counts = np.unique(keys[order - 1], return_index=True, return_counts=True)
    for n in range(order, 0, -1):
        before = keys[max(n - 2, 0)]
        marks = np.uint64(0) if n == 1 else np.uint64(ngram_key(np.uint64(0), n - 1, n - 1))
        contexts = np.where(is_first[token] | (n == 1), marks, before[token - 1])
        levels.append(_Level(found, token, counts, contexts, before[token]))
        if n > 1:  # how many different n-grams end with each shorter one
            found, place, counts = np.unique(before[token], return_index=True, return_counts=True)
            token = token[place]
    return levels[::-1]


def _assemble(
    logs: list[tuple[Keys, Floats]], contexts: list[Keys], backoffs: list[Floats], log_unknown: float
) -> Model:
    """One sorted table of all orders; contexts of marks alone have no probability."""
    keys = np.concatenate([key for key, _ in logs])
    log_p = np.concatenate([values for _, values in logs])
    of_contexts, log_gamma = np.concatenate([np.empty(0, np.uint64), *contexts]), np.concatenate([[], *backoffs])
    every = np.union1d(keys, of_contexts)
    probabilities, gammas = np.full(len(every), -np.inf, np.float32), np.zeros(len(every), np.float32)
    probabilities[np.searchsorted(every, keys)] = log_p
    gammas[np.searchsorted(every, of_contexts)] = log_gamma
    return Model(every, probabilities, gammas, log_unknown)


class Table(NamedTuple):
    """A model as an open hash table. Slot i: its key at cells[2 * i]; in the 8 bytes after it (one cache line) the
    logs of probability and backoff: logs[4 * i + 2] and logs[4 * i + 3] of the same memory."""

    cells: Keys
    logs: NDArray[np.float32]
    log_unknown: float
    order: int


def hash_table(model: Model, order: int) -> Table:
    """The model ready for `log_perplexities`; at most half of the slots are taken."""
    cells = np.zeros(2 << max(4, int(2 * len(model.keys) - 1).bit_length()), np.uint64)
    logs = cells.view(np.float32)
    _place(model.keys, model.log_probabilities, model.log_backoffs, cells, logs)
    return Table(cells, logs, model.log_unknown, order)


def log_perplexities(words: Words, table: Table) -> Floats:
    """Mean of -log p over the words of each text (natural log); NaN for a text without words."""
    return np.asarray(_log_perplexities(words, table))


@njit(cache=True, nogil=True)
def ngram_key(run: Any, length: int, marks: int) -> Any:
    """The key of a run of words with so many marks before it, `length` in all."""
    value = run + np.uint64(length) * ORDER_MIX + np.uint64(marks) * MARK_MIX
    value = (value ^ (value >> np.uint64(30))) * KEY_MIX
    value ^= value >> np.uint64(31)
    return value if value != EMPTY else np.uint64(1)


@njit(cache=True, nogil=True)
def _key_at(prefix: Any, first: Any, words: Any, length: int, powers: Any) -> Any:
    """The key of the n-gram that ends after so many words of the text whose sums begin at `first`."""
    real = min(length, words)
    run = run_hash(prefix, first + words - real, real, powers[real]) if real else np.uint64(0)
    return ngram_key(run, length, length - real)


@njit(cache=True, nogil=True)
def _powers(order: int) -> Any:
    powers = np.empty(order + 1, np.uint64)
    for length in range(order + 1):
        powers[length] = power_of(length)
    return powers


@njit(cache=True, nogil=True)
def _ngram_keys(words: Any, order: int) -> Any:
    texts, powers, token = len(words.heads), _powers(order), 0
    tokens = len(words.prefix) - texts
    keys, is_first = np.empty((order, tokens), np.uint64), np.zeros(tokens, np.bool_)
    for doc in range(texts):
        first = words.bounds[doc]
        for word in range(words.bounds[doc + 1] - first - 1):
            is_first[token] = word == 0
            for length in range(1, order + 1):
                keys[length - 1, token] = _key_at(words.prefix, first, word + 1, length, powers)
            token += 1
    return keys, is_first


@njit(cache=True, nogil=True)
def _place(keys: Any, log_probabilities: Any, log_backoffs: Any, cells: Any, logs: Any) -> None:
    mask = np.uint64(len(cells) - 1)
    for index in range(len(keys)):
        cell = (keys[index] << np.uint64(1)) & mask
        while cells[cell] != EMPTY:
            cell = (cell + np.uint64(2)) & mask
        cells[cell] = keys[index]
        logs[2 * cell + np.uint64(2)], logs[2 * cell + np.uint64(3)] = log_probabilities[index], log_backoffs[index]


@njit(cache=True, nogil=True)
def _find(table: Any, key: Any) -> Any:
    """The place in `logs` of what a key stands for, -1 when it is not there."""
    mask = np.uint64(len(table.cells) - 1)
    cell = (key << np.uint64(1)) & mask
    while table.cells[cell] != EMPTY:
        if table.cells[cell] == key:
            return np.int64(2 * cell + np.uint64(2))
        cell = (cell + np.uint64(2)) & mask
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _log_probability(prefix: Any, first: Any, words: Any, table: Any, powers: Any, places: Any) -> float:
    """log p of the last of so many words, given those before it.

    places[n] in: where the n-gram of the word before stands in the table (NOT_LOOKED_UP: not looked up); out: the same
    of this word's.
    """
    total, found, length = 0.0, np.int64(-1), table.order
    before = places[length - 1]
    while length > 0 and found < 0:
        found = _find(table, _key_at(prefix, first, words, length, powers))
        places[length] = found
        if found < 0 and length > 1:
            if before == NOT_LOOKED_UP:
                before = _find(table, _key_at(prefix, first, words - 1, length - 1, powers))
            total += table.logs[before + 1] if before >= 0 else 0.0
        length -= 1
        before = places[length - 1] if length > 0 else before
    for shorter in range(length + 1):
        places[shorter] = NOT_LOOKED_UP
    return total + (table.logs[found] if found >= 0 else table.log_unknown)


@njit(cache=True, nogil=True)
def _log_perplexities(words: Any, table: Any) -> Any:
    out, powers = np.full(len(words.heads), np.nan), _powers(table.order)
    places = np.empty(table.order + 1, np.int64)
    for doc in range(len(out)):
        first, total = words.bounds[doc], 0.0
        count = words.bounds[doc + 1] - first - 1
        places[:] = NOT_LOOKED_UP
        for word in range(1, count + 1):
            total -= _log_probability(words.prefix, first, word, table, powers, places)
        if count:
            out[doc] = total / count
    return out
