"""Signals equal a plain reference on any text; the stage keeps order and parts; hostile texts are measured."""

from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.kernels.cuts import CUTS
from tasks.manifest import Manifest
from tasks.parts import read_part
from tasks.signal_table import CLASSIFIER, CODE, REFINEDWEB, SIGNALS, URL
from tasks.signals import SignalsConfig, measure, measure_signals
from tasks.signals.refinedweb import RefinedWebLines
from tests.conftest import MakeDocuments
from tests.tasks.plain_signals import cut_text, plain_cuts, plain_signals

PIECES = (
    "the cat", "The cat sat on the mat with that dog.", "a", "to be", " ", "  ", "\n", "\n\n", "\n \n", "\t", "\r\n",
    "\0", "\u00a0", "\u200b", "\u2028", "don't", "(well)", "...", "....", "…", "#", "# x", "{", "- item", "• point",
    "-", "«", ".”", "!", "?!", ".)", "lorem ipsum", "Lorem IPSUM", "[12]", "[edit]", "[citation needed]", "[]", "[1",
    "JavaScript", "use of cookies", "Privacy Policy.", "3.14", "é", "ü", "こんにちは。", "世界」", "你好！再见", "สวัสดี",
    "12", "ไทย", "नमस्ते।", "Ж", "𝒳", "one two three four five six seven eight nine ten. ",
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8")), max_size=60).map("".join),
    st.lists(st.sampled_from(["a b", "b c", "c", "a b c d e f", "\n", "\n\n", " "]), max_size=80).map(" ".join),
)
STRICT = SignalsConfig(require_end_marks=True, max_word_chars=8)
LOOSE = SignalsConfig(max_word_chars=0, min_line_words=0, cut_phrases=(), cut_citations=False)
DEFAULT = SignalsConfig()
EDITS_ALONE: dict[str, Any] = LOOSE.model_dump(mode="json") | {"refinedweb_lines": {}}
MEASURED = [signal for signal in SIGNALS if signal.source not in (CLASSIFIER, URL)]  # those need more than a text
OF_EDITS = {signal.name for signal in SIGNALS if signal.source == REFINEDWEB}  # tests/tasks/kernels/test_line_edits.py
OF_CODE = {signal.name for signal in SIGNALS if signal.source == CODE}  # test_source_lines.py, test_code_heads.py
DATATROVE = SignalsConfig(words="datatrove", gopher_before_cuts=True)


def row(text: str, config: SignalsConfig = DEFAULT) -> dict[str, Any]:
    columns = measure(pa.array([text], pa.large_string()), config)
    return {signal.name: columns[signal.name][0].as_py() for signal in MEASURED}


def rows_of(workspace: Workspace, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for part in manifest.parts for t in read_part(workspace.storage, part) for row in t.to_pylist()]


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from([DEFAULT, STRICT, LOOSE]))
@example(["", " ", "\u00a0\u200b", "\n\n", "\0"], DEFAULT)
def test_equal_to_the_plain_reference(texts: list[str], config: SignalsConfig) -> None:
    columns = measure(pa.chunked_array([texts[:1], texts[1:]], pa.large_string()), config)
    for place, text in enumerate(texts):
        spans, counts = plain_cuts(text, config)
        expected: dict[str, Any] = plain_signals(cut_text(text, spans), config)
        expected |= {f"num_cut_{name}": counts[name] for name in CUTS}
        measured = {name: column[place].as_py() for name, column in columns.items() if "language" not in name}
        assert not any(measured.pop(name) for name in OF_EDITS)
        assert all(measured.pop(name) >= 0 for name in OF_CODE)
        assert measured.pop("cut_spans") == [bound for span in spans for bound in span]
        assert measured == expected


def test_no_texts_have_no_signals() -> None:
    columns = measure(pa.array([], pa.large_string()), SignalsConfig.model_validate(EDITS_ALONE))
    assert {len(column) for column in columns.values()} == {0}


def test_worked_example() -> None:
    measured = row("The cat sat.\n\nThe cat sat.")
    assert (measured["num_words"], measured["duplicate_line_ratio"], measured["newline_ratio"]) == (6, 0.5, 1 / 6)
    assert measured["duplicate_paragraph_ratio"] == 0.5
    assert measured["num_stop_words"] == 0  # case counts


def test_every_signal_stays_in_its_range() -> None:
    texts = ["", "a", "# # #", "... …", "x" * 2000, "日本語。" * 50, "the end. " * 500, "- a\n" * 30, "\n" * 99]
    columns = measure(pa.array(texts, pa.large_string()), LOOSE)
    for signal in MEASURED:
        values = [v for v in columns[signal.name].to_pylist() if isinstance(v, (int, float))]
        assert all(signal.low is None or value >= signal.low for value in values), signal.name
        assert all(signal.high is None or value <= signal.high for value in values), signal.name
        assert signal.meaning
        assert signal.source


