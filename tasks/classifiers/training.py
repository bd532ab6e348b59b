"""Trains the classifiers of the stage "classifiers" on a sample, and measures them on a part that was held out.

Texts are taken in the order of their rank, a hash: of each class every tenth from the first on is for the report, every
tenth from the sixth on for the calibration, the others for training. Both classes weigh the same in training,
calibration and report, however many texts each has, so a score is the probability of the positive class at equal
proportions. Calibration: Platt 1999, by Newton's method as in Lin, Lin and Weng 2007 (Machine Learning 68).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.classifier_models import LinearModel, listed_words_bytes, perplexity_bytes
from tasks.errors import DataError
from tasks.kernels.buffers import text_buffers
from tasks.kernels.kneser_ney import estimate, hash_table, log_perplexities
from tasks.kernels.linear import find_buckets, texts_per_bucket, train_weights
from tasks.kernels.words import Words, hash_words
from tasks.recipe_files import unmarked

FOLDS, REPORTED, CALIBRATED = 10, 0, 5
MIN_TEXTS = 20  # of a class, so that two stand in each small fold
EPOCHS, RATE = 5, 0.5  # best of a grid on 5,500 labelled texts; half or double of either costs less than 0.003 of AUC
NEWTON_STEPS, STEP_LIMIT = 100, 1e-10
PLATT_DIGITS = 6  # significant ones: the last bits of a sum may differ between processors
BINS = 10
SHOWN_NGRAMS, MIN_SHOWN_TEXTS, LOOKED_AT = 20, 5, 50  # of each class; texts that have it; places where it is read
PERPLEXITY_PERCENTILES = (10, 30, 50, 60, 90)  # 30 and 60: where CCNet cuts head, middle and tail

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Texts of one class, sorted by rank and text."""

    texts: list[str]
    ranks: list[int]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str]]) -> "Sample":
        """Each text once."""
        ordered = sorted({text: rank for rank, text in sorted(rows, reverse=True)}.items(), key=lambda row: row[::-1])
        return cls([text for text, _ in ordered], [rank for _, rank in ordered])


def train_linear(
    kind: str, positive: Sample, negative: Sample, ngram_words: int, buckets: int
) -> tuple[bytes, dict[str, Any]]:
    """The file of a calibrated model and the report of its training. Raises DataError when a class is too small."""
    for name, sample in (("positive", positive), ("negative", negative)):
        if len(sample.texts) < MIN_TEXTS:
            raise DataError(
                f"classifiers.{kind}: {len(sample.texts)} different {name} texts; at least {MIN_TEXTS} are needed"
            )
    rows = sorted(
        (rank, fold % FOLDS, label, text)
        for label, sample in ((1.0, positive), (0.0, negative))
        for fold, (rank, text) in enumerate(zip(sample.ranks, sample.texts, strict=True))
    )
    folds, labels = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    texts = pa.array([row[3] for row in rows], pa.large_string())
    is_trained_on = (folds != REPORTED) & (folds != CALIBRATED)
    model = _fit(texts.filter(is_trained_on), labels[is_trained_on], ngram_words, buckets)
    calibrated = _calibrate(model, texts.filter(folds == CALIBRATED), labels[folds == CALIBRATED])
    report = {
        "texts": {"positive": len(positive.texts), "negative": len(negative.texts)},
        "trained_on": int(is_trained_on.sum()),
        **_measure(calibrated, texts.filter(folds == REPORTED), labels[folds == REPORTED]),
        "top_ngrams": top_ngrams(model, texts.filter(is_trained_on)),
    }
    return calibrated.to_bytes(kind), report


def train_perplexity(sample: Sample, order: int, min_count: int) -> tuple[bytes, dict[str, Any]]:
    """The file of an n-gram model and its report: perplexities of a tenth of the texts, which it was not trained on."""
    if len(sample.texts) < FOLDS:
        raise DataError(f"classifiers.perplexity: {len(sample.texts)} different texts; at least {FOLDS} are needed")
    held_out = np.arange(len(sample.texts)) % FOLDS == REPORTED
    texts = pa.array(sample.texts, pa.large_string())
    words = _words(texts.filter(~held_out))
    if len(words.prefix) == len(words.heads):
        raise DataError("classifiers.perplexity: the texts to train on have no words")
    model = estimate(words, order, min_count)
    logs = log_perplexities(_words(texts.filter(held_out)), hash_table(model, order))
    known = np.exp(logs[~np.isnan(logs)])
    report = {
        "texts": len(sample.texts),
        "words": len(words.prefix) - len(words.heads),
        "ngrams": len(model.keys),
        "held_out_perplexity": {
            str(percent): round(float(np.percentile(known, percent)), 1) for percent in PERPLEXITY_PERCENTILES
        }
        if len(known)
        else {},
    }
    return perplexity_bytes(model, order), report


def join_word_lists(lists: Sequence[bytes]) -> tuple[bytes, dict[str, Any]]:
    """The file of all entries, one per line of the lists (UTF-8), and how many there are. Raises DataError."""
    entries = []
    for number, data in enumerate(lists):
        try:
            entries += [line.strip() for line in unmarked(data).decode().splitlines()]
        except ValueError as error:
            raise DataError(f"classifiers.toxicity.word_lists[{number}]: no UTF-8 text ({error})") from error
    entries = sorted({entry for entry in entries if entry})
    counts = np.diff(_words(pa.array(entries, pa.large_string())).bounds) - 1
    if not counts.any():
        raise DataError("classifiers.toxicity.word_lists: the lists have no entry with a letter or digit")
    return listed_words_bytes(entries), {"entries": len(entries), "entries_without_words": int((counts == 0).sum())}


