"""The automaton and the Bayes scores on a model of two classes that can be computed by hand."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.kernels.buffers import frozen, text_buffers
from tasks.kernels.language import TABLED, Model, count_letters, identify


def toy_model() -> Model:
    """Feature 0 is "a", feature 1 is "b"; classes 0 and 2 count as class 0."""
    moves = np.zeros(256, np.uint32)
    moves[ord("a")], moves[ord("b")] = 1, 2
    rows = np.zeros(3, np.uint32)
    completes = np.array([-1, 0, 1], np.int32)
    likelihood = np.array([[0.0, -2.0, -1.0], [-2.0, 0.0, -3.0]], np.float16).view(np.uint16)
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


def test_float16_likelihoods_are_read_exactly() -> None:
    for value in (-65504.0, -14.984375, -1.0, -0.333251953125, -6.103515625e-05, -5.960464477539063e-08, 2.5):
        likelihood = np.array([[0.0, value, -60000.0], [0.0, 0.0, 0.0]], np.float16).view(np.uint16)
        model = (*toy_model()[:3], frozen(likelihood), *toy_model()[4:5], frozen(np.arange(3)))
        _, probability = identify(*text_buffers(pa.array(["a"], pa.large_string())), model)
        share = 1 / (1 + np.exp(np.log1p(1) * np.float64(np.float16(value))))
        assert probability[0] == pytest.approx(max(share, 1 - share), rel=1e-7)


def test_a_feature_may_be_seen_often() -> None:
    texts = ["a" * count + "b" for count in (TABLED - 1, TABLED, 1000)]
    _, probability = identify(*text_buffers(pa.array(texts, pa.large_string())), toy_model())
    for text, found in zip(texts, probability.tolist(), strict=True):
        a, b = np.log1p(len(text) - 1), np.log1p(1)
        shares = np.exp(np.array([-2 * b, -2 * a, -a - 3 * b]) / np.sqrt(len(text)))
        assert found == pytest.approx(max(shares[0] + shares[2], shares[1]) / shares.sum(), rel=1e-5)


def test_letters_of_other_scripts_and_ascii_letters_are_counted() -> None:
    edges = [0x36F, 0x370, 0x1DFF, 0x1E00, 0x1EFF, 0x1F00, 0x1FFF, 0x2000, 0x2E7F, 0x2E80, 0xFAFF, 0xFB00]
    edges += [0x1FFFF, 0x20000, 0x3FFFF, 0x40000]
    inside = [0x370, 0x1DFF, 0x1F00, 0x1FFF, 0x2E80, 0xFAFF, 0x20000, 0x3FFFF]
    texts = ["", "az AZ @[`{ 09", "Ж x 我", *map(chr, edges)]
    foreign, latin = count_letters(*text_buffers(pa.array(texts, pa.large_string())))
    assert latin.tolist() == [0, 4, 1] + [0] * len(edges)
    assert foreign.tolist() == [0, 0, 2, *(int(code in inside) for code in edges)]
