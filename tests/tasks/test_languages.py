"""Codes are normalised, unknown ones refused; languages agree with py3langid's own answers."""

import pyarrow as pa
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from tasks.kernels.buffers import text_buffers
from tasks.languages import (
    LANGUAGE_BYTES,
    MODEL_LABELS,
    identifiable_languages,
    identify_languages,
    language_model,
    normalise_language_code,
)

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "ТОЛЬКО ЗАГЛАВНЫЕ БУКВЫ В ЭТОМ ТЕКСТЕ",
    "Le re\u0301sume\u0301 de l'e\u0301te\u0301 est arrive\u0301.",  # decomposed
    "これは日本語の文章です。",
    "ประเทศไทย",
    "1234 5678",
]


def languages(*texts: str) -> list[str]:
    codes, _ = identify_languages(*text_buffers(pa.array(texts, pa.large_string())))
    return list(codes.to_pylist())


@pytest.mark.parametrize(
    ("code", "normal"),
    [
        ("eng", "en"), ("en", "en"), ("EN-us", "en"), ("eng_Latn", "en"), ("fra", "fr"), ("fre", "fr"), ("ger", "de"),
        ("cmn", "zh"), ("zh-Hant", "zh"), ("yue", "zh"), ("wuu", "zh"), ("arz", "ar"),
        ("arb", "ar"), ("nob", "no"), ("kab", "kab"), ("gug", "gn"), ("und", "und"),
    ],
)  # fmt: skip
def test_codes_are_normalised(code: str, normal: str) -> None:
    assert normalise_language_code(code) == normal


@pytest.mark.parametrize("code", ["xx", "english", "", "qqq", "1"])
def test_unknown_codes_are_refused(code: str) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        normalise_language_code(code)


def test_languages_and_probabilities_are_those_of_the_package() -> None:
    package = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    codes, probabilities = identify_languages(*text_buffers(pa.array(TEXTS, pa.large_string())))
    for text, code, probability in zip(TEXTS, codes.to_pylist(), probabilities, strict=True):
        label, expected = package.classify(text)
        assert code == normalise_language_code(label)
        assert probability == pytest.approx(expected, abs=1e-4)


def test_latin_letters_in_a_text_of_another_script_do_not_count() -> None:
    page = (
        "def main(): return the value of this function and print it\n" * 3
        + "この関数は値を返します。日本語の説明です。" * 2
    )
    assert languages(page) == ["ja"]
    assert languages("The letter π is the ratio of a circle's circumference to its diameter, as Euler wrote.") == ["en"]


def test_a_text_without_anything_known_is_undetermined() -> None:
    assert languages("", "\n", "\0") == ["und"] * 3


def test_only_the_beginning_counts_and_is_cut_between_characters() -> None:
    german = TEXTS[1] + " "
    long = german * (LANGUAGE_BYTES // len(german.encode()) + 1)
    assert languages(long + "これは日本語の文章です。" * 9999) == ["de"]
    for shift in range(4):
        assert languages("x" * shift + "日本語の文章です。" * 9999, "Hello there, my friend") == ["ja", "en"]


def test_every_label_is_known() -> None:
    assert len(language_model()[4]) == len(MODEL_LABELS) == 142
    assert {"en", "zh", "kab", "und", "zxx"} <= identifiable_languages()
    assert "xx" not in identifiable_languages()
