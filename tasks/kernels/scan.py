"""One pass over each text: counts of all that document rules look at, and hashes of its words, lines and paragraphs.

Definitions (the rules in tasks/signals/__init__.py are ratios of these):
- run: characters without white space between them; word: a run without what is neither letter, mark nor number at its
  two ends ("(don't)," -> "don't"); a run with nothing left is a symbol. Words count in words, lengths and n-grams; runs
  are the denominator of the symbol and alphabetic ratios.
- line: what stands between newlines, without white space at its ends; blank ones are no lines. Two lines are equal when
  their bytes are. paragraph: lines without a blank line between them.
- sentence: begins with a line, or with a run after an end mark (closing quotes and brackets may follow the mark; an
  ellipsis is none), or right after an end mark of a script without spaces.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Int, Offsets, inner, kernel
from tasks.kernels.characters import (
    ALPHABETIC,
    CLOSING,
    INVISIBLE,
    SPACE,
    TERMINAL,
    UNENDED,
    UNSPACED,
    WORD,
    character_table,
)
from tasks.kernels.utf8 import decode

COUNTS = (
    "chars", "symbol_chars", "letters", "unspaced_letters", "unended_letters", "words", "word_chars", "symbols",
    "alphabetic_runs", "stop_words", "hashes", "ellipses", "curly_brackets", "lorem_ipsums", "sentences", "newlines",
    "lines", "bullet_lines", "ellipsis_lines", "ended_lines", "short_lines", "paragraphs",
)  # fmt: skip
(
    CHARS, SYMBOL_CHARS, LETTERS, UNSPACED_LETTERS, UNENDED_LETTERS, WORDS, WORD_CHARS, SYMBOLS,
    ALPHABETIC_RUNS, STOP_WORDS, HASHES, ELLIPSES, CURLY_BRACKETS, LOREM_IPSUMS, SENTENCES, NEWLINES,
    LINES, BULLET_LINES, ELLIPSIS_LINES, ENDED_LINES, SHORT_LINES, PARAGRAPHS,
) = range(22)  # fmt: skip
NUM_COUNTS = len(COUNTS)
NEWLINE, BLANK, DOT, ELLIPSIS, BULLET, HYPHEN, HASH, CURLY = 10, 32, 46, 0x2026, 0x2022, 45, 35, 123
MAX_ITEMS = 1 << 20  # words, lines and paragraphs of a document that are compared: bounds memory on huge documents
BASIS, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a; words: over code points
MIX = np.uint64(0x9E3779B97F4A7C15)
SPEECH_ENDS = (0x300D, 0x300F)  # 」 and 』, before which Japanese leaves the full stop out
LOREM, LOREM_SECOND = tuple(b"lorem ipsum"), 6  # and where its second word begins
PLAIN, MARK, END_SHIFT = 3, 4, 3  # an ASCII byte: 1 digit, 2 letter; 4 mark, with bit 3 when it ends a sentence
ENDED, ENDED_WIDE = 1, 3  # a sentence ended: before the next run; in a script without spaces, before the next word

Tables = tuple[Bytes, Bytes, NDArray[np.uint64], NDArray[np.int64], int]  # see scan_tables
Sink = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]  # hashes, characters, [next place, last]
Items = tuple[NDArray[np.uint64], NDArray[np.int32], Offsets]  # hashes, characters, offsets per document


@kernel
def scan_texts(data: Bytes, offsets: Offsets, tables: Tables) -> tuple[NDArray[np.int64], Items, Items, Items]:
    """Counts (documents x COUNTS), and the words, lines and paragraphs of each document."""
    num_docs = len(offsets) - 1
    size = offsets[num_docs] - offsets[0]
    counts = np.zeros((num_docs, NUM_COUNTS), np.int64)
    words, lines, paragraphs = _sink(size // 2 + num_docs + 1), _sink(size // 2 + num_docs), _sink(size // 3 + num_docs)
    ends = np.zeros((3, num_docs + 1), np.int64)
    for doc in range(num_docs):
        for sink in (words, lines, paragraphs):
            sink[2][1] = sink[2][0] + MAX_ITEMS
        _scan_text(data, offsets[doc], offsets[doc + 1], tables, counts[doc], (words, lines, paragraphs))
        ends[0, doc + 1], ends[1, doc + 1], ends[2, doc + 1] = words[2][0], lines[2][0], paragraphs[2][0]
    return counts, _items(words, ends[0]), _items(lines, ends[1]), _items(paragraphs, ends[2])


@kernel
def _sink(size: int) -> Sink:
    return np.empty(size, np.uint64), np.empty(size, np.int32), np.zeros(2, np.int64)  # untouched pages cost nothing


@kernel
def _items(sink: Sink, ends: Offsets) -> Items:
    return sink[0][: sink[2][0]], sink[1][: sink[2][0]], ends


@inner
def _put(sink: Sink, item_hash: np.uint64, chars: int) -> None:
    hashes, lengths, cursor = sink
    if cursor[0] < cursor[1]:
        hashes[cursor[0]] = item_hash
        lengths[cursor[0]] = chars
        cursor[0] += 1


@kernel
def _scan_text(
    data: Bytes, start: int, end: int, tables: Tables, counts: NDArray[np.int64], sinks: tuple[Sink, Sink, Sink]
) -> None:
    """One document into its row of counts and the three sinks."""
    words, lines, paragraphs = sinks
    first_word = words[2][0]
    paragraph, paragraph_chars = BASIS, -1
    while start < end:
        stop, line, line_chars = _scan_line(data, start, end, tables, counts, words)
        if line_chars:
            _put(lines, line, line_chars)
            paragraph = (paragraph ^ line) * PRIME
            paragraph_chars += line_chars + 1  # the newline between two lines counts
        elif paragraph_chars > 0:
            _put(paragraphs, paragraph, paragraph_chars)
            counts[PARAGRAPHS] += 1
            paragraph, paragraph_chars = BASIS, -1
        counts[NEWLINES] += stop < end
        start = stop + 1
    if paragraph_chars > 0:
        _put(paragraphs, paragraph, paragraph_chars)
        counts[PARAGRAPHS] += 1
    counts[CHARS] += counts[NEWLINES]
    counts[STOP_WORDS] = _distinct(words[0][first_word : words[2][0]], tables[2], tables[3])


@inner
def _is_lorem(data: Bytes, at: int, start: int, end: int) -> bool:
    if at < start or at + len(LOREM) > end:
        return False
    for k in range(len(LOREM)):
        byte = data[at + k]
        if (byte + 32 if 65 <= byte <= 90 else byte) != LOREM[k]:
            return False
    return True


@inner
def _distinct(words: NDArray[np.uint64], keys: NDArray[np.uint64], bits: NDArray[np.int64]) -> int:
    """How many different stop words there are among these words."""
    last = np.uint64(len(keys) - 1)
    seen = 0
    for word in words:
        place = word & last
        seen |= bits[place] if keys[place] == word else 0
    ones = 0
    while seen:
        seen &= seen - 1
        ones += 1
    return ones


@inner
def _scan_line(
    data: Bytes, start: int, end: int, tables: Tables, counts: NDArray[np.int64], words: Sink
) -> tuple[int, np.uint64, int]:
    """Where the line ends (its newline or the end), its hash and its characters (0 when blank); its words are put away.

    Most runs are plain: ASCII letters and digits, then at most one mark. They are read by a loop of four instructions.
    """
    characters, plain = tables[0], tables[1]
    hashes, lengths, cursor = words
    place, limit = cursor[0], cursor[1]
    head = tail = i = start
    pos = head_pos = tail_pos = 0
    mark: Int = ENDED
    while i < end and data[i] != NEWLINE:
        if not plain[data[i]]:
            code, width = decode(data, i)
            if characters[code] & SPACE:
                i += width
                pos += 1
                continue
        if tail == start:
            head, head_pos = i, pos
        counts[SENTENCES] += mark & ENDED
        if data[i] | 32 == LOREM[LOREM_SECOND]:
            counts[LOREM_IPSUMS] += _is_lorem(data, i - LOREM_SECOND, start, end)
        stop, word, word_chars, mark = _plain_run(data, i, end, plain, counts)
        chars = stop - i
        if stop == i:
            stop, word, chars, word_chars, mark = _scan_run(data, i, end, characters, counts)
        counts[WORDS] += word_chars > 0
        counts[SYMBOLS] += word_chars == 0
        counts[WORD_CHARS] += word_chars
        hashes[place], lengths[place] = word, word_chars
        place += word_chars > 0 and place < limit
        i = tail = stop
        pos = tail_pos = pos + chars
    counts[CHARS] += pos
    cursor[0] = place
    if tail == start:
        return i, BASIS, 0
    counts[SHORT_LINES] += tail_pos - head_pos <= tables[4]
    return i, _finish_line(data, head, tail, characters, counts), tail_pos - head_pos


@inner
def _plain_run(
    data: Bytes, start: int, end: int, plain: Bytes, counts: NDArray[np.int64]
) -> tuple[int, np.uint64, int, Int]:
    """Where a plain run ends, the hash and characters of its word, and whether a sentence ends with it.

    Ends where it starts when the run is not plain; nothing is counted then.
    """
    digest, seen, i = BASIS, np.uint8(0), start
    while i < end and plain[data[i]] & PLAIN:
        seen |= plain[data[i]]
        digest = (digest ^ np.uint64(data[i])) * PRIME
        i += 1
    word_chars = i - start
    if word_chars == 0:
        return start, digest, 0, 0
    last = np.int64(0)
    if i < end and plain[data[i]] & MARK:
        last = np.int64(data[i])
        i += 1
    if i < end and data[i] != BLANK and data[i] != NEWLINE:
        return start, digest, 0, 0
    counts[LETTERS] += word_chars
    counts[ALPHABETIC_RUNS] += (seen & PLAIN) >> 1
    counts[SYMBOL_CHARS] += last != 0
    counts[HASHES] += last == HASH
    counts[CURLY_BRACKETS] += last == CURLY
    return i, digest, word_chars, np.int64(plain[last] >> END_SHIFT)


@inner
def _scan_run(
    data: Bytes, i: int, end: int, characters: Bytes, counts: NDArray[np.int64]
) -> tuple[int, np.uint64, int, int, int]:
    """Where the run ends, the hash of its word, its characters, those of its word, whether a sentence ended in it."""
    digest = word = BASIS
    chars = first = last = letters = dots = mark = 0
    alphabetic: Int = 0
    while i < end:
        code, width = decode(data, i)
        flags = np.int64(characters[code])
        if flags & SPACE:
            break
        if flags & WORD:
            if last == 0:
                first, digest = chars, BASIS
            digest = (digest ^ np.uint64(code)) * PRIME
            word, last = digest, chars + 1
            letters += 1
            alphabetic |= flags & ALPHABETIC
            counts[SENTENCES] += mark >> 1
            mark = 0
            if flags & UNSPACED:
                counts[UNSPACED_LETTERS] += 1
                counts[UNENDED_LETTERS] += (flags & UNENDED) != 0
        else:
            digest = (digest ^ np.uint64(code)) * PRIME
            dots, mark = _scan_symbol(data, i, flags, dots, mark if chars else 0, counts)
        chars += 1
        i += width
    counts[LETTERS] += letters
    counts[ALPHABETIC_RUNS] += alphabetic >> 1
    return i, word, chars, last - first, mark


@inner
def _scan_symbol(data: Bytes, i: int, flags: int, dots: int, ended: int, counts: NDArray[np.int64]) -> tuple[int, int]:
    """How many dots stand in a row up to here, and whether a sentence ended; counts the marks that rules know."""
    code, _ = decode(data, i)
    counts[SYMBOL_CHARS] += (flags & INVISIBLE) == 0
    counts[HASHES] += code == HASH
    counts[CURLY_BRACKETS] += code == CURLY
    if code == DOT:
        dots = dots + 1 if dots and data[i - 1] == DOT else 1
        counts[ELLIPSES] += dots % 3 == 0
        return dots, ENDED if dots == 1 else 0
    counts[ELLIPSES] += code == ELLIPSIS
    if flags & TERMINAL:
        return dots, ENDED_WIDE if flags & UNSPACED else ENDED
    return dots, ended if flags & CLOSING else 0


@inner
def _finish_line(data: Bytes, head: int, tail: int, characters: Bytes, counts: NDArray[np.int64]) -> np.uint64:
    """Hash of a line's bytes, in two lanes so that neither waits for its multiplication; how it begins and ends."""
    even = odd = BASIS
    for i in range(head, tail - 1, 2):
        even = (even ^ np.uint64(data[i])) * PRIME
        odd = (odd ^ np.uint64(data[i + 1])) * PRIME
    if (tail - head) % 2:
        even = (even ^ np.uint64(data[tail - 1])) * PRIME
    first, _ = decode(data, head)
    at = tail - 1
    while data[at] & 0xC0 == 0x80:
        at -= 1
    last, _ = decode(data, at)
    is_dots = last == DOT and tail - head >= 3 and data[at - 1] == DOT and data[at - 2] == DOT
    counts[LINES] += 1
    counts[BULLET_LINES] += first in (BULLET, HYPHEN)
    counts[ENDED_LINES] += (characters[last] & TERMINAL) != 0 or (
        last > 0x7F and _is_closed(data, head, at, characters)
    )
    counts[ELLIPSIS_LINES] += is_dots or last == ELLIPSIS
    return (even * MIX) ^ odd ^ np.uint64(tail - head)


