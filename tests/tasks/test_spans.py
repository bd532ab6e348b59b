"""Spans: joined where they meet; cuts fall on characters, between words where there are any."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.spans import MAX_WORD_CHARS, cut_spans, merged


def test_merged_spans() -> None:
    assert merged([(5, 9), (0, 2), (8, 12), (12, 13), (1, 2)]) == [(0, 2), (5, 13)]
    assert merged([]) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8))
def test_merged_spans_cover_the_same_places_once(pairs: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in pairs]
    joined = merged(spans)
    assert {at for a, b in joined for at in range(a, b)} == {at for a, b in spans for at in range(a, b)}
    assert all(end < start for (_, end), (start, _) in pairwise(joined))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(alphabet="aé中🙂 \n", min_size=1, max_size=12), min_size=3, max_size=3), st.integers(0, 15))
def test_cuts_fall_on_characters_and_take_the_span(pieces: list[str], margin: int) -> None:
    before, middle, after = pieces
    text = f"{before}<{middle}>{after}"
    start = len(before.encode())
    left = cut_spans(text, [(start, start + len(middle.encode()) + 2)], margin)
    words, first, last = left.split(), before.split(), after.split()
    assert any(words == first[:n] + last[len(last) + n - len(words) :] for n in range(min(len(words), len(first)) + 1))
    assert not {"<", ">"} & set(left)


def test_cuts_that_meet_are_one() -> None:
    text = "a b c d e f g"
    assert cut_spans(text, [(4, 5), (8, 9)], 0) == "a b\nd\nf g"
    assert cut_spans(text, [(4, 5), (8, 9)], 2) == "a\ng"
    assert cut_spans(text, [(0, 13)], 5) == ""


def test_a_cut_in_a_script_without_spaces_takes_the_span_alone() -> None:
    text = "字" * 500 + "問題" + "文" * 500
    assert cut_spans(text, [(1500, 1506)], 0) == "字" * 500 + "\n" + "文" * 500
    assert cut_spans(text, [(1500, 1506)], 100) == "字" * 400 + "\n" + "文" * 400
    near = "字 " + "字" * (MAX_WORD_CHARS - 1) + "問題"
    assert cut_spans(near, [(len(near.encode()) - 6, len(near.encode()))], 0) == "字"
