"""Line rules, one by one; gaps between lines; cuts on character boundaries."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_array, text_buffers
from tasks.kernels.cuts import CUTS, apply_cuts, find_cuts, line_rules

OFF = dict.fromkeys(CUTS, 0)
NEIGHBOUR = "It is so."  # breaks no rule
PHRASES = ("javascript", "use of cookies", "日本")


def cut(text: str, phrases: tuple[str, ...] = (), **limits: int) -> tuple[str, dict[str, int]]:
    """The text without its cuts, and the rules that fired."""
    data, offsets = text_buffers(pa.array([NEIGHBOUR, text, NEIGHBOUR], pa.large_string()))
    span_offsets, spans, counts = find_cuts(data, offsets, line_rules(OFF | limits, phrases))
    kept = text_array(*apply_cuts(data, offsets, span_offsets, spans)).to_pylist()
    assert kept[::2] == [NEIGHBOUR, NEIGHBOUR]
    return kept[1], {name: int(count) for name, count in zip(CUTS, counts[1], strict=True) if count}


@pytest.mark.parametrize(
    ("limits", "text", "kept", "fired"),
    [
        ({"long_word_lines": 5}, "abcde fg\nabcdef g\n", "abcde fg\n", "long_word_lines"),
        ({"long_word_lines": 5}, "ééééé\néééééé", "ééééé\n", "long_word_lines"),
        ({"short_lines": 3}, "one two\none two three\n", "one two three\n", "short_lines"),
        ({"short_lines": 3}, "one\u00a0two\u2003three\none-two", "one\u00a0two\u2003three\n", "short_lines"),
        ({"unended_lines": 1}, "No end\nAn end.\n", "An end.\n", "unended_lines"),
        ({"unended_lines": 1}, "Trails...\n“Quote.”  \n", "“Quote.”  \n", "unended_lines"),
        ({"unended_lines": 1, "citations": 1}, "Cited.[1][2]\nNot cited[3]", "Cited.\n", "unended_lines"),
        ({"phrase_lines": 1}, "Turn on JavaScript now\nrest", "rest", "phrase_lines"),
        ({"phrase_lines": 1}, "The Use Of Cookies\nuse of cookie", "use of cookie", "phrase_lines"),
        ({"phrase_lines": 1}, "das 日本 ist\ndas 日 本", "das 日 本", "phrase_lines"),
        ({"citations": 1}, "a[1]b [edit] c[citation needed][] [x] [1", "ab  c[] [x] [1", "citations"),
    ],
)
def test_each_rule(limits: dict[str, int], text: str, kept: str, fired: str) -> None:
    phrases = PHRASES if "phrase_lines" in limits else ()
    result, rules = cut(text, phrases, **limits)
    assert result == kept
    assert fired in rules
    assert cut(text) == (text, {})


def test_the_first_rule_that_a_line_breaks_is_counted() -> None:
    everything = dict.fromkeys(CUTS, 1) | {"long_word_lines": 4, "short_lines": 3}
    assert cut("12345", PHRASES, **everything)[1] == {"long_word_lines": 1}
    assert cut("ab", PHRASES, **everything)[1] == {"unended_lines": 1}
    assert cut("ab.", PHRASES, **everything)[1] == {"short_lines": 1}
    assert cut("ab cd use of cookies.[1]", PHRASES, short_lines=3, citations=1)[1] == {"phrase_lines": 1}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a b c\n\nmenu\n\nd e f\n", "a b c\n\nd e f\n"),
        ("menu\n\n\na b c", "a b c"),
        ("a b c\nmenu\n\nd e f", "a b c\n\nd e f"),
        ("a b c\n\nmenu\nhome\n \nd e f", "a b c\n\nd e f"),
        ("\n\na b c\n\n", "\n\na b c\n\n"),
        ("menu", ""),
        ("", ""),
    ],
)
def test_a_cut_line_leaves_no_double_gap(text: str, kept: str) -> None:
    assert cut(text, short_lines=3)[0] == kept


def test_lines_of_scripts_without_spaces_have_no_words_to_count() -> None:
    assert cut("これは長い文章です\n短い", short_lines=3, long_word_lines=5, unended_lines=1) == (
        "これは長い文章です\n短い",
        {},
    )
    assert cut("see これ\n", short_lines=3)[0] == "see これ\n"


def test_a_phrase_is_found_wherever_it_stands_in_its_line_only() -> None:
    for text in ("javascript", "xjavascript", "javascriptx", "x javascript x"):
        assert cut(text, PHRASES, phrase_lines=1)[0] == ""
    assert cut("java\nscript", PHRASES, phrase_lines=1)[0] == "java\nscript"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=5))
def test_cuts_lie_on_character_boundaries_and_are_sorted(texts: list[str]) -> None:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    rules = line_rules(OFF | {"short_lines": 2, "citations": 1, "unended_lines": 1}, ())
    span_offsets, spans, _ = find_cuts(data, offsets, rules)
    for place, text in enumerate(texts):
        own = spans[span_offsets[place] : span_offsets[place + 1]]
        assert (np.diff(own.ravel()) >= 0).all()
        pieces = [text.encode()[start:end].decode() for start, end in own]
        assert all(pieces)
    text_array(*apply_cuts(data, offsets, span_offsets, spans)).validate(full=True)
