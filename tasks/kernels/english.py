"""Words as datatrove counts them in English: the tokens of spaCy's English tokenizer, punctuation marks included.

A run (characters without white space) is a special word ("don't" -> do, n't), or loses prefixes and suffixes one by one
until it is one or nothing is left to cut; what remains is a web address, or is cut at its infixes ("well-known" ->
well, -, known). Special words that the cuts have parted ("Mr" and ".") come together again. Every step is spaCy's
(tokenizer.pyx), but for addresses that are numbers (203.0.113.7/x). Most runs are letters and at most one mark: a short
loop reads those. Nothing is read more often than a bounded number of times.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Int, Offsets, inner, kernel
from tasks.kernels.characters import ALPHABETIC, SPACE
from tasks.kernels.scan import BASIS, MAX_ITEMS, MIX, PRIME, Items
from tasks.kernels.utf8 import decode

TOKEN_COUNTS = ("words", "word_chars", "symbols", "alphabetic_runs")  # as scan.COUNTS calls them
WORDS, WORD_CHARS, SYMBOLS, ALPHABETIC_TOKENS = range(4)
LOWER, UPPER, LETTERS, DIGIT = (
    4,
    8,
    12,
    16,
)  # beside SPACE and ALPHABETIC of characters.py; a letter without cases is both
# of datatrove's PUNCTUATION_SET (only such: no word); before a full stop that is cut off; quote; in an address's scheme
SYMBOL, DOTTED, QUOTE, WORD = 32, 512, 1024, 2048
PREFIX, SUFFIX, INFIX = 64, 128, 256  # cut off at the beginning, at the end, in the middle of a run
LETTER, MARK, BLANK = 1, 2, 3  # what an ASCII byte is in the short loop
LENGTH_BITS = 4  # a special word's token lengths, packed
SPECIAL_MASK = np.uint64((1 << 14) - 1)  # a table of 16 kB stays in the first cache
MAX_SPECIAL_CHARS = 12
DOLLAR, PLUS, HYPHEN, DOT, SLASH, COLON, AT = (ord(char) for char in "$+-./:@")
APOSTROPHES, DASHES = (ord("'"), ord("’")), (ord("–"), ord("—"))
MAX_LABEL, MAX_DOMAIN, MAX_PORT, MAX_UNIT_CHARS = 64, 63, 5, 4  # part, last part and port of an address; 5km/h
SEEN_BITS = 16  # 2^16 places for runs met before, 1 MB: nine of ten runs in English prose that are no plain word

Flags = NDArray[np.uint16]
Special = tuple[NDArray[np.uint64], NDArray[np.int64]]  # hashes at the place of their low bits, packed lengths
# characters; ASCII bytes, and which low bits a special word's hash can have; special words and units
Tables = tuple[Flags, tuple[Bytes, Bytes], Special]
Codes = NDArray[np.int32]
Sink = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]  # hashes, characters, [next place, last]
# where tokens go; characters of a run and two arrays of places in it; runs met before: hash and packed token lengths
Out = tuple[Sink, tuple[Codes, Codes, Codes], tuple[NDArray[np.uint64], NDArray[np.uint64]]]


@kernel
def english_tokens(data: Bytes, offsets: Offsets, tables: Tables) -> tuple[NDArray[np.int64], Items]:
    """Counts (documents x TOKEN_COUNTS) and the tokens of each document; a word is a token that is no punctuation."""
    num_docs = len(offsets) - 1
    size = offsets[num_docs] - offsets[0]
    sink = np.empty(size, np.uint64), np.empty(size, np.int32), np.zeros(2, np.int64)  # untouched pages cost nothing
    work = np.empty(size, np.int32), np.empty(size + 1, np.int32), np.empty(size, np.int32)
    seen = np.zeros(1 << SEEN_BITS, np.uint64), np.zeros(1 << SEEN_BITS, np.uint64)
    counts, ends = np.zeros((num_docs, len(TOKEN_COUNTS)), np.int64), np.zeros(num_docs + 1, np.int64)
    for doc in range(num_docs):
        sink[2][1] = sink[2][0] + MAX_ITEMS
        _read_text(data, offsets[doc], offsets[doc + 1], tables, counts[doc], (sink, work, seen))
        ends[doc + 1] = sink[2][0]
    return counts, (sink[0][: sink[2][0]], sink[1][: sink[2][0]], ends)


@inner
def _read_text(data: Bytes, i: Int, end: Int, tables: Tables, counts: NDArray[np.int64], out: Out) -> None:
    """Put the tokens of a text away. The loop calls nothing for a run of letters, with or without a mark behind it."""
    _, (plain, maybe_special), special = tables
    hashes, lengths, cursor = out[0]
    while i < end:
        digest, stop = BASIS, i
        while stop < end and plain[data[stop]] == LETTER:
            digest = (digest ^ np.uint64(data[stop])) * PRIME
            stop += 1
        chars = stop - i
        if chars == 0 and plain[data[i]] == BLANK:
            i += 1
            continue
        has_mark = stop < end and plain[data[stop]] == MARK
        is_plain = chars and (stop + has_mark >= end or plain[data[stop + has_mark]] == BLANK)
        if not is_plain or (maybe_special[digest & SPECIAL_MASK] and _find(special, digest) > 0):
            i = _read_run(data, i, end, tables, counts, out)
            continue
        place = cursor[0]
        if place + 1 < cursor[1]:
            hashes[place], lengths[place] = digest, chars
            if has_mark:
                hashes[place + 1], lengths[place + 1] = (BASIS ^ np.uint64(data[stop])) * PRIME, 1
            cursor[0] = place + 1 + has_mark
        counts[WORDS] += 1
        counts[ALPHABETIC_TOKENS] += 1
        counts[WORD_CHARS] += chars
        counts[SYMBOLS] += has_mark
        i = stop + has_mark


@inner
def _read_run(data: Bytes, i: Int, end: Int, tables: Tables, counts: NDArray[np.int64], out: Out) -> Int:
    """Put the run at i away, or pass over a blank; returns where to go on."""
    flags, _, special = tables
    sink, (codes, starts, tail), (keys, lengths_of) = out
    used, stop, digest = _decode_run(data, i, end, flags, codes)
    place = np.int64((digest * MIX) >> np.uint64(64 - SEEN_BITS))
    if used and keys[place] != digest:
        tokens = _join(codes, used, starts, _split(codes, used, tables, starts, tail), special)
        packed = _pack(starts, tokens, used)
        if packed == 0:
            for k in range(tokens):
                _put(codes, starts[k], starts[k + 1] if k + 1 < tokens else used, flags, sink, counts)
            return stop
        keys[place], lengths_of[place] = digest, packed
    rest, at = lengths_of[place], np.int64(0)
    while at < used:
        length = np.int64(rest & np.uint64(255))
        _put(codes, at, at + length, flags, sink, counts)
        at += length
        rest >>= np.uint64(8)
    return stop


@inner
def _pack(starts: Codes, tokens: int, used: int) -> np.uint64:
    """The lengths of up to 8 tokens, a byte each; 0 when there are more or longer ones."""
    packed = np.uint64(0)
    for k in range(tokens):
        length = (starts[k + 1] if k + 1 < tokens else used) - starts[k]
        if k >= 8 or length > 255:
            return np.uint64(0)
        packed |= np.uint64(length) << np.uint64(8 * k)
    return packed


@inner
def _put(codes: Codes, start: Int, end: Int, flags: Flags, sink: Sink, counts: NDArray[np.int64]) -> None:
    """Put one token away and count it."""
    digest, seen, shared = BASIS, np.uint16(0), np.uint16(SYMBOL)
    for k in range(start, end):
        digest = (digest ^ np.uint64(codes[k])) * PRIME
        seen |= flags[codes[k]]
        shared &= flags[codes[k]]
    hashes, lengths, cursor = sink
    if cursor[0] < cursor[1]:
        hashes[cursor[0]], lengths[cursor[0]] = digest, end - start
        cursor[0] += 1
    counts[ALPHABETIC_TOKENS] += seen & ALPHABETIC != 0
    counts[SYMBOLS] += shared != 0
    counts[WORDS] += shared == 0
    counts[WORD_CHARS] += end - start if shared == 0 else 0


@inner
def _find(table: Special, key: np.uint64) -> Int:
    """The value of the key, 0 for none."""
    keys, values = table
    place = np.int64((key * MIX) >> np.uint64(40)) & (len(keys) - 1)
    while keys[place] != 0 and keys[place] != key:
        place = (place + 1) & (len(keys) - 1)
    return values[place]


@inner
def _decode_run(data: Bytes, i: Int, end: Int, flags: Flags, codes: Codes) -> tuple[int, Int, np.uint64]:
    """How many characters the run at i has (left in `codes`), where it ends, its hash; a blank has 0, and is passed."""
    used, digest = 0, BASIS
    while i < end:
        code, width = decode(data, i)
        if flags[code] & SPACE:
            return used, i + width if used == 0 else i, digest
        codes[used] = code
        digest = (digest ^ np.uint64(code)) * PRIME
        used += 1
        i += width
    return used, i, digest


@inner
def _special(codes: Codes, start: Int, end: Int, special: Special) -> Int:
    """Packed lengths of the tokens of these characters when they are a special word, else 0."""
    if end <= start or end - start > MAX_SPECIAL_CHARS:
        return 0
    digest = BASIS
    for k in range(start, end):
        digest = (digest ^ np.uint64(codes[k])) * PRIME
    return max(_find(special, digest), 0)


@inner
def _split(codes: Codes, used: int, tables: Tables, starts: Codes, tail: Codes) -> int:
    """Number of tokens; leaves where each begins in `starts`."""
    flags, _, special = tables
    start, end, tokens, cut = 0, used, 0, 0
    while start < end and not _special(codes, start, end, special):
        before = _prefix(codes, start, end, flags)
        is_whole = before > 0 and _special(codes, start + before, end, special) > 0
        behind = 0 if is_whole else _suffix(codes, start + before, end, flags, special)
        if behind > 0 and _special(codes, start, end - behind, special):
            is_whole, before = True, 0
        if before + behind == 0:
            break
        if before:
            starts[tokens] = start
            tokens += 1
            start += before
        if behind:
            end -= behind
            tail[cut] = end
            cut += 1
        if is_whole:
            break
    tokens = _middle(codes, start, end, (flags, special), starts, tokens)
    for k in range(cut):
        starts[tokens + k] = tail[cut - 1 - k]
    return tokens + cut


@inner
def _prefix(codes: Codes, start: Int, end: Int, flags: Flags) -> Int:
    """Characters to cut off at the beginning."""
    code = codes[start]
    if flags[code] & PREFIX:
        return 1
    following = codes[start + 1] if start + 1 < end else 0
    if code == PLUS:
        return 0 if flags[following] & DIGIT else 1
    if code == DOT and following == DOT:
        last = start + 2
        while last < end and codes[last] == DOT:
            last += 1
        return last - start
    return 2 if following == DOLLAR and code in (65, 67) else 0  # A$, C$


@inner
def _suffix(codes: Codes, start: Int, end: Int, flags: Flags, special: Special) -> Int:
    """Characters to cut off at the end."""
    if end <= start:
        return 0
    code = codes[end - 1]
    if code == DOT:
        return _dots(codes, start, end, flags)
    before = codes[end - 2] if end - 2 >= start else 0
    if (code == 115 or code == 83) and before in APOSTROPHES:
        return 2
    if flags[code] & SUFFIX or (code == PLUS and flags[before] & DIGIT):
        return 2 if code == 0x2026 and before == code else 1
    first, digest = end - 1, BASIS
    while first > start and end - first <= MAX_UNIT_CHARS and not flags[codes[first - 1]] & DIGIT:
        first -= 1
    if first == start or not flags[codes[first - 1]] & DIGIT:
        return 0
    for k in range(first, end):
        digest = (digest ^ np.uint64(codes[k])) * PRIME
    return end - first if _find(special, digest) < 0 else 0


@inner
def _dots(codes: Codes, start: Int, end: Int, flags: Flags) -> Int:
    """How many full stops to cut off at the end."""
    first = end - 1
    while first > start and codes[first - 1] == DOT:
        first -= 1
    if end - first > 1 or first == start or flags[codes[first - 1]] & DOTTED:
        return end - first if first > start or end - first > 1 else 0
    return 1 if first - 2 >= start and flags[codes[first - 1]] & flags[codes[first - 2]] & UPPER else 0


@inner
def _middle(codes: Codes, start: Int, end: Int, tables: tuple[Flags, Special], starts: Codes, tokens: int) -> int:
    """What is left between prefixes and suffixes: a special word, an address, or pieces between infixes."""
    flags, special = tables
    lengths = _special(codes, start, end, special)
    if lengths:
        while lengths:
            starts[tokens] = start
            tokens += 1
            start += lengths & ((1 << LENGTH_BITS) - 1)
            lengths >>= LENGTH_BITS
        return tokens
    starts[tokens] = k = start
    if _is_address(codes, start, end, flags):
        return tokens + 1
    while k < end:
        kinds = flags[codes[k]]
        length = 0 if kinds & (LETTERS | DIGIT) and not kinds & INFIX else _infix(codes, start, k, end, flags)
        if length and k > start:
            tokens += k > starts[tokens]
            starts[tokens] = k
            tokens += 1
            starts[tokens] = k + length
        k += max(length, 1)
    return tokens + (starts[tokens] < end)


@inner
def _infix(codes: Codes, start: Int, k: Int, end: Int, flags: Flags) -> Int:
    """Characters of the infix at k, 0 for none."""
    code = codes[k]
    if flags[code] & INFIX:
        return 1
    if k + 1 >= end:
        return 0
    before, following = flags[codes[k - 1]] if k > start else np.uint16(0), flags[codes[k + 1]]
    if code == DOT:
        last = k + 1
        while last < end and codes[last] == DOT:
            last += 1
        is_inner = before & (LOWER | QUOTE) and following & (UPPER | QUOTE)
        return last - k if last - k > 1 else 1 if is_inner else 0
    if before & DIGIT and code in (PLUS, HYPHEN, 42, 94) and (following & DIGIT or codes[k + 1] == HYPHEN):
        return 1
    if code == 44:
        return 1 if before & LETTERS and following & LETTERS else 0
    if not before & (LETTERS | DIGIT):
        return 0
    if following & LETTERS:
        return 1 if code in (HYPHEN, *DASHES, 126, COLON, 60, 62, 61, SLASH) else 0
    return _long_hyphen(codes, k, end, flags)


@inner
def _long_hyphen(codes: Codes, k: Int, end: Int, flags: Flags) -> Int:
    """Characters of two or three hyphens, or two dashes, before a letter."""
    code, last = codes[k], k + 1
    while last < end and last - k < 3 and codes[last] == code:
        last += 1
    is_known = (code in (HYPHEN, DASHES[1]) and last - k == 2) or (code == HYPHEN and last - k == 3)
    return last - k if is_known and last < end and flags[codes[last]] & LETTERS else 0


@inner
def _is_address(codes: Codes, start: Int, end: Int, flags: Flags) -> bool:
    """Whether all of it is a web or mail address: its host may follow a scheme or an @."""
    k, is_scheme, found = start, True, _is_host(codes, start, end, flags)
    while k < end - 3 and not found:
        is_host_next = is_scheme and k - start >= 2 and codes[k] == COLON and codes[k + 1] == codes[k + 2] == SLASH
        following = k + 3 if is_host_next else k + 1
        found = (is_host_next or (codes[k] == AT and k > start)) and _is_host(codes, following, end, flags)
        is_scheme = is_scheme and (flags[codes[k]] & (WORD | DIGIT) != 0 or codes[k] in (PLUS, HYPHEN, DOT))
        k += 1
    return found


@inner
def _is_host(codes: Codes, start: Int, end: Int, flags: Flags) -> bool:
    """Whether a host stands at `start`, and behind it nothing, or a port, a path, a query or a fragment."""
    label, k, labels = start, start, 0
    while k < end and codes[k] not in (COLON, SLASH, 63, 35):
        code = codes[k]
        if code == DOT:
            if not 1 <= k - label <= MAX_LABEL or codes[label] in (HYPHEN, 95) or codes[k - 1] in (HYPHEN, 95):
                return False
            labels += 1
            label = k + 1
        elif not (flags[code] & DIGIT or 0xA1 <= code <= 0xFFFF or code in (HYPHEN, 95) or 65 <= code & 95 <= 90):
            return False
        k += 1
    for i in range(label, k):
        labels = labels if flags[codes[i]] & LOWER else 0
    if labels == 0 or not 2 <= k - label <= MAX_DOMAIN:
        return False
    if k == end or codes[k] != COLON:
        return True
    first = k + 1
    k = first
    while k < end and flags[codes[k]] & DIGIT:
        k += 1
    return bool(2 <= k - first <= MAX_PORT and (k == end or codes[k] in (SLASH, 63, 35)))


@inner
def _join(codes: Codes, used: int, starts: Codes, tokens: int, special: Special) -> int:
    """Put special words together that were cut, the longest from the left; returns the number of tokens left."""
    k = kept = 0
    while k < tokens:
        last = k + 1
        for following in range(k + 2, min(tokens, k + MAX_SPECIAL_CHARS) + 1):
            end = starts[following] if following < tokens else used
            if end - starts[k] > MAX_SPECIAL_CHARS:
                break
            lengths = _special(codes, starts[k], end, special)
            if 0 < lengths < 1 << LENGTH_BITS:
                last = following
        starts[kept] = starts[k]
        kept += 1
        k = last
    return kept
