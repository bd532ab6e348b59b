"""Training and its report: what a class must have, calibration, the area under the curve, held-out parts, order."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.classifier_models import LinearModel, parse_model
from tasks.classifiers.training import (
    MIN_TEXTS,
    Sample,
    area_under_curve,
    join_word_lists,
    platt_scaling,
    train_linear,
    train_perplexity,
)
from tasks.errors import DataError
from tests.tasks.kernels.test_words import words_of

BUCKETS = 1 << 12


def draw(words: str, count: int, seed: int, shared: str = "the of and to in") -> Sample:
    """Texts of some words of their own among shared ones."""
    generator = random.Random(seed)
    pool = words.split() + shared.split() * 3
    texts = [" ".join(generator.choices(pool, k=generator.randint(5, 40))) for _ in range(count)]
    return Sample.of((generator.getrandbits(60), text) for text in texts)


GOOD, BAD = draw("theorem history river", 150, 1), draw("buy now cheap", 90, 2)


def test_the_report_says_what_was_measured_on_texts_held_out() -> None:
    data, report = train_linear("quality", GOOD, BAD, 2, BUCKETS)
    model = parse_model(data, "test")
    assert isinstance(model, LinearModel)
    assert report["texts"] == {"positive": len(GOOD.texts), "negative": len(BAD.texts)}
    assert report["held_out"] + report["trained_on"] < len(GOOD.texts) + len(BAD.texts)
    assert report["auc"] > 0.95
    assert report["accuracy"] > 0.8
    assert sum(row["texts"] for row in report["calibration"]) == report["held_out"]
    assert [row["from"] for row in report["calibration"]] == sorted(row["from"] for row in report["calibration"])
    shown = {name: {row["ngram"] for row in rows} for name, rows in report["top_ngrams"].items()}
    assert {"theorem", "river"} <= shown["positive"]
    assert "cheap" in shown["negative"]
    json.dumps(report, allow_nan=False)
    scores = model.probabilities(words_of("the theorem of the river", "buy the cheap now", ""))
    assert scores[0] > 0.9 > 0.1 > scores[1]
    assert np.isnan(scores[2])


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = [list(zip(sample.ranks, sample.texts, strict=True)) for sample in (GOOD, BAD)]
    for row in rows:
        random.Random(0).shuffle(row)
    assert train_linear("quality", Sample.of(rows[0]), Sample.of(rows[1]), 2, BUCKETS) == train_linear(
        "quality", GOOD, BAD, 2, BUCKETS
    )
    assert train_perplexity(Sample.of(rows[0]), 3, 2) == train_perplexity(GOOD, 3, 2)


def test_a_class_needs_texts() -> None:
    few = Sample.of((rank, f"text {rank}") for rank in range(MIN_TEXTS - 1))
    with pytest.raises(DataError, match=r"classifiers\.toxicity: 19 different negative texts; at least 20"):
        train_linear("toxicity", GOOD, few, 1, BUCKETS)
    with pytest.raises(DataError, match=r"classifiers\.perplexity: 1 different texts"):
        train_perplexity(Sample.of([(1, "same"), (2, "same")]), 3, 1)
    with pytest.raises(DataError, match="no words"):
        train_perplexity(Sample.of((rank, "." * rank) for rank in range(1, 30)), 3, 1)


def test_classes_weigh_the_same_however_many_texts_they_have() -> None:
    many = draw("theorem history river", 2000, 3)
    data, _ = train_linear("quality", many, draw("buy now cheap", 100, 4), 1, BUCKETS)
    [score] = parse_model(data, "test").probabilities(words_of("the of and to in"))
    assert 0.1 < score < 0.9  # words of both: no prior from the sizes


def test_a_sample_has_each_text_once_in_the_order_of_ranks() -> None:
    sample = Sample.of([(3, "c"), (1, "b"), (1, "a"), (2, "c")])
    assert (sample.texts, sample.ranks) == (["a", "b", "c"], [1, 1, 2])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=60))
def test_area_under_the_curve_is_the_share_of_ordered_pairs(rows: list[tuple[int, bool]]) -> None:
    positive, negative = [s for s, label in rows if label], [s for s, label in rows if not label]
    if positive and negative:
        pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
        scores, labels = np.array([s for s, _ in rows], float), np.array([label for _, label in rows], float)
        assert area_under_curve(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_platt_scaling_finds_the_curve_that_made_the_labels() -> None:
    generator = np.random.default_rng(0)
    margins = generator.normal(0, 3, 20_000)
    labels = (generator.random(20_000) < 1 / (1 + np.exp(-(0.5 * margins - 1)))).astype(float)
    scale, offset = platt_scaling(margins, labels, np.ones(20_000))
    assert abs(scale - 0.5) < 0.03
    assert abs(offset + 1) < 0.06


def test_platt_scaling_stays_finite_where_classes_do_not_overlap() -> None:
    margins, labels = np.array([-90.0, -80, 85, 95]), np.array([0.0, 0, 1, 1])
    scale, offset = platt_scaling(margins, labels, np.ones(4))
    scores = 1 / (1 + np.exp(-(scale * margins + offset)))
    assert (scores[:2] < 0.5).all()
    assert (scores[2:] > 0.5).all()
    assert np.isfinite([scale, offset]).all()


def test_perplexity_is_lower_for_text_like_the_sources() -> None:
    data, report = train_perplexity(GOOD, 3, 2)
    assert report["held_out_perplexity"]["10"] < report["held_out_perplexity"]["90"]
    assert report["words"] > 1000
    assert parse_model(data, "test").order == 3


def test_hostile_texts_can_be_learnt_from() -> None:
    hostile = ["", "x" * 5_000_000, "\0", "🖕", "日" * 10_000, *(f"{chr(0x300)} {n}" for n in range(40))]
    sample = Sample.of(enumerate(hostile))
    _, report = train_linear("quality", sample, BAD, 2, BUCKETS)
    assert 0.5 < report["auc"] <= 1
    assert train_perplexity(sample, 3, 1)[1]["texts"] == len(hostile)


def test_word_lists_are_joined_and_entries_without_words_counted() -> None:
    data, report = join_word_lists([b"\xef\xbb\xbfpaint\r\nwet paint\r\n\r\n", "paint\n🖕\nCrème\n".encode()])
    assert report == {"entries": 4, "entries_without_words": 1}
    assert json.loads(data)["entries"] == ["Crème", "paint", "wet paint", "🖕"]
    for lists, words in (([b"\xff"], r"word_lists\[0\]: no UTF-8"), ([b"\n", b"...\n"], "no entry with a letter")):
        with pytest.raises(DataError, match=words):
            join_word_lists(lists)
