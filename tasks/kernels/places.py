"""Where personal data could be: one pass over an Arrow text buffer, byte by byte (300-1,000 MB/s on one core).

It marks places only; tasks/redact/personal_data.py decides. Every byte is visited a bounded number of times, whatever
the text is, because a run that has been read is never read again and looks to the left are bounded.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

NUMBER, AT, COLONS, ACCOUNT = 0, 1, 2, 3  # kinds of places

DIGIT, GAP, AT_SIGN, COLON = 1, 2, 3, 4
MAX_GAP_BYTES = 4  # between two groups of one number: ") ", " - ", a no-break space or hyphen
MIN_DIGITS = 6  # the shortest phone number that is looked at ("61 51 81" after "call me on")
IPV4_GROUPS = 4
MAX_DOMAIN_BYTES = 254  # RFC 1035
MIN_ACCOUNT_CHARS = 15  # the shortest IBAN

_CLASSES = np.zeros(256, np.uint8)
_CLASSES[list(b"0123456789")] = DIGIT
_CLASSES[list(b" .-/()")] = GAP
_CLASSES[[0xC2, 0xA0, 0xE2, 0x80, 0x91, 0x93]] = GAP  # the bytes of U+00A0, U+2011, U+2013
_CLASSES[ord("@")] = AT_SIGN
_CLASSES[ord(":")] = COLON
_STARTS = (_CLASSES != 0) & (_CLASSES != GAP)  # what a place can begin with
_WORD = np.zeros(256, np.bool_)
_WORD[list(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] = True
_HEX = np.zeros(256, np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True


@njit(cache=True, nogil=True)
def _number_end(data: NDArray[np.uint8], start: int, end: int) -> tuple[int, int, int]:
    """End of the chain of digit groups that begins at `start`; its digits; its groups."""
    last, digits, groups, position = start, 1, 1, start + 1
    while position < end:
        if _CLASSES[data[position]] == DIGIT:
            groups += position - last > 1
            digits += 1
            last = position
        elif _CLASSES[data[position]] != GAP or position - last > MAX_GAP_BYTES:
            break
        position += 1
    return last + 1, digits, groups


@njit(cache=True, nogil=True)
def _follows_country(data: NDArray[np.uint8], at: int, begin: int) -> bool:
    """Whether exactly two letters stand before `at`."""
    if at - begin < 2 or not _WORD[data[at - 1]] or not _WORD[data[at - 2]] or min(data[at - 1], data[at - 2]) < 65:
        return False
    return at - begin == 2 or not _WORD[data[at - 3]]


@njit(cache=True, nogil=True)
def _account_end(data: NDArray[np.uint8], start: int, end: int) -> int:
    """End of the run of word characters, or of groups of four of them, that begins at `start`."""
    position, since_gap = start, 0
    while position < end and position - start < 48:
        if _WORD[data[position]]:
            since_gap += 1
        elif data[position] == 32 and since_gap == 4:
            since_gap = 0
        else:
            break
        position += 1
    return position


@njit(cache=True, nogil=True)
def _colons(data: NDArray[np.uint8], at: int, begin: int, end: int) -> tuple[int, int, int, int]:
    """The run of hexadecimal digits and colons around a first colon: start, end, number of colons (two in a row: 8),
    and where to go on: what follows its last colon may be the beginning of another number ("tel:202-456-1111")."""
    start = at
    while start > begin and at - start < 5 and _HEX[data[start - 1]]:
        start -= 1
    is_label = start > begin and _WORD[data[start - 1]]  # "addr:2a00:..."
    colons, position, last = 0, at, at
    while position < end and (_HEX[data[position]] or data[position] == 58):
        if data[position] == 58:
            colons += 8 if position + 1 < end and data[position + 1] == 58 else 1
            last = position
        position += 1
    if is_label:
        start, colons = at + 1, colons - 1
    bounded = position == end or not _WORD[data[position]]
    return start, position, colons if bounded else 0, last + 1


@njit(cache=True, nogil=True)
def _has_domain(data: NDArray[np.uint8], at: int, end: int) -> bool:
    """Whether a name with a dot inside follows, up to something that is no second @."""
    start, dots = at, 0
    while at < end and at - start < MAX_DOMAIN_BYTES and (_WORD[data[at]] or data[at] in (45, 46) or data[at] > 127):
        dots += data[at] == 46 and at + 1 < end and _WORD[data[at + 1]]
        at += 1
    return dots > 0 and data[start] != 46 and not (at < end and data[at] == 64)


@njit(cache=True, nogil=True)
def _place(data: NDArray[np.uint8], at: int, begin: int, end: int) -> tuple[int, int, int, int]:
    """What lies at `at`: kind or -1, start, end, and where to go on reading."""
    byte = _CLASSES[data[at]]
    if byte == AT_SIGN:
        is_address = begin < at and data[at - 1] > 32 and _has_domain(data, at + 1, end)
        return AT if is_address else -1, at, at + 1, at + 1
    if byte == COLON:
        start, stop, colons, after = _colons(data, at, begin, end)
        return COLONS if colons >= 7 and stop - start > 3 else -1, start, stop, after
    stop, digits, groups = _number_end(data, at, end)
    if digits >= 2 and _follows_country(data, at, begin):
        account = _account_end(data, at - 2, end)
        if account - at + 2 >= MIN_ACCOUNT_CHARS:
            return ACCOUNT, at - 2, account, stop
    if digits < MIN_DIGITS and groups < IPV4_GROUPS:
        return -1, at, stop, stop
    has_plus = at > begin and data[at - 1] == 43
    return NUMBER if groups > 1 or has_plus or 12 <= digits <= 19 else -1, at, stop, stop


@njit(cache=True, nogil=True)
def _skip(data: NDArray[np.uint8], at: int, end: int) -> int:
    """The next digit, @ or colon; a loop of its own because it is nearly all of the time."""
    while at < end and not _STARTS[data[at]]:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _grown(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows with room for as many again; a slice would be checked for its shape, which takes seconds to compile."""
    grown = np.empty((2 * len(found), 4), np.int64)
    for row in range(len(found)):
        for column in range(4):
            grown[row, column] = found[row, column]
    return grown


@njit(cache=True, nogil=True)
def find_places(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows (row, kind, start, end) of places worth a closer look; start and end count bytes from the row's first."""
    found = np.empty((64, 4), np.int64)
    count = 0
    for row in range(len(bounds) - 1):
        begin, end = bounds[row], bounds[row + 1]
        at = _skip(data, begin, end)
        while at < end:
            kind, start, stop, at = _place(data, at, begin, end)
            if kind >= 0:
                if count == len(found):
                    found = _grown(found)
                found[count, 0], found[count, 1] = row, kind
                found[count, 2], found[count, 3] = start - begin, stop - begin
                count += 1
            at = _skip(data, at, end)
    return found[:count].copy()
