"""The report's figures by hand: tokens per byte, unknown rate, pieces of misspelt words."""

import pytest

from tasks.vocabulary import VocabularyConfig, train_bpe
from tasks.vocabulary_report import MISSPELT, build_report, compare, most_frequent, pieces

TRAIN = {"a": ["the cat sat on the mat", "the end"], "b": ["größe größe"]}
HELD_OUT = {"a": ["the fog sat"], "b": ["größe"], "c": []}
TOKENIZER = train_bpe([text for texts in TRAIN.values() for text in texts], VocabularyConfig(size=300))


def test_the_most_frequent_are_kept_and_one_entry_is_left_for_the_unknown() -> None:
    assert most_frequent(["bbaac"], 3) == {"a", "b"}
    assert most_frequent([["x", "y"], ["y", "z"]], 3) == {"y", "x"}  # ties by code point
    assert most_frequent([], 3) == frozenset()


def test_unknown_units_are_counted_by_occurrence() -> None:
    row = compare([["the", "dog", "sat"], ["dog"]], frozenset({"the", "sat"}), 16)
    assert row == {"vocabulary": 3, "tokens": 4, "tokens_per_byte": 0.25, "unknown_ratio": 0.5}
    assert compare([], frozenset(), 0)["tokens_per_byte"] is None


def test_a_report_compares_three_schemes_on_held_out_text() -> None:
    report = build_report(TOKENIZER.to_str().encode(), TRAIN, HELD_OUT)
    tokens = {text: len(TOKENIZER.encode(text, add_special_tokens=False).ids) for text in ("the fog sat", "größe")}
    num_bytes = 11 + 7
    assert report["held_out_bytes"] == num_bytes
    assert report["bytes_per_token"] == {
        "a": round(11 / tokens["the fog sat"], 4),
        "b": round(7 / tokens["größe"], 4),
        "c": None,
    }
    comparison = report["comparison"]
    assert comparison["characters"]["tokens"] == 11 + 5
    assert comparison["characters"]["unknown_ratio"] == round(1 / 16, 4)  # the f
    assert comparison["words"] == {
        "vocabulary": 8,
        "tokens": 4,
        "tokens_per_byte": round(4 / num_bytes, 4),
        "unknown_ratio": 0.25,
    }
    assert comparison["bpe"]["unknown_ratio"] == 0
    assert comparison["bpe"]["tokens"] == sum(tokens.values())


def test_each_of_ten_misspelt_words_is_cut_by_each_scheme() -> None:
    report = build_report(TOKENIZER.to_str().encode(), TRAIN, HELD_OUT)
    assert [row["word"] for row in report["misspelt"]] == list(MISSPELT)
    assert len(set(MISSPELT)) == 10
    for row in report["misspelt"]:
        assert "".join(row["bpe"]) == row["word"]
        assert len(row["characters"]) == len(row["word"])
        assert row["words"] == ["<unk>"]


@pytest.mark.parametrize(("word", "cut"), [("thee", ["the", "e"]), ("end", ["en", "d"]), ("", [])])
def test_pieces_are_readable(word: str, cut: list[str]) -> None:
    assert pieces(TOKENIZER, word) == cut