@inner
def _is_closed(data: Bytes, head: int, at: int, characters: Bytes) -> bool:
    """Whether the character at `at` closes speech as Japanese does (」), or stands behind a wide end mark (。”)."""
    last, _ = decode(data, at)
    before = at - 1
    while before > head and data[before] & 0xC0 == 0x80:
        before -= 1
    if last in SPEECH_ENDS or before < head or not characters[last] & CLOSING:
        return last in SPEECH_ENDS
    flags = characters[decode(data, before)[0]]
    return flags & TERMINAL != 0 and flags & UNSPACED != 0


def word_hash(word: str) -> int:
    """The hash that `scan_texts` gives to a word."""
    digest = int(BASIS)
    for char in word:
        digest = ((digest ^ ord(char)) * int(PRIME)) % (1 << 64)
    return digest


def scan_tables(stop_words: tuple[str, ...], short_line_chars: int) -> Tables:
    """What `scan_texts` needs beside the text: flags per character; what ASCII bytes are; at most 62
    stop words (case counts) as hashes, each at the place of its low bits, and their numbers as bits; the longest short
    line in characters."""
    hashes = [word_hash(word) for word in stop_words]
    size = 64
    while len({value % size for value in hashes}) < len(set(hashes)):
        size *= 2
    keys, bits = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    for number, value in enumerate(hashes):
        keys[value % size], bits[value % size] = value, 1 << number
    plain = np.zeros(256, np.uint8)
    for byte in range(33, 127):
        char = chr(byte)
        plain[byte] = char.isalnum() + char.isalpha() or MARK | (char in ".?!") << END_SHIFT
    return character_table(), plain, keys, bits, short_line_chars
