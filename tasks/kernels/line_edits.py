"""RefinedWeb's line rules: which lines to cut, and which phrases in short lines (`find_edits`).

    "MENU", "2026", "3 likes", "Home" are cut; "Sign-in to go on" becomes "to go on"; "Home page" stays

A line is what stands between newlines; its share of capitals is one of all its characters, white space included. The
first rule that a line breaks is counted. Blank lines and gaps are treated as in tasks/kernels/cuts.py, and so are
spans. A phrase takes one space along; a line of which no word is left goes as a whole.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets, frozen, inner, kernel
from tasks.kernels.characters import (
    ALPHABETIC,
    CHECKED,
    CLOSING,
    INVISIBLE,
    SPACE,
    TERMINAL,
    UNSPACED,
    WORD,
    character_table,
)
from tasks.kernels.cuts import BLANK, KEPT, Spans, add_line, add_span, set_apart
from tasks.kernels.utf8 import decode, lower

EDITS = ("upper_case_lines", "digit_lines", "counter_lines", "few_word_lines", "navigation_phrases")  # as judged
UPPER_CASE, DIGITS, COUNTER, FEW_WORDS, NAVIGATION = range(5)  # then KEPT, BLANK
NUM_WORDS, NUM_CUT_WORDS = len(EDITS), len(EDITS) + 1  # columns of the counts after those of EDITS
UPPER, DIGIT = TERMINAL, CLOSING  # flags in the place of two that are of no use here
COUNTERS, STARTS, ENDS, ANYWHERE = range(4)  # groups of phrases
CHARS, VISIBLE, WORDS, LETTERS, UNSPACED_LETTERS, UPPERS, DIGITS_FOUND, HEAD, TAIL = range(9)  # facts of a line
UNSPACED_SHARE = 5  # a line where more than a fifth of the letters are of an unspaced script has no words to count
NEWLINE, SPACE_BYTE, COMMA, DOT = 10, 32, 44, 46
MAGNITUDES = tuple(b"kmb")
Facts = NDArray[np.int64]
EditRules = tuple[Bytes, Bytes, Offsets, Offsets, NDArray[np.float64]]  # see edit_rules


def find_edits(data: Bytes, offsets: Offsets, rules: EditRules) -> tuple[Offsets, Spans, NDArray[np.int64]]:
    """What to cut from each document: n + 1 offsets into the spans, the spans, counts.

    Columns of the counts: those of EDITS, the document's words (runs without white space), and those of them cut.
    """
    span_offsets, spans, counts = _find_edits(data, offsets, rules)
    return span_offsets, spans[: span_offsets[-1]].copy(), counts


@kernel
def _find_edits(data: Bytes, offsets: Offsets, rules: EditRules) -> tuple[Offsets, Spans, NDArray[np.int64]]:
    num_docs = len(offsets) - 1
    span_offsets = np.zeros(num_docs + 1, np.int64)
    spans = np.empty(((offsets[num_docs] - offsets[0]) // 2 + num_docs, 2), np.int64)  # each has two bytes, or is last
    counts = np.zeros((num_docs, NUM_CUT_WORDS + 1), np.int64)
    facts = np.zeros(TAIL + 1, np.int64)
    used = span_offsets[0]  # a literal 0 would compile everything below a second time, for its own type
    for doc in range(num_docs):
        start, end, first = offsets[doc], offsets[doc + 1], used
        is_cut, is_after_blank = False, True
        while start < end:
            before = used
            stop = _measure_line(data, start, end, rules[0], facts)
            used, verdict, words = _judge_line(data, facts, rules, spans, used)
            counts[doc, NUM_WORDS] += facts[WORDS]
            counts[doc, NUM_CUT_WORDS] += words
            following = min(stop + 1, end)
            if verdict == KEPT:
                counts[doc, NAVIGATION] += used - before
            elif verdict != BLANK:
                counts[doc, verdict] += 1
                used = before  # the line goes whole
            used, is_cut, is_after_blank = add_line(
                spans, used, first, start, following, verdict, is_cut, is_after_blank
            )
            start = following
        set_apart(spans, first, used, offsets[doc])
        span_offsets[doc + 1] = used
    return span_offsets, spans, counts


@inner
def _measure_line(data: Bytes, start: int, end: int, flags: Bytes, facts: Facts) -> int:
    """Where the line ends; its facts."""
    head = tail = i = start
    chars = visible = words = letters = unspaced = uppers = digits = 0
    in_word = False
    while i < end and data[i] != NEWLINE:
        code, width = decode(data, i)
        flag = np.int64(flags[code])
        i += width
        chars += 1
        if flag & SPACE:
            in_word = False
            continue
        if words == 0:
            head = i - width
        words += not in_word
        in_word = True
        tail = i
        visible += (flag & INVISIBLE) == 0
        letters += (flag & ALPHABETIC) != 0
        unspaced += (flag & ALPHABETIC) != 0 and (flag & UNSPACED) != 0
        uppers += (flag & UPPER) != 0
        digits += (flag & DIGIT) != 0
    facts[CHARS], facts[VISIBLE], facts[WORDS], facts[HEAD], facts[TAIL] = chars, visible, words, head, tail
    facts[LETTERS], facts[UNSPACED_LETTERS], facts[UPPERS], facts[DIGITS_FOUND] = letters, unspaced, uppers, digits
    if visible == 0:
        facts[WORDS] = 0
    return i


@inner
def _judge_line(data: Bytes, facts: Facts, rules: EditRules, spans: Spans, used: int) -> tuple[int, int, int]:
    """Spans used, the rule that the line breaks (or KEPT, BLANK), the words cut; adds its phrases to the spans."""
    limits, first, words = rules[4], used, facts[WORDS]
    if words == 0:
        return used, BLANK, words
    if facts[UPPERS] > limits[UPPER_CASE] * facts[CHARS]:
        return used, UPPER_CASE, words
    if limits[DIGITS] > 0 and words == 1 and facts[DIGITS_FOUND] == facts[VISIBLE]:
        return used, DIGITS, words
    if _is_counter(data, facts[HEAD], facts[TAIL], rules):
        return used, COUNTER, words
    if facts[UNSPACED_LETTERS] * UNSPACED_SHARE > facts[LETTERS]:
        return used, KEPT, 0
    if words < limits[FEW_WORDS]:
        return used, FEW_WORDS, words
    if words > limits[NAVIGATION]:
        return used, KEPT, 0
    used = _cut_phrases(data, facts[HEAD], facts[TAIL], rules, spans, used)
    left = _count_words(data, facts[HEAD], facts[TAIL], rules[0], spans, first, used) if used > first else words
    return used, KEPT if left else NAVIGATION, words - left


@inner
def _is_counter(data: Bytes, head: int, tail: int, rules: EditRules) -> bool:
    """A number, perhaps with k, m or b, white space and a counter's word; around it nothing but marks."""
    flags, text, bounds, groups, _ = rules
    i = _skip_marks(data, head, tail, flags)
    if i == tail or flags[decode(data, i)[0]] & DIGIT == 0:
        return False
    while i < tail:
        code, width = decode(data, i)
        if flags[code] & DIGIT == 0 and code != COMMA and code != DOT:
            break
        i += width
    i += i < tail and lower(data[i]) in MAGNITUDES
    number_end = i
    while i < tail and flags[decode(data, i)[0]] & SPACE:
        i += decode(data, i)[1]
    if i == number_end:
        return False
    for k in range(groups[COUNTERS], groups[COUNTERS + 1]):
        after = i + bounds[k + 1] - bounds[k]
        if _matches(data, i, tail, text, bounds, k) and _skip_marks(data, after, tail, flags) == tail:
            return True
    return False


