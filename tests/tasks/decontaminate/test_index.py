"""The index: what becomes a target, what is found, what counts as evidence, and that a broken search is noticed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.dataset import Workspace
from tasks.decontaminate.evaluation_sets import CANARY_SET, Item
from tasks.decontaminate.index import (
    ANSWER_WORDS,
    MIN_EVIDENCE_RATIO,
    EvaluationIndex,
    Finding,
    build_index,
    load_index,
)
from tasks.errors import DataError
from tasks.kernels.ngrams import NGRAM_WORDS, WINDOW_WORDS, make_lookup, run_hashes

LONG = "A train leaves the old harbour at noon and reaches the northern hills before the evening bell has rung twice"
PASSAGE = "The lighthouse keeper counted seven grey ships and wrote their names into a ledger bound in green cloth"
SHORT, ANSWER = "Who painted the Mona Lisa?", "Leonardo da Vinci"
NOTHING = np.empty(0, np.uint64)
SETS = {
    "quiz": [
        Item("long", (LONG,), ("noon",), ()),
        Item("short", (SHORT,), (ANSWER,), ()),
        Item("tiny", ("Why?",), ("x",), ()),
    ],
    "read": [Item("0", (SHORT,), (), (PASSAGE,)), Item("1", ("Is the answer to this question found alone?",), (), ())],
}


@pytest.fixture
def index(workspace: Workspace) -> EvaluationIndex:
    return load(workspace, SETS)


def load(workspace: Workspace, sets: dict[str, list[Item]]) -> EvaluationIndex:
    files, _ = build_index(sets)
    step = workspace.dataset(
        "decontaminate.index", None, inputs={}, module="tasks.decontaminate.index", external={"s": repr(sets)}
    )
    return load_index(workspace.storage, step.publish_files(files).reference)


def findings(index: EvaluationIndex, text: str, common: Any = NOTHING) -> dict[str, Finding]:
    places, probes = index.find(pa.array([text], pa.large_string()))
    known = ~np.isin(probes, common)
    found = index.judge(probes[known], places[known][:, 1:], index.evidence(common))
    names = index.targets["set"], index.targets["item"], index.targets["field"]
    return {"/".join(name[f.target] for name in names): f for f in found}


def test_targets_and_counts() -> None:
    _, counts = build_index(SETS)
    assert counts == {
        "quiz": {"items": 3, "tested": 2, "untested": 1},
        "read": {"items": 2, "tested": 2, "untested": 0},
    }


def test_what_is_found_and_how_much_of_it(index: EvaluationIndex) -> None:
    half = " ".join(LONG.split()[: NGRAM_WORDS + 3])
    text = f"{SHORT} {ANSWER}. Then: {half}. And {PASSAGE.upper()}!"
    found = findings(index, text)
    assert list(found) == ["quiz/long/question", "quiz/short/question", "read/0/passage"]
    assert found["quiz/long/question"].overlap == 4 / (len(LONG.split()) - NGRAM_WORDS + 1)
    assert found["read/0/passage"].overlap == 1
    spans = {name: [text.encode()[a:b].decode() for a, b in finding.spans] for name, finding in found.items()}
    assert spans == {
        "quiz/short/question": [f"{SHORT} {ANSWER}"],
        "quiz/long/question": [half],
        "read/0/passage": [PASSAGE.upper()],
    }


def test_a_long_enough_question_without_an_answer_is_looked_for_alone(index: EvaluationIndex) -> None:
    assert list(findings(index, "is the answer to this\nquestion found ALONE")) == ["read/1/question"]
    assert findings(index, SHORT) == {}  # five words, no answer near


def test_common_probes_are_no_evidence(index: EvaluationIndex) -> None:
    grams = run_hashes(PASSAGE, NGRAM_WORDS)
    found = findings(index, PASSAGE, grams[:2])["read/0/passage"]
    assert (found.overlap, found.probes) == (1.0, len(grams) - 2)
    assert findings(index, PASSAGE, grams) == {}
    target = index.targets["field"].index("passage")
    assert (index.evidence(NOTHING) - index.evidence(grams))[target] == len(grams)


def test_a_target_of_which_little_is_evidence_tells_nothing(index: EvaluationIndex) -> None:
    """Of a speech that everybody quotes only misquotations are rare; they must not count for the whole."""
    grams = run_hashes(LONG, NGRAM_WORDS)
    target = index.targets["item"].index("long")
    enough = int(len(grams) * MIN_EVIDENCE_RATIO) + 1
    assert index.evidence(grams[enough:])[target] == enough
    assert index.evidence(grams[1:])[target] == 0
    assert findings(index, LONG, grams[1:]) == {}
    assert list(findings(index, LONG, grams[enough:])) == ["quiz/long/question"]


def test_a_long_answer_is_looked_for_by_itself(workspace: Workspace) -> None:
    index = load(workspace, {"maths": [Item("a", (SHORT,), (PASSAGE,), ())]})
    assert list(findings(index, PASSAGE)) == ["maths/a/answer"]
    begun = " ".join(PASSAGE.split()[:ANSWER_WORDS])
    assert list(findings(index, f"{SHORT} {begun}")) == ["maths/a/question"]


@pytest.mark.parametrize("words", [0, 1, WINDOW_WORDS - 1, WINDOW_WORDS, WINDOW_WORDS + 1])
@pytest.mark.parametrize("is_before", [False, True])
def test_an_answer_counts_within_the_window_on_both_sides(index: EvaluationIndex, words: int, is_before: bool) -> None:
    between = " so" * words
    text = f"{ANSWER}{between} {SHORT}" if is_before else f"{SHORT}{between} {ANSWER}"
    assert list(findings(index, text)) == (["quiz/short/question"] if words <= WINDOW_WORDS else [])


WORDS = ["a", "train", "leaves", "the", "old", "harbour", "who", "painted", "mona", "lisa", "leonardo", "x"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=60), st.lists(st.sampled_from(WORDS[:4]), min_size=13, max_size=20))
def test_what_is_found_equals_a_search_in_plain_python(workspace: Workspace, text: list[str], item: list[str]) -> None:
    index = load(workspace, {"one": [Item("i", (" ".join(item),), (), ())]})
    for words in (text, text[:20] + item[: len(item) - 1] + text[20:], item * 2):
        grams = {tuple(item[at : at + NGRAM_WORDS]) for at in range(len(item) - NGRAM_WORDS + 1)}
        held = {tuple(words[at : at + NGRAM_WORDS]) for at in range(len(words) - NGRAM_WORDS + 1)}
        found = findings(index, " ".join(words))
        assert {name: own.probes for name, own in found.items()} == (
            {"one/i/question": len(grams & held)} if grams & held else {}
        )
        assert all(own.overlap == len(grams & held) / len(grams) for own in found.values())


def test_an_item_in_two_sets_is_found_for_both(workspace: Workspace) -> None:
    index = load(workspace, {"one": [Item("a", (LONG,), (), ())], "two": [Item("b", (LONG, SHORT), (ANSWER,), ())]})
    assert list(findings(index, LONG)) == ["one/a/question", "two/b/question"]
    assert list(findings(index, f"{SHORT} {ANSWER}")) == ["two/b/question"]


@pytest.mark.parametrize("items", [[], [Item("0", ("Why?",), ("x",), ())], [Item("0", (), ("x",), ("too short",))]])
def test_a_set_without_anything_to_look_for_is_an_error(items: list[Item]) -> None:
    with pytest.raises(DataError, match=rf"evaluation_sets\.none: none of its {len(items)} items"):
        build_index({"none": items})


def test_canaries_prove_the_search(index: EvaluationIndex) -> None:
    index.check()
    assert set(index.targets["set"]) == {"quiz", "read", CANARY_SET}


@pytest.mark.parametrize("broken", ["keys", "shorts", "targets"])
def test_a_broken_index_is_noticed(index: EvaluationIndex, broken: str) -> None:
    lookup = index.lookup
    if broken == "keys":
        lookup = make_lookup(NOTHING, lookup.anchors, lookup.shorts, lookup.answers)
    elif broken == "shorts":
        lookup = make_lookup(lookup.keys, NOTHING, lookup.shorts[:0], lookup.answers)
    targets = index.targets if broken != "targets" else index.targets | {"set": ["quiz"] * len(index.targets["set"])}
    with pytest.raises(DataError, match="the index does not work"):
        replace(index, lookup=lookup, targets=targets).check()


def test_a_missing_index_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(DataError, match="not complete"):
        load_index(workspace.storage, "decontaminate.index/none")


def test_the_files_depend_on_the_sets_alone() -> None:
    assert build_index(SETS) == build_index(dict(SETS))
