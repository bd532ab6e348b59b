"""Logistic regression against plain Python: the same n-grams, margins and updates; where n-grams stand."""

import math

import numpy as np
import pyarrow as pa
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.linear import START, find_buckets, margins, texts_per_bucket, train_weights
from tasks.kernels.ngrams import run_hashes
from tests.tasks.kernels.test_words import words_of

TEXTS = ["good good words here", "bad words there", "", "a good day", "bad bad bad", "..."]
LABELS = np.array([1.0, 0, 1, 1, 0, 0])
BUCKETS = 1 << 12


def plain_buckets(text: str, ngram_words: int) -> list[int]:
    return [int(value) % BUCKETS for n in range(1, ngram_words + 1) for value in run_hashes(text, n)]


def plain_training(ngram_words: int, epochs: int, rate: float, importance: list[float]) -> tuple[list[float], float]:
    """AdaGrad, one text after the other, one n-gram after the other."""
    weights, squares, bias, bias_squares = [0.0] * BUCKETS, [START] * BUCKETS, 0.0, START
    for _ in range(epochs):
        for text, label, factor in zip(TEXTS, LABELS.tolist(), importance, strict=True):
            found = plain_buckets(text, ngram_words)
            if not found:
                continue
            margin = bias + sum(weights[bucket] for bucket in found) / math.sqrt(len(found))
            gradient = (1 / (1 + math.exp(-margin)) - label) * factor
            bias_squares += gradient**2
            bias -= rate * gradient / math.sqrt(bias_squares)
            step = gradient / math.sqrt(len(found))
            for bucket in found:
                squares[bucket] += step**2
                weights[bucket] -= rate * step / math.sqrt(squares[bucket])
    return weights, bias


@pytest.mark.parametrize(("ngram_words", "epochs"), [(1, 1), (2, 4), (3, 2)])
def test_training_and_margins_equal_plain_python(ngram_words: int, epochs: int) -> None:
    importance = [1.0, 2.0, 1.0, 0.5, 1.0, 1.0]
    words = words_of(*TEXTS)
    weights, bias = train_weights(
        words, LABELS, np.array(importance), ngram_words=ngram_words, buckets=BUCKETS, epochs=epochs, rate=0.5
    )
    expected, expected_bias = plain_training(ngram_words, epochs, 0.5, importance)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)
    assert bias == pytest.approx(expected_bias, rel=1e-9)
    for text, margin in zip(TEXTS, margins(words, weights, bias, ngram_words), strict=True):
        found = plain_buckets(text, ngram_words)
        total = sum(float(weights[bucket]) for bucket in found)
        assert margin == pytest.approx(bias + (total / math.sqrt(len(found)) if found else 0))


def test_it_learns_and_texts_without_words_get_the_bias() -> None:
    words = words_of(*TEXTS)
    weights, bias = train_weights(words, LABELS, np.ones(6), ngram_words=1, buckets=BUCKETS, epochs=20, rate=0.5)
    found = margins(words_of("good", "bad", "", "never seen"), weights, bias, 1)
    assert found[0] > bias > found[1]
    assert found[2] == found[3] == bias


def test_texts_are_counted_once_per_bucket_and_places_are_bytes() -> None:
    counts = texts_per_bucket(words_of(*TEXTS), 2, BUCKETS)
    [good], [bad_bad] = plain_buckets("good", 1), plain_buckets("bad bad", 2)[2:]
    assert (counts[good], counts[bad_bad]) == (2, 1)
    data, offsets = text_buffers(pa.array(TEXTS, pa.large_string()))
    rows = find_buckets(data, offsets, np.array([bad_bad, good]), 2, BUCKETS, 10)
    places = sorted((index, TEXTS[text].encode()[first:end].decode()) for index, text, first, end in rows.tolist())
    assert places == [(0, "bad bad"), (0, "bad bad"), (1, "good"), (1, "good"), (1, "good")]
    assert len(find_buckets(data, offsets, np.array([bad_bad, good]), 2, BUCKETS, 1)) == 2


def test_hostile_texts_have_a_margin() -> None:
    weights = np.ones(BUCKETS, np.float32)
    found = margins(words_of("", "x" * 5_000_000, "日" * 100_000, "\0 ￿ 🖕", "a " * 1_000_000), weights, 0.5, 3)
    assert np.isfinite(found).all()
    assert found[0] == found[1] == 0.5  # no word, and none that ends in the head
    assert found[4] == pytest.approx(0.5 + math.sqrt(3 * (1 << 15) - 3))  # every n-gram of its first 64 KiB weighs 1
