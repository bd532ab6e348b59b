"""RefinedWeb's line rules, one by one, and against a plain reference on any text."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_array, text_buffers
from tasks.kernels.characters import INVISIBLE, UNSPACED, character_table
from tasks.kernels.cuts import apply_cuts
from tasks.kernels.line_edits import EDITS, edit_rules, find_edits
from tasks.signals.refinedweb import RefinedWebLines

DATA = Path(__file__).parents[4] / "shared/data"
CRAWLED = DATA / "crawl_jsonl/dj_redpajama-cc-2023-06-refined.jsonl"
PUBLISHED = RefinedWebLines()
NEIGHBOUR = "It is so."  # breaks no rule
COUNTER = re.compile(rf"[! ,.]*0[0,.]*[kmb]? +(?:{'|'.join(PUBLISHED.counters)})[! ,.]*")
CUT = "\0"  # in no text of these tests
OFF: dict[str, Any] = {
    "max_upper_case_ratio": None, "cut_digits": False, "counters": (), "min_words": 0, "max_phrase_words": 0,
}  # fmt: skip
PIECES = (
    "MENU", "Home", "home page", "2026", "٣", "3 likes", "12,3K Views!", "• 1 comment", "5 likes more", "4likes",
    "Sign-in", "Sign-in to go on", "Read more...", "read More…", "3 items in cart", "items in cartitems in cart", "a",
    "\n", "\n\n", "\n \n", " ", "\t", "\u00a0", "\u200b", "é", "É", "世界", "こんにちは", "ไทย",
    "one two three four five six",
)  # fmt: skip
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8", exclude_characters=CUT)), max_size=30
).map("".join)


def edit(text: str, config: RefinedWebLines = PUBLISHED) -> tuple[str, dict[str, int], tuple[int, int]]:
    """The text without its cuts, the rules that fired, its words and those that were cut."""
    data, offsets = text_buffers(pa.array([NEIGHBOUR, text, NEIGHBOUR], pa.large_string()))
    span_offsets, spans, counts = find_edits(data, offsets, edit_rules(config.limits, config.groups))
    kept = text_array(*apply_cuts(data, offsets, span_offsets, spans))
    kept.validate(full=True)
    assert kept.to_pylist()[::2] == [NEIGHBOUR, NEIGHBOUR]
    fired = {name: int(count) for name, count in zip(EDITS, counts[1], strict=False) if count}
    return kept[1].as_py(), fired, (int(counts[1][-2]), int(counts[1][-1]))


@pytest.mark.parametrize(
    ("text", "kept", "rule", "setting"),
    [
        ("MENU BAR\nAbc DE\n", "Abc DE\n", "upper_case_lines", {"max_upper_case_ratio": 0.5}),
        ("ÉTÉ\nété fini", "été fini", "upper_case_lines", {"max_upper_case_ratio": 0.5}),
        ("2026\n٢٠٢٦\n12 34\n3.5\n", "12 34\n3.5\n", "digit_lines", {"cut_digits": True}),
        ("3 likes\n• 1.5K Shares |\n4 likes it\n3likes\n", "4 likes it\n3likes\n", "counter_lines",
         {"counters": ("likes", "shares")}),
        ("Home\nHome page\n", "Home page\n", "few_word_lines", {"min_words": 2}),
        ("Sign-in to go on\nto sign-in\n", "to go on\nto sign-in\n", "navigation_phrases", {"max_phrase_words": 10}),
        ("And so. READ MORE...\nread more... x\n", "And so.\nread more... x\n", "navigation_phrases",
         {"max_phrase_words": 10}),
        ("You have 3 items in cart now\n", "You have 3 now\n", "navigation_phrases", {"max_phrase_words": 10}),
        ("items in cart\nSign-in Read more...\nab\n", "ab\n", "navigation_phrases", {"max_phrase_words": 10}),
    ],
)  # fmt: skip
def test_each_rule(text: str, kept: str, rule: str, setting: dict[str, Any]) -> None:
    """The rules of RefinedWeb as DCLM's baseline has them, each alone."""
    result, fired, _ = edit(text, RefinedWebLines(**(OFF | setting)))
    assert (result, list(fired)) == (kept, [rule])
    assert edit(text, RefinedWebLines(**OFF))[:2] == (text, {})


def test_a_share_of_capitals_equal_to_the_limit_stays() -> None:
    assert edit("AB c")[1] == edit("    ABC d")[1] == {}
    assert edit("ABC d")[1] == {"upper_case_lines": 1}


def test_phrases_stay_in_longer_lines() -> None:
    assert edit("Ten words in this line at the end: Read more...")[0] == "Ten words in this line at the end:"
    assert edit("Ten words in this line and one more: Read more... x")[1] == {}
    assert edit("Eleven words in this line at the very end: Read more...")[1] == {}


def test_words_are_counted_before_and_cut() -> None:
    assert edit("Home\n\nThe quick fox.\nTwo words Read more...\n")[2] == (8, 3)
    assert edit("xitems in cart y")[2] == (4, 2)  # "x y" is left
    assert edit(" \n\u200b\n")[2] == (0, 0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("one two\n\nMENU\n\nthree four\n", "one two\n\nthree four\n"),
        ("MENU\n\n\none two", "one two"),
        ("one two\nMENU\n\nthree four", "one two\n\nthree four"),
        ("MENU", ""),
        ("", ""),
    ],
)
def test_a_cut_line_leaves_no_double_gap(text: str, kept: str) -> None:
    assert edit(text)[0] == kept