@pytest.mark.parametrize("text", [None, "", " ", "\u00a0\u200b", "\n\n", "\0", "\ufeff"])
def test_empty_texts_have_defined_values(text: str | None) -> None:
    """dolma#32, datatrove PR#512: blank texts crashed filters or passed them."""
    measured = {k: v[0].as_py() for k, v in measure(pa.array([text], pa.large_string()), DEFAULT).items()}
    assert measured["num_visible_chars"] == 0
    assert measured["language"] == "und"
    assert all(value is not None for value in measured.values())


THAI = "ประเทศไทยเป็นประเทศที่ตั้งอยู่ในภูมิภาคเอเชียตะวันออกเฉียงใต้ " * 40
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 60


@pytest.mark.parametrize(("text", "language", "has_ends"), [(THAI, "th", False), (JAPANESE, "ja", True)])
def test_scripts_without_spaces_are_not_judged_by_words(text: str, language: str, has_ends: bool) -> None:
    """NVIDIA-NeMo/Curator#281: Thai was lost to rules that count words between spaces."""
    measured = row(text)
    assert measured["language"] == language
    assert measured["cut_spans"] == []
    for signal in MEASURED:
        is_applied = not signal.of_words and (has_ends or not signal.of_ends)
        assert (measured[signal.name] is not None) == is_applied, signal.name


def test_korean_and_hindi_have_words() -> None:
    assert row("나는 학교에 갑니다. 너는 집에 있다.")["num_words"] == 6
    assert row("यह एक वाक्य है। वह घर में है।")["num_words"] == 8


def test_blank_lines_are_no_duplicates() -> None:
    """datatrove#273: poems were dropped because their blank lines are alike."""
    poem = "\n\n".join(f"verse number {n} is not like the others" for n in range(40))
    assert row(poem)["duplicate_line_ratio"] == 0
    assert row(poem)["repeated_line_char_ratio"] == 0


@pytest.mark.parametrize(
    ("text", "num_words"),
    [
        ("a" + " " * 5_000_000 + "b", 2),
        ("A line of words, no end. " * 2_000_000, 12_000_000),
        ("é" * 5_000_000, 1),
        ("a\n" * 1_500_000, 1_500_000),
    ],
    ids=["spaces", "50 MB line", "one word", "lines"],
)
def test_huge_texts(text: str, num_words: int) -> None:
    """marin PR#4603: runs of white space and huge lines blew up memory and time."""
    measured = row(text, LOOSE)
    assert (measured["num_words"], measured["num_chars"]) == (num_words, len(text))


def test_datatroves_words_are_spacys_tokens() -> None:
    ours, theirs = row("“Don't,” said he - and left."), row("“Don't,” said he - and left.", DATATROVE)
    assert (ours["num_words"], theirs["num_words"]) == (5, 6)  # do n't said he and left
    assert (ours["alphabetic_word_ratio"], theirs["alphabetic_word_ratio"]) == (5 / 6, 6 / 11)
    assert ours["num_stop_words"] == theirs["num_stop_words"] == 1


def test_refinedwebs_rules_read_what_the_other_line_rules_leave() -> None:
    text = "MENU\n3 likes\n\nThe cat sat on the mat. [12]\nAnd so to bed with it. Read more... [1]\nHome\n"
    both = SignalsConfig(refinedweb_lines=RefinedWebLines(min_words=0))
    measured, alone = row(text, both), row(text, SignalsConfig.model_validate(EDITS_ALONE))
    assert cut_text(text, pairs(measured)) == "The cat sat on the mat. \nAnd so to bed with it. \n"
    assert (measured["num_cut_short_lines"], measured["num_cut_upper_case_lines"]) == (3, 0)
    assert (measured["num_cut_navigation_phrases"], measured["edited_word_ratio"]) == (1, 2 / 14)
    assert cut_text(text, pairs(alone)) == "The cat sat on the mat. [12]\nAnd so to bed with it. Read more... [1]\n"
    counts = {name: alone[name] for name in OF_EDITS if alone[name]}
    assert counts == {
        "num_cut_upper_case_lines": 1, "num_cut_counter_lines": 1, "num_cut_few_word_lines": 1,
        "edited_word_ratio": 4 / 20,
    }  # fmt: skip


LICENCE = "# Copyright 2026 A\n# Licensed under MIT\n\n"
CODE_RULES: dict[str, Any] = LOOSE.model_dump(mode="json") | {"cut_licence_headers": True}


