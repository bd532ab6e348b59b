"""The n-gram search against a slow reading of words by Python's Unicode database."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.kernels.folding import UNSPACED
from tasks.kernels.ngrams import (
    ANCHOR_WORDS,
    NGRAM_WORDS,
    WINDOW_WORDS,
    Lookup,
    find_runs,
    make_lookup,
    run_hashes,
    word_prefix,
)

NOTHING = np.empty(0, np.uint64)
TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen"


def slow_words(text: str) -> list[str]:
    """Words by definition: folded letters, numbers and marks; ideographs and the like alone."""
    words = [""]
    for char in text:
        kind = unicodedata.category(char)
        folded = "".join(
            c for c in unicodedata.normalize("NFD", char.lower()) if unicodedata.category(c) not in ("Mn", "Me", "Cf")
        )
        if kind in ("Mn", "Me", "Cf"):
            continue
        if kind == "Nd":
            words[-1] += char if char.isascii() else "0"
        elif kind not in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "No", "Mc"):
            words.append("")
        elif any(start <= ord(char) < end for start, end in UNSPACED):
            words += [folded, ""]
        else:
            words[-1] += folded
    return [word for word in words if word]


def lookup_of(*ngrams: str, shorts: dict[str, list[str]] | None = None) -> Lookup:
    keys = np.unique(np.concatenate([NOTHING, *(run_hashes(text, NGRAM_WORDS) for text in ngrams)]))
    rows: list[tuple[int, ...]] = []
    answers: list[tuple[int, int]] = []
    for question, texts in (shorts or {}).items():
        words = len(word_prefix(question)) - 1
        first = len(answers)
        answers += [(n := len(word_prefix(text)) - 1, int(run_hashes(text, n)[0])) for text in texts]
        whole = int(run_hashes(question, words)[0])
        rows.append((int(run_hashes(question, ANCHOR_WORDS)[0]), words, whole, first, len(answers)))
    rows.sort()
    table: NDArray[np.uint64] = np.array(rows, np.uint64).reshape(-1, 5)
    return make_lookup(keys, table[:, 0].copy(), table[:, 1:].copy(), np.array(answers, np.uint64).reshape(-1, 2))


def found(texts: list[str], lookup: Lookup) -> list[tuple[int, str]]:
    runs = find_runs(pa.array(texts, pa.large_string()), lookup).tolist()
    return [(row, texts[row].encode()[start:end].decode()) for row, _, _, start, end in runs]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=0x33FFF, exclude_categories=["Cs", "Cn"]), max_size=40))
def test_words_are_read_by_their_definition(text: str) -> None:
    words = slow_words(text)
    assert len(word_prefix(text)) - 1 == len(words)
    assert (word_prefix(text) == word_prefix(" ".join(words))).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0), (" \n", 0), ("It's 3.14!", 4), ("Straße", 1), ("Cafe\u0301 CAFÉ", 2), ("寿司 like", 3),
        ("a\x00b", 2), ("x" * 9999, 1),
        ("\ufeffbom zero\u200bwidth", 2), ("\U000e0041", 0), ("١٢٣", 1), ("🙂", 0),
    ],
)  # fmt: skip
def test_known_counts(text: str, words: int) -> None:
    assert len(word_prefix(text)) - 1 == words == len(slow_words(text))


def test_case_accents_punctuation_and_line_breaks_do_not_count_but_numbers_do() -> None:
    assert (word_prefix("Ça va: l'été, NON?") == word_prefix("ca\nva l ete -- non")).all()
    assert (word_prefix("12 apples") != word_prefix("13 apples")).any()
    assert (word_prefix("ab c")[-1:] != word_prefix("a bc")[-1:]).all()


@pytest.mark.parametrize(
    "written",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace(" ", "\n"),
        TEXT.replace(" ", ", "),
        f"before it {TEXT} after",
        f"“{TEXT}”",
        f"é{chr(10)}{TEXT}.",
    ],
)
def test_an_ngram_is_found_however_it_is_written_with_its_place(written: str) -> None:
    (hit,) = found(["clean", written], lookup_of(TEXT))
    assert hit[0] == 1
    assert slow_words(hit[1]) == TEXT.split()


@pytest.mark.parametrize(
    "written", ["", TEXT.rpartition(" ")[0], TEXT.replace("six", "sixth"), TEXT.replace(" ", ""), "x " * 50]
)
def test_other_words_are_no_match(written: str) -> None:
    assert found([written], lookup_of(TEXT)) == []


def test_every_ngram_of_many_is_found_and_no_other() -> None:
    rng = np.random.default_rng(1)
    vocabulary = [f"w{n}" for n in range(40)]
    texts = [" ".join(rng.choice(vocabulary, 60)) for _ in range(200)]
    known = lookup_of(*texts[::2])
    runs = find_runs(pa.array(texts, pa.large_string()), known)
    wanted = [run in known.keys for text in texts for run in run_hashes(text, NGRAM_WORDS)]
    assert len(runs) == sum(wanted) >= 100 * 48
    assert (
        known.keys[runs[:, 1]] == np.concatenate([run_hashes(texts[row], NGRAM_WORDS) for row in range(0, 200, 2)])
    ).all()


QUESTION, ANSWER = "Who painted the Mona Lisa?", "Leonardo da Vinci"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (f"{QUESTION} {ANSWER}", True),
        ("Q: who painted\nthe MONA LISA\nA: leonardo da vinci.", True),
        (f"{ANSWER}. {QUESTION}", True),
        (f"{QUESTION} {'x ' * WINDOW_WORDS}{ANSWER}", True),
        (f"{QUESTION} {'x ' * (WINDOW_WORDS + 1)}{ANSWER}", False),
        (f"{ANSWER} {'x ' * WINDOW_WORDS}{QUESTION}", True),
        (f"{ANSWER} {'x ' * (WINDOW_WORDS + 1)}{QUESTION}", False),
        (QUESTION, False),
        (f"Who painted the Mona Lisas? {ANSWER}", False),
        (f"{QUESTION} Leonardo of Vinci", False),
        (ANSWER, False),
    ],
)
def test_a_short_question_needs_its_answer_near(text: str, is_found: bool) -> None:
    runs = found(["", text], lookup_of(shorts={QUESTION: ["Raphael", ANSWER]}))
    assert bool(runs) is is_found
    assert all("isa" in run.lower() and "inci" in run.lower() for _, run in runs)


def test_questions_that_begin_alike_are_told_apart_and_one_may_have_no_answer() -> None:
    known = lookup_of(shorts={"Who painted the Mona Lisa": ["Raphael"], "Who painted the Mona Lisa in 1503 then": []})
    runs = find_runs(pa.array(["who painted the mona lisa in 1503 then? not raphael"], pa.large_string()), known)
    assert sorted(runs[:, 2].tolist()) == [0, 1]


def test_an_empty_lookup_and_an_empty_column_find_nothing() -> None:
    assert found([TEXT], lookup_of()) == []
    assert found([], lookup_of(TEXT)) == []
    assert len(run_hashes("too short", NGRAM_WORDS)) == 0