@inner
def _skip_marks(data: Bytes, i: int, end: int, flags: Bytes) -> int:
    """The first letter, mark of a letter or number from i on."""
    while i < end:
        code, width = decode(data, i)
        if flags[code] & WORD:
            break
        i += width
    return i


@inner
def _cut_phrases(data: Bytes, head: int, tail: int, rules: EditRules, spans: Spans, used: int) -> int:
    """Spans used, with the phrases at the line's start, at its end and between them added in order."""
    _, text, bounds, groups, _ = rules
    first, low, high = used, head, tail
    for k in range(groups[STARTS], groups[STARTS + 1]):
        if low == head and _matches(data, head, tail, text, bounds, k):
            low = head + bounds[k + 1] - bounds[k]
            low += low < tail and data[low] == SPACE_BYTE
            used = add_span(spans, used, first, head, low)
    for k in range(groups[ENDS], groups[ENDS + 1]):
        at = tail - (bounds[k + 1] - bounds[k])
        if high == tail and at >= low and _matches(data, at, tail, text, bounds, k):
            high = at - (at > low and data[at - 1] == SPACE_BYTE)
    i = low
    while i < high:
        stop = i
        for k in range(groups[ANYWHERE], groups[ANYWHERE + 1]):
            if stop == i and _matches(data, i, high, text, bounds, k):
                stop = i + bounds[k + 1] - bounds[k]
        if stop > i:
            free = spans[used - 1, 1] if used > first else low
            used = add_span(spans, used, first, i - (i > free and data[i - 1] == SPACE_BYTE), stop)
        i = max(stop, i + 1)
    return add_span(spans, used, first, high, tail) if high < tail else used