def test_a_licence_header_is_measured_and_cut_where_asked_for() -> None:
    text = LICENCE + "# Code generated by x\nlines = [1, 2]\n"
    measured, cut = row(text, LOOSE), row(text, SignalsConfig.model_validate(CODE_RULES))
    assert cut_text(text, pairs(cut)) == "# Code generated by x\nlines = [1, 2]\n"
    assert (measured["cut_spans"], measured["num_cut_licence_headers"], cut["num_cut_licence_headers"]) == ([], 0, 1)
    assert measured["num_licence_chars"] == cut["num_licence_chars"] == len(LICENCE)
    assert measured["num_generated_marks"] == cut["num_generated_marks"] == 1
    assert (measured["num_lines"], cut["num_lines"], cut["longest_line_chars"]) == (5, 2, 21)
    assert (cut["mean_line_chars"], cut["alphanumeric_ratio"], cut["alphabetic_ratio"]) == (35 / 2, 23 / 37, 21 / 37)


def test_all_cuts_together_are_those_one_after_the_other() -> None:
    text = LICENCE + "MENU OF ALL\nThe cat sat on the mat. [12]\nMenu\nAnd so to bed. Read more...\n"
    config = SignalsConfig.model_validate({"cut_licence_headers": True, "refinedweb_lines": {}})
    assert cut_text(text, pairs(row(text, config))) == "The cat sat on the mat. \nAnd so to bed.\n"


def pairs(measured: dict[str, Any]) -> list[tuple[int, int]]:
    spans = measured["cut_spans"]
    return list(zip(spans[::2], spans[1::2], strict=True))


def test_gopher_can_be_measured_before_the_cuts() -> None:
    text = "Menu\n" * 3 + "The cat sat on the mat, and that was the end of it.\n日本語" + "\n- x" * 5
    cut, whole = row(text), row(text, SignalsConfig(gopher_before_cuts=True))
    uncut = row(text, LOOSE)
    for signal in MEASURED:
        expected = uncut if signal.source in ("Gopher A.1.1", "Gopher table A1") else cut
        assert whole[signal.name] == expected[signal.name], signal.name
    assert cut["duplicate_line_ratio"] == 0
    assert whole["duplicate_line_ratio"] == 6 / 10
    japanese = "long\n" * 300 + "日本語の文章。" * 9  # most of what is cut has spaces, what is left has none
    assert (
        row(japanese, SignalsConfig(gopher_before_cuts=True))["num_words"] == row(japanese, LOOSE)["num_words"] == 301
    )


@pytest.mark.parametrize("words", ["basemill", "datatrove"])
def test_row_groups_and_slices_do_not_matter(words: Literal["basemill", "datatrove"]) -> None:
    texts = pa.array(["one two three four. [3]", "", "five six\nseven", None, "你好。"] * 7, pa.large_string())
    config = SignalsConfig(words=words, gopher_before_cuts=words == "datatrove")
    whole = measure(texts, config)
    for start, length in ((0, 5), (3, 9), (34, 1)):
        piece = measure(texts.slice(start, length), config)
        assert all(piece[name].equals(whole[name].slice(start, length)) for name in whole if name != "cut_spans")
        assert piece["cut_spans"].to_pylist() == whole["cut_spans"].slice(start, length).to_pylist()


def test_stage_keeps_parts_and_order(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents({"web": ["A cat sat on the mat.", "", "Two cats sat."], "code": ["x = {}", "y"]})
    config = SignalsConfig(by_source={"code": {"enabled": False}})
    signals = measure_signals(documents, into=workspace, config=config)
    rows = rows_of(workspace, signals)
    ids = [row["doc_id"] for row in rows_of(workspace, documents)]
    assert [row["doc_id"] for row in rows] == ids
    assert [part.source for part in signals.parts] == [part.source for part in documents.parts]
    assert [row["num_words"] for row in rows] == [6, 0, 3, None, None]
    assert rows[-1]["cut_spans"] == []
    assert signals.totals["rows_in"] == signals.totals["rows_out"] == 5
    assert measure_signals(documents, into=workspace, config=config) == signals


def test_wrong_settings_are_refused() -> None:
    for values in (
        {"cut_phrases": ["Upper"]},
        {"generated_marks": ["Generated"]},
        {"cut_phrases": ["!"]},
        {"stop_words": ["a"] * 63},
        {"min_words": 1},
    ):
        with pytest.raises(ValidationError):
            SignalsConfig.model_validate(values)
    with pytest.raises(ValidationError, match=r"by_source\.code\.max_word_chars"):
        SignalsConfig(by_source={"code": {"max_word_chars": -1}})
