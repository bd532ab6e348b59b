"""The automaton and the Bayes scores on a model of two classes that can be computed by hand."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.kernels.buffers import frozen, text_buffers
from tasks.kernels.language import Model, identify


def toy_model() -> Model:
    """Feature 0 is "a", feature 1 is "b"; classes 0 and 2 count as class 0."""
    moves = np.zeros(256, np.uint32)
    moves[ord("a")], moves[ord("b")] = 1, 2
    rows = np.zeros(3, np.uint32)
    completes = np.array([-1, 0, 1], np.int32)
    likelihood = np.array([[0.0, -2.0, -1.0], [-2.0, 0.0, -3.0]], np.float32)
    model = moves, rows, completes, likelihood, np.zeros(3, np.float32), np.array([0, 1, 0], np.int64)
    for array in model:
        frozen(array)
    return model


def test_classes_and_probabilities() -> None:
    best, probability = identify(*text_buffers(pa.array(["aab", "bb", "", "xyz"], pa.large_string())), toy_model())
    assert best.tolist() == [0, 1, -1, -1]
    weight_a, weight_b = np.log1p(2), np.log1p(1)
    scores = np.array([-2 * weight_b, -2 * weight_a, -weight_a - 3 * weight_b]) / np.sqrt(3)
    shares = np.exp(scores) / np.exp(scores).sum()
    assert probability[0] == pytest.approx(shares[0] + shares[2], rel=1e-6)
    assert probability[2:].tolist() == [0, 0]


def test_texts_do_not_see_one_another() -> None:
    texts = ["ab" * 5, "b", "a"]
    together = identify(*text_buffers(pa.array(texts, pa.large_string())), toy_model())
    for place, text in enumerate(texts):
        alone = identify(*text_buffers(pa.array([text], pa.large_string())), toy_model())
        assert (together[0][place], together[1][place]) == (alone[0][0], alone[1][0])