def platt_scaling(margins: Floats, labels: Floats, importance: Floats) -> tuple[float, float]:
    """(scale, offset) of the most probable calibration; labels count as (n + 1) / (n + 2), so that none is certain."""
    positives, negatives = labels.sum(), (1 - labels).sum()
    targets = np.where(labels > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    scale, offset = 1.0, 0.0
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(scale * margins + offset)))
        error, weight = (p - targets) * importance, np.maximum(p * (1 - p), 1e-12) * importance
        gradient = np.array([(error * margins).sum(), error.sum()])
        across = (weight * margins).sum()
        hessian = np.array([[(weight * margins**2).sum() + 1e-9, across], [across, weight.sum() + 1e-9]])
        step = np.linalg.solve(hessian, gradient)
        step *= min(1.0, 1 / max(np.abs(step).max(), 1e-12))  # far from the end Newton's step can be too long
        scale, offset = scale - step[0], offset - step[1]
        if np.abs(step).max() < STEP_LIMIT:
            break
    return _rounded(scale), _rounded(offset)


def area_under_curve(scores: Floats, labels: Floats) -> float:
    """Probability that a positive text scores above a negative one, ties counting half (Mann-Whitney U)."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives, negatives = labels.sum(), (1 - labels).sum()
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def top_ngrams(model: LinearModel, texts: pa.Array) -> dict[str, list[dict[str, Any]]]:
    """The n-grams with the largest weights for and against, of those in at least MIN_SHOWN_TEXTS texts.

    A bucket is shown by the n-gram that stands in it most often. Text of documents: escape it where it is shown.
    """
    counts = texts_per_bucket(_words(texts), model.ngram_words, len(model.weights))
    order = np.lexsort((np.arange(len(counts)), model.weights))
    order = order[counts[order] >= MIN_SHOWN_TEXTS]
    chosen = {"positive": order[::-1][:SHOWN_NGRAMS], "negative": order[:SHOWN_NGRAMS]}
    signs = {"positive": 1, "negative": -1}
    return {
        name: [
            {"ngram": ngram, "weight": round(float(model.weights[bucket]), 4), "texts": int(counts[bucket])}
            for bucket, ngram in zip(buckets, _commonest(model, texts, buckets), strict=True)
            if model.weights[bucket] * signs[name] > 0
        ]
        for name, buckets in chosen.items()
    }


def _commonest(model: LinearModel, texts: pa.Array, buckets: NDArray[np.int64]) -> list[str]:
    data, offsets = text_buffers(texts)
    found: list[Counter[str]] = [Counter() for _ in buckets]
    rows = find_buckets(data, offsets, buckets, model.ngram_words, len(model.weights), LOOKED_AT)
    for index, text, first, end in rows.tolist():
        start = int(offsets[text])
        found[index][" ".join(data[start + first : start + end].tobytes().decode().lower().split())] += 1
    return [min(counter, key=lambda ngram: (-counter[ngram], ngram)) for counter in found]


def _fit(texts: pa.Array, labels: Floats, ngram_words: int, buckets: int) -> LinearModel:
    weights, bias = train_weights(
        _words(texts), labels, _importance(labels), ngram_words=ngram_words, buckets=buckets, epochs=EPOCHS, rate=RATE
    )
    return LinearModel(weights, _rounded(bias), ngram_words)


def _calibrate(model: LinearModel, texts: pa.Array, labels: Floats) -> LinearModel:
    scale, offset = platt_scaling(model.margins(_words(texts)), labels, _importance(labels))
    return replace(model, scale=scale, offset=offset)


def _measure(model: LinearModel, texts: pa.Array, labels: Floats) -> dict[str, Any]:
    """Quality on texts that had no part in the model."""
    margins, importance = model.margins(_words(texts)), _importance(labels)
    scores = 1 / (1 + np.exp(-(model.scale * margins + model.offset)))
    bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    table = []
    for number in range(BINS):
        here = bins == number
        if here.any():
            weights = importance[here]
            row = {"from": number / BINS, "texts": int(here.sum())}
            row["mean_score"] = round(float(np.average(scores[here], weights=weights)), 4)
            row["positive_ratio"] = round(float(np.average(labels[here], weights=weights)), 4)
            table.append(row)
    is_right = (scores >= 0.5) == (labels > 0)
    return {
        "held_out": len(labels),
        "auc": round(area_under_curve(margins, labels), 6),
        "accuracy": round(float(np.average(is_right, weights=importance)), 6),
        "calibration": table,
    }


def _importance(labels: Floats) -> Floats:
    """Factors that give both classes half of the weight; 1 on average."""
    share = labels.mean()
    return np.where(labels > 0, 0.5 / share, 0.5 / (1 - share))


def _words(texts: pa.Array) -> Words:
    return hash_words(*text_buffers(texts))


def _rounded(value: float) -> float:
    return float(f"{value:.{PLATT_DIGITS}g}")
