"""Line rules: which lines and citation marks to cut (`find_cuts`), and a text without them (`apply_cuts`).

A line is what stands between newlines. A blank line (nothing visible in it) is never judged; a cut line takes its
newline along, and the blank lines after it where a blank line (or the beginning) stands before it, so that no double
gap is left. Spans are byte offsets within the document, sorted, disjoint, always on character boundaries.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets, frozen, inner, kernel
from tasks.kernels.characters import ALPHABETIC, INVISIBLE, SPACE, TERMINAL, UNSPACED, character_table
from tasks.kernels.utf8 import decode, lower

CUTS = ("long_word_lines", "unended_lines", "short_lines", "phrase_lines", "citations")  # as they are judged
LONG_WORD, UNENDED_LINE, FEW_WORDS, PHRASE, CITATION, KEPT, BLANK = range(7)
UNSPACED_SHARE = 5  # a line where more than a fifth of the letters are of an unspaced script has no words to count
NEWLINE, SPACE_BYTE, BRACKET = 10, 32, ord("[")
MARKS, MARK_ENDS = tuple(b"edit]citation needed]"), (0, 5, 21)  # what follows the bracket
QUOTES = tuple(ord(quote) for quote in "\"'”’»」』")  # end marks of a line beside Sentence_Terminal
Spans = NDArray[np.int64]
Rules = tuple[Bytes, Bytes, Offsets, Bytes, NDArray[np.int64]]  # see line_rules


def find_cuts(data: Bytes, offsets: Offsets, rules: Rules) -> tuple[Offsets, Spans, NDArray[np.int64]]:
    """What to cut from each document: n + 1 offsets into the spans, the spans, and the counts of CUTS."""
    span_offsets, spans, counts = _find_cuts(data, offsets, rules)
    return span_offsets, spans[: span_offsets[-1]].copy(), counts


@kernel
def _find_cuts(data: Bytes, offsets: Offsets, rules: Rules) -> tuple[Offsets, Spans, NDArray[np.int64]]:
    num_docs = len(offsets) - 1
    span_offsets = np.zeros(num_docs + 1, np.int64)
    size = (
        offsets[num_docs] - offsets[0]
    ) // 2 + num_docs  # a cut line has two bytes (the last may have one), a mark 3
    spans = np.empty((size, 2), np.int64)  # untouched pages cost nothing
    counts = np.zeros((num_docs, CITATION + 1), np.int64)
    used = span_offsets[0]  # a literal 0 would compile everything below a second time, for its own type
    for doc in range(num_docs):
        start, end, first = offsets[doc], offsets[doc + 1], used
        is_cut, is_after_blank = False, True
        while start < end:
            before = used
            used, stop, verdict = _judge_line(data, start, end, rules, spans, used)
            following = min(stop + 1, end)
            if verdict == KEPT:
                counts[doc, CITATION] += used - before
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
def add_line(
    spans: Spans, used: int, first: int, start: int, end: int, verdict: int, is_cut: bool, is_after_blank: bool
) -> tuple[int, bool, bool]:
    """Add a line that is cut, and a blank one after it that would stand behind another blank one.

    is_cut, is_after_blank: whether the line before was cut, and what stands before that is blank or nothing
    """
    if verdict == KEPT:
        return used, False, False
    if verdict != BLANK:
        return add_span(spans, used, first, start, end), True, is_after_blank
    if is_cut and is_after_blank:
        return add_span(spans, used, first, start, end), is_cut, is_after_blank
    return used, False, True


@inner
def set_apart(spans: Spans, first: int, used: int, base: int) -> None:
    """The spans of a document from its own beginning on."""
    for k in range(first, used):  # as a slice this alone would take seconds to compile
        spans[k, 0] -= base
        spans[k, 1] -= base


@inner
def add_span(spans: Spans, used: int, first: int, start: int, end: int) -> int:
    """Add a span, joined to the one before where they touch."""
    if used > first and spans[used - 1, 1] == start:
        spans[used - 1, 1] = end
        return used
    spans[used, 0], spans[used, 1] = start, end
    return used + 1


@inner
def _judge_line(data: Bytes, start: int, end: int, rules: Rules, spans: Spans, used: int) -> tuple[int, int, int]:
    """Spans used, the end of the line, the rule it breaks (or KEPT, BLANK); adds its citation marks to the spans."""
    characters, _, _, _, settings = rules
    first = used
    used, stop, has_phrase = _search(data, start, end, rules, spans, used)
    if settings[UNENDED_LINE] == 0 and _is_ordinary(data, start, stop, settings):
        return used, stop, PHRASE if has_phrase else KEPT
    words, longest, tail, has_words = _line_words(data, start, stop, characters)
    if words == 0:
        return first, stop, BLANK
    if has_words and 0 < settings[LONG_WORD] < longest:
        return used, stop, LONG_WORD
    last = used - 1
    while last >= first and spans[last, 1] == tail:
        tail = spans[last, 0]
        last -= 1
    if has_words and settings[UNENDED_LINE] > 0 and not _is_ended(data, start, tail, characters):
        return used, stop, UNENDED_LINE
    if has_words and words < settings[FEW_WORDS]:
        return used, stop, FEW_WORDS
    return used, stop, PHRASE if has_phrase else KEPT


@inner
def _is_ordinary(data: Bytes, start: int, end: int, settings: NDArray[np.int64]) -> bool:
    """Whether a look at a few bytes shows that a line has words enough and none too long; most lines end here.

    Counts only words that begin with a visible ASCII character after a space, so it may count too few, never too many.
    """
    wanted, words, in_word, i = max(1, settings[FEW_WORDS]), 0, False, start
    while i < end and words < wanted:
        words += 33 <= data[i] <= 126 and not in_word
        in_word = data[i] != SPACE_BYTE
        i += 1
    i = start
    while words == wanted and end - i > settings[LONG_WORD] > 0:
        blank = i + settings[LONG_WORD]
        while blank >= i and data[blank] != SPACE_BYTE:
            blank -= 1
        if blank < i:
            return False
        i = blank + 1
    return words == wanted


@inner
def _line_words(data: Bytes, start: int, end: int, characters: Bytes) -> tuple[int, int, int, bool]:
    """Words (runs without white space), characters of the longest, end of the last, whether words can be counted."""
    words = longest = chars = letters = unspaced = visible = 0
    tail = start
    i = start
    while i < end:
        code, width = decode(data, i)
        flags = characters[code]
        i += width
        if flags & SPACE:
            chars = 0
            continue
        chars += 1
        words += chars == 1
        visible += (flags & INVISIBLE) == 0
        longest = max(longest, chars)
        letters += (flags & ALPHABETIC) != 0
        unspaced += (flags & ALPHABETIC) != 0 and (flags & UNSPACED) != 0
        tail = i
    return words if visible else 0, longest, tail, unspaced * UNSPACED_SHARE <= letters


@inner
def _is_ended(data: Bytes, start: int, tail: int, characters: Bytes) -> bool:
    """Whether the text before `tail` ends with an end mark or quote, and not with an ellipsis."""
    if tail <= start:
        return False
    i = tail - 1
    while i > start and data[i] & 0xC0 == 0x80:
        i -= 1
    code, _ = decode(data, i)
    if code == 46 and i - start >= 2 and data[i - 1] == 46 and data[i - 2] == 46:
        return False
    return characters[code] & TERMINAL != 0 or code in QUOTES


@inner
def _search(data: Bytes, start: int, end: int, rules: Rules, spans: Spans, used: int) -> tuple[int, int, bool]:
    """Spans used, the end of the line, whether a phrase stands in it; adds its citation marks to the spans."""
    _, phrases, bounds, anchors, settings = rules
    found = False
    i = _next_anchor(data, start, end, anchors)
    while i < end and data[i] != NEWLINE:
        stop = i
        if anchors[data[i]] == 1:
            found = found or _is_phrase(data, i, start, end, phrases, bounds)
        elif settings[CITATION] > 0:
            stop = _citation_end(data, i, end)
        if stop > i:
            spans[used, 0], spans[used, 1] = i, stop
            used += 1
        i = _next_anchor(data, max(stop, i + 1), end, anchors)
    return used, i, found


@inner
def _next_anchor(data: Bytes, i: int, end: int, anchors: Bytes) -> int:
    while i < end and anchors[data[i]] == 0:
        i += 1
    return i


@inner
def _is_phrase(data: Bytes, at: int, start: int, end: int, text: Bytes, bounds: Offsets) -> bool:
    """Whether some phrase whose anchor (its first byte in `text`) is data[at] stands there, in any case of ASCII."""
    for k in range(0, len(bounds) - 1):
        first = at - text[bounds[k]]
        length = bounds[k + 1] - bounds[k] - 1
        if first < start or first + length > end:
            continue
        j = 0
        while j < length and lower(data[first + j]) == text[bounds[k] + 1 + j]:
            j += 1
        if j == length:
            return True
    return False


@inner
def _citation_end(data: Bytes, i: int, end: int) -> int:
    """Where the citation mark that begins at i ends: [digits], [edit] or [citation needed]; i when it is none."""
    j = i + 1
    while j < end and 48 <= data[j] <= 57:
        j += 1
    if j > i + 1:
        return j + 1 if j < end and data[j] == 93 else i
    for k in range(len(MARK_ENDS) - 1):
        j, at = i + 1, MARK_ENDS[k]
        while j < end and at < MARK_ENDS[k + 1] and data[j] == MARKS[at]:
            j += 1
            at += 1
        if at == MARK_ENDS[k + 1]:
            return j
    return i


@kernel
def _without_spans(data: Bytes, offsets: Offsets, span_offsets: Offsets, spans: Spans) -> tuple[Bytes, Offsets]:
    num_docs = len(offsets) - 1
    kept_offsets = np.zeros(num_docs + 1, np.int64)
    for doc in range(num_docs):
        length = offsets[doc + 1] - offsets[doc]
        for k in range(span_offsets[doc], span_offsets[doc + 1]):
            length -= spans[k, 1] - spans[k, 0]
        kept_offsets[doc + 1] = kept_offsets[doc] + length
    kept = np.empty(kept_offsets[num_docs], np.uint8)
    at = 0
    for doc in range(num_docs):
        base = position = offsets[doc]
        for k in range(span_offsets[doc], span_offsets[doc + 1] + 1):
            is_span = k < span_offsets[doc + 1]
            stop = base + spans[k, 0] if is_span else offsets[doc + 1]
            for i in range(position, stop):
                kept[at + i - position] = data[i]
            at += stop - position
            position = base + spans[k, 1] if is_span else stop
    return kept, kept_offsets


def apply_cuts(data: Bytes, offsets: Offsets, span_offsets: Offsets, spans: Spans) -> tuple[Bytes, Offsets]:
    """Bytes and offsets of the documents without their spans."""
    kept, kept_offsets = _without_spans(data, offsets, span_offsets, spans)
    return frozen(kept), frozen(kept_offsets)


RARITY = " etaoinshrdlcumwfgypbvkjxqz"  # commonest first: a phrase is looked for at its rarest letter


def line_rules(settings: dict[str, int], phrases: tuple[str, ...]) -> Rules:
    """Line rules for `find_cuts`: a limit per name of CUTS, 0 to switch it off, and lower-case phrases.

    Returns the character table; the phrases, each a byte with the place of its rarest letter and then its own bytes;
    their offsets; a table over bytes (1: look for a phrase around it, 2: a citation mark or line end); the limits.
    """
    text, bounds = bytearray(), [0]
    anchors = np.zeros(256, np.uint8)
    for phrase in phrases:
        data = phrase.encode()
        place = max(range(len(data)), key=lambda i: (RARITY.find(chr(data[i])), -i))
        anchors[[data[place], ord(data[place : place + 1].upper())]] = 1
        text += bytes([place]) + data
        bounds.append(len(text))
    anchors[[BRACKET, NEWLINE]] = 2
    limits = np.array([settings[name] for name in CUTS], np.int64)
    return character_table(), np.frombuffer(bytes(text), np.uint8), np.array(bounds, np.int64), anchors, limits
