"""Modified Kneser-Ney against numbers computed by hand and against a plain reference; probabilities sum to 1."""

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tasks.kernels.kneser_ney import discounts_of, estimate, hash_table, log_perplexities
from tests.tasks.kernels.test_words import words_of

MARK, LETTERS = "<s>", "abcdefg"
Probability = Callable[[tuple[str, ...], str], float]


def perplexities(texts: list[str], order: int, min_count: int, measured: list[str]) -> list[float]:
    table = hash_table(estimate(words_of(*texts), order, min_count), order)
    return [float(value) for value in np.exp(log_perplexities(words_of(*measured), table))]


def test_a_bigram_model_computed_by_hand() -> None:
    """Texts "a b" and "a c", discounts 0.5, 1, 1.5 (too few counts to estimate them).

    Bigrams: (mark a) 2, (a b) 1, (a c) 1. Different words before: a 1, b 1, c 1, so each unigram counts 1 of 3, and
    p(x) = (1 - 0.5) / 3 + gamma / 4 with gamma = 3 x 0.5 / 3 = 0.5: 7/24 for a, b, c; 1/8 for an unknown word.
    p(a | mark) = (2 - 1) / 2 + (1 / 2) 7/24 = 31/48; p(b | a) = (1 - 0.5) / 2 + (0.5 + 0.5) / 2 x 7/24 = 19/48.
    """
    p_a, p_b = 31 / 48, 19 / 48
    found = perplexities(["a b", "a c"], 2, 1, ["a b", "a", "a x", "x a", ""])
    assert found[:2] == pytest.approx([1 / math.sqrt(p_a * p_b), 1 / p_a])
    assert found[2] == pytest.approx(1 / math.sqrt(p_a * 0.5 / 8))
    assert found[3] == pytest.approx(1 / math.sqrt(0.5 / 8 * 7 / 24))  # no context x: the shorter one's probability
    assert math.isnan(found[4])


def test_discounts_follow_the_counts_of_counts() -> None:
    counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 1 + [9])  # y = 8 / 16
    assert discounts_of(counts).tolist() == [0, 1 - 2 * 0.5 * 4 / 8, 2 - 3 * 0.5 * 2 / 4, 3 - 4 * 0.5 * 1 / 2]
    assert discounts_of(np.array([1, 1, 5])).tolist() == [0, 0.5, 1, 1.5]
    assert discounts_of(np.array([1] * 4 + [2] + [3] * 9 + [4])).tolist() == [0, 0.5, 1, 1.5]  # the estimate is below 0


def plain_model(texts: list[str], order: int, min_count: int) -> tuple[Probability, set[str]]:
    """The definition, n-gram by n-gram."""
    grams = [Counter[tuple[str, ...]]() for _ in range(order + 1)]
    for text in texts:
        row = [MARK] * (order - 1) + text.split()
        grams[order].update(tuple(row[end - order + 1 : end + 1]) for end in range(order - 1, len(row)))
    for n in range(order - 1, 0, -1):
        grams[n].update(gram[1:] for gram in grams[n + 1])
    vocabulary = {word for text in texts for word in text.split()}
    discounts = [discounts_of(np.array([*counter.values(), 0])).tolist() for counter in grams]

    def probability(context: tuple[str, ...], word: str) -> float:
        n = len(context) + 1
        lower = probability(context[1:], word) if n > 1 else 1 / (len(vocabulary) + 1)
        here = {gram[-1]: count for gram, count in grams[n].items() if gram[:-1] == context}
        total = sum(here.values())
        if not total:
            return lower
        least = min_count if n == order > 1 else 1
        rest = {w: max(c - discounts[n][min(c, 3)], 0) for w, c in here.items() if c >= least}
        return float((rest.get(word, 0) + (total - sum(rest.values())) * lower) / total)

    return probability, vocabulary


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("min_count", [1, 2])
def test_equal_to_the_definition(order: int, min_count: int) -> None:
    generator = random.Random(order)
    texts = [" ".join(generator.choices("aaaaabbbbcccdde" + LETTERS, k=generator.randint(1, 30))) for _ in range(20)]
    measured = [" ".join(generator.choices(LETTERS + "z", k=generator.randint(1, 12))) for _ in range(30)]
    probability, vocabulary = plain_model(texts, order, min_count)
    for text, found in zip(measured, perplexities(texts, order, min_count, measured), strict=True):
        row = [MARK] * (order - 1) + text.split()
        logs = [math.log(probability(tuple(row[i - order + 1 : i]), row[i])) for i in range(order - 1, len(row))]
        assert found == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-5)
    for context in ("abcd", "zzzz", "aaaa"):
        words = [*vocabulary, "(unknown)"]
        assert sum(probability(tuple(context[: order - 1]), word) for word in words) == pytest.approx(1)


def test_texts_are_independent_of_each_other_and_of_their_order() -> None:
    texts = ["a b c a", "b c", "c c c a b", ""]
    measured = ["a b c", "c b a"]
    once = perplexities(texts, 3, 1, measured)
    assert perplexities(texts[::-1], 3, 1, measured) == once
    assert perplexities(texts, 3, 1, measured[::-1]) == once[::-1]


def test_hostile_texts_have_a_perplexity() -> None:
    found = perplexities(["a b c", "a b d"], 3, 2, ["x" * 5_000_000, "日" * 10_000, "\0 🖕", "a b " * 100_000])
    assert found[0] > 1
    assert found[1] > found[3] > 1
    assert math.isnan(found[2])