@inner
def _matches(data: Bytes, at: int, end: int, text: Bytes, bounds: Offsets, k: int) -> bool:
    """Whether phrase k stands at `at`, in any case of ASCII."""
    length = bounds[k + 1] - bounds[k]
    if at + length > end:
        return False
    j = 0
    while j < length and lower(data[at + j]) == text[bounds[k] + j]:
        j += 1
    return j == length


@inner
def _count_words(data: Bytes, i: int, end: int, flags: Bytes, spans: Spans, k: int, used: int) -> int:
    """Words between i and `end` without the spans k to `used`; none where nothing visible is left."""
    words = visible = 0
    in_word = False
    while i < end:
        if k < used and i == spans[k, 0]:
            i = spans[k, 1]
            k += 1
            continue
        code, width = decode(data, i)
        is_space = flags[code] & SPACE != 0
        words += not is_space and not in_word
        visible += not is_space and flags[code] & INVISIBLE == 0
        in_word = not is_space
        i += width
    return words if visible else 0


def edit_rules(limits: dict[str, float], phrases: Sequence[Sequence[str]]) -> EditRules:
    """Line rules for `find_edits`: a limit per name of EDITS, and lower-case phrases of the four groups.

    Limits: the largest share of capitals; 1 to cut lines of digits; (counter_lines has none); the fewest words; the
    words of a line in which phrases are looked for. Returns flags per character; the phrases' bytes and their offsets;
    where the groups begin among them; the limits.
    """
    encoded = [phrase.encode() for group in phrases for phrase in group]
    bounds = np.cumsum([0, *map(len, encoded)])
    groups = np.cumsum([0, *map(len, phrases)])
    values = np.array([limits.get(name, 0) for name in EDITS], np.float64)
    return _flags(), np.frombuffer(b"".join(encoded), np.uint8), frozen(bounds), frozen(groups), values


@cache
def _flags() -> Bytes:
    """The character table with capitals and digits in the place of two other flags."""
    table = character_table() & np.uint8(255 - UPPER - DIGIT)
    for codes in CHECKED:
        table[codes.start : codes.stop] |= np.fromiter(
            ((UPPER if chr(code).isupper() else 0) | (DIGIT if chr(code).isdigit() else 0) for code in codes),
            np.uint8, len(codes),
        )  # fmt: skip
    return frozen(table)