def test_lines_of_scripts_without_spaces_have_no_words_to_count() -> None:
    """NVIDIA-NeMo/Curator#281: whitespace rules cut Thai and Japanese."""
    assert edit("これは長い文章です\nสวัสดีครับ\n")[1] == {}


def test_a_huge_line_is_read_once() -> None:
    """marin PR#4603: runs of white space and huge lines."""
    text = "a" + " " * 2_000_000 + "b\n" + "items in cart " * 100_000
    assert edit(text)[1:] == ({}, (300_002, 0))


@settings(max_examples=300, deadline=None)
@given(TEXTS)
@example("read more…\nx read more…\n")
@example("items in cartitems in cart\x1b")
@example("Sign-inSign-in items in cart")
@example("Sign-in items in cart read more...")
def test_equal_to_a_plain_reference(text: str) -> None:
    check_against_reference(text)


@pytest.mark.skipif(not CRAWLED.exists(), reason="needs the shared data")
def test_equal_on_crawled_and_technical_text() -> None:
    texts = [json.loads(line)["text"] for line in CRAWLED.read_text("utf-8").splitlines()]
    texts += pq.read_table(DATA / "text/docs_en.parquet", columns=["text"])["text"].to_pylist()[::100]
    for text in texts:
        check_against_reference(text)
    assert sum(len(edit(text)[1]) for text in texts) > len(texts) / 2  # most have something to cut


def check_against_reference(text: str) -> None:
    kept, fired, words = edit(text)
    lines, counts, cut = [], dict.fromkeys(EDITS, 0), 0
    for line in text.split("\n"):
        rule, left, phrases = plain_edit(line)
        counts[rule or "navigation_phrases"] += phrases if rule is None else 1
        cut += words_of(line) - words_of(left)
        if rule is None:
            lines.append(left)
    assert [line for line in kept.split("\n") if not is_blank(line)] == [line for line in lines if not is_blank(line)]
    assert fired == {name: count for name, count in counts.items() if count}
    assert words == (sum(map(words_of, text.split("\n"))), cut)


def plain_edit(line: str) -> tuple[str | None, str, int]:
    """(the rule that cuts the line, what is left of it, phrases cut), from the published definitions."""
    if is_blank(line):
        return None, line, 0
    digits = [char for char in line.strip() if not is_invisible(char)]
    letters = [char for char in line if char.isalpha()]
    if sum(map(str.isupper, line)) > 0.5 * len(line):
        return "upper_case_lines", "", 0
    if all(map(str.isdigit, digits)) and len(line.split()) == 1:
        return "digit_lines", "", 0
    if COUNTER.fullmatch("".join(map(shape_of, line))):
        return "counter_lines", "", 0
    if 5 * sum(map(is_unspaced, letters)) > len(letters):
        return None, line, 0
    if len(line.split()) < 2:
        return "few_word_lines", "", 0
    marked = mark_phrases(line) if len(line.split()) <= 10 else line
    left = marked.replace(CUT, "")
    if words_of(left) == 0:
        return "navigation_phrases", "", 0
    return None, left, len(re.findall(f"{CUT}+", marked))


def shape_of(char: str) -> str:
    """Digits as 0, white space as a space, ASCII in lower case, other letters and numbers as x, other marks as !."""
    if char.isdigit():
        return "0"
    if char.isspace():
        return " "
    is_word = unicodedata.category(char)[0] in "LMN"
    return (char.lower() if char.isascii() else "x") if is_word else char if char in ",." else "!"


def mark_phrases(line: str) -> str:
    """The line with CUT in the place of what the phrases take."""
    folded = "".join(char.lower() if char.isascii() else char for char in line)
    low, high = len(line) - len(line.lstrip()), len(line.rstrip())
    head, tail, middle = line[:low], line[high:], line[low:high]
    for phrase in (phrase for phrase in PUBLISHED.phrases_at_start if folded.startswith(phrase, low)):
        head, middle = head + CUT, middle[len(phrase) :].removeprefix(" ")
    for phrase in (phrase for phrase in PUBLISHED.phrases_at_end if folded.endswith(phrase, 0, high)):
        if len(middle) >= len(phrase):
            tail, middle = CUT + tail, middle[: -len(phrase)].removesuffix(" ")
    [anywhere] = PUBLISHED.phrases
    return head + re.sub(f"(?<=.) {anywhere}|{anywhere}", CUT, middle, flags=re.IGNORECASE | re.ASCII) + tail


def is_blank(line: str) -> bool:
    return all(char.isspace() or is_invisible(char) for char in line)


def is_invisible(char: str) -> bool:
    return bool(character_table()[ord(char)] & INVISIBLE)


def is_unspaced(char: str) -> bool:
    return bool(character_table()[ord(char)] & UNSPACED)


def words_of(line: str) -> int:
    return 0 if is_blank(line) else len(line.split())
