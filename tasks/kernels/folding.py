"""The normalisation of text for near-duplicate search, character by character, as tables for compiled loops.

A text becomes words joined by one space. Each character counts by itself:

1. It is lower-cased, then decomposed (NFD); nonspacing and enclosing marks and format characters (categories Mn, Me,
   Cf: accents, soft hyphens, joiners, byte order marks) vanish.
2. Decimal digits (Nd) become "0"; a run of digits is one "0", also across a "." or "," that stands between a digit and
   an ASCII digit, so that 1,234.56 and 7 are the same number "0".
3. Letters, other numbers and spacing marks (L, Nl, No, Mc) stay. Everything else ends a word: whitespace, punctuation,
   symbols, controls.
4. Scripts written without spaces (Han, kana, Thai, Lao, Burmese, Khmer) have no words to see: each of their characters
   is a word.

"Café №1: 3.5 µm!" -> "cafe 0 0 µm". The tables follow the interpreter's Unicode version (UNICODE_VERSION).
"""

import unicodedata
from functools import lru_cache

import numpy as np

UNICODE_VERSION = unicodedata.unidata_version
TABLE_SIZE = 0x34000  # above are no letters: E0000-E0FFF (tags, variation selectors) vanish, the rest separates
SEPARATOR, VANISHES, DIGIT = 0, 1, 2  # entries below FIRST_PIECE; others are offset << 5 | length << 1 | stands alone
FIRST_PIECE = 32
KEPT = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "No", "Mc"])
DROPPED = frozenset(["Mn", "Me", "Cf"])
UNSPACED = (  # half-open ranges of code points
    (0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x2E80, 0x2FE0), (0x3005, 0x3008), (0x3021, 0x302A),
    (0x3031, 0x3036), (0x3038, 0x3130), (0x31A0, 0x31C0), (0x31F0, 0x3200), (0x3400, 0x4DC0), (0x4E00, 0xA000),
    (0xF900, 0xFB00), (0xFF66, 0xFF9E), (0x1AFF0, 0x1B170), (0x20000, TABLE_SIZE),
)  # fmt: skip


@lru_cache(maxsize=1)
def fold_tables() -> tuple[np.ndarray, np.ndarray]:
    """(entry per code point, uint32 [TABLE_SIZE]; bytes of the pieces, uint8)."""
    entries = np.zeros(TABLE_SIZE, np.uint32)
    pieces = bytearray(b" ")  # offset 0 is not used: an entry with offset 0 would be taken for a class
    for code in range(TABLE_SIZE):
        kind = unicodedata.category(chr(code))
        if kind == "Nd":
            entries[code] = DIGIT
        elif kind in DROPPED:
            entries[code] = VANISHES
        elif kind in KEPT:
            piece = _piece(chr(code))
            entries[code] = len(pieces) << 5 | len(piece) << 1 if piece else VANISHES
            pieces += piece
    for start, end in UNSPACED:
        entries[start:end] |= entries[start:end] >= FIRST_PIECE
    return entries, np.frombuffer(bytes(pieces) + bytes(4), np.uint8)  # copied four at a time


def _piece(character: str) -> bytes:
    if ord(character) < 0xAC00 and not unicodedata.decomposition(character) and character.lower() == character:
        return character.encode()  # quick for ideographs; syllables from AC00 on decompose by formula
    parts = unicodedata.normalize("NFD", character.lower())
    return "".join(part for part in parts if unicodedata.category(part) not in DROPPED).encode()
