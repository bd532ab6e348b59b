"""Confusable languages: each correction needs its own signs, and leaves other texts alone."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tasks.language_corrections import CORRECTIONS, _words, correct_languages
from tasks.languages import identifiable_languages


@pytest.mark.parametrize(
    ("text", "seen", "language"),
    [
        ("Posle toga je čovek otišao u svet, gde je uvek lepo vreme.", "bs", "sr"),
        ("Poslije toga je čovjek otišao u svijet, gdje je uvijek lijepo vrijeme.", "bs", "bs"),
        ("Tijekom siječnja je tisuću ljudi posjetilo općinu.", "bs", "hr"),
        ("Tokom januara je hiljadu ljudi posjetilo opštinu.", "hr", "bs"),
        ("Бүтүн инсанлар ләјагәт вә һүгугларына ҝөрә азад.", "ba", "az"),
        ("سارے انسان آزاد نیں تے اوہناں نوں عقل دتی گئی اے", "ur", "pa"),
        ("تمام انسان آزاد اور حقوق کے اعتبار سے برابر ہیں", "ur", "ur"),
        ("Ὅλοι οἱ ἄνθρωποι εἶναι ἴσοι στὴν ἀξιοπρέπεια.", "grc", "el"),
        ("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος", "grc", "grc"),
        ("𠊛𠊛𡗶固權平等", "zh", "vi"),
        ("人人生而自由𠊛", "zh", "zh"),
        ("Posle toga je čovek otišao u svet.", "sl", "sl"),
        ("", "bs", "bs"),
    ],
)
def test_a_sign_decides(text: str, seen: str, language: str) -> None:
    languages = np.array(["en", seen], object)
    assert correct_languages(languages, pa.array([text, text], pa.large_string())).tolist() == ["en", language]
    assert languages.tolist() == ["en", seen]


def test_only_known_languages_are_named() -> None:
    named = {code for correction in CORRECTIONS for code in (*correction.mistaken, correction.language)}
    assert named <= identifiable_languages()


def test_stars_stand_for_letters_and_words_are_whole() -> None:
    texts = ["gde", "GDE, vredno!", "vred", "vredn", "agde gdea", "lijepo", "ije", "gde  gde"]
    pattern = _words("gde vredn* *ije*")
    assert pc.count_substring_regex(texts, pattern=pattern).to_pylist() == [1, 2, 0, 1, 0, 1, 1, 2]
    assert pc.count_substring_regex(texts, pattern=_words("gde")).to_pylist() == [1, 1, 0, 0, 0, 0, 0, 2]
