"""What the kernels know of a character: one byte of flags per code point, from the Unicode database of this Python.

table[ord("a")] == WORD | ALPHABETIC        table[0x3002] == TERMINAL | UNSPACED    ("。")
"""

import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

SPACE = 1  # str.isspace: separates words
ALPHABETIC = 2  # str.isalpha: Unicode category L
WORD = 4  # letters, marks and numbers: what a word begins and ends with
TERMINAL = 8  # ends a sentence (Unicode property Sentence_Terminal)
UNSPACED = 16  # of a script that writes no space between words, or a mark that ends a sentence there
UNENDED = 32  # of a script that writes no mark at the end of a sentence
INVISIBLE = 64  # controls and format characters: NUL, zero-width space, byte order mark
CLOSING = 128  # quotes and brackets that may stand between a sentence's end mark and the space after it

# Sentence_Terminal of Unicode 16 (PropList.txt); Python's unicodedata does not have the property
TERMINALS = """
21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D5 1803 1809
1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2024 203C-203D 2047-2049 2CF9-2CFB 2E2E
2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE12 FE15-FE16
FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6
111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E
11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16D6E-16D6F
16E98 1BC9F 1DA88"""
# Thai, Lao, Burmese (and extensions), Khmer, kana, Han (and extensions)
UNSPACED_SCRIPTS = """
E00-E7F E80-EFF 1000-109F A9E0-A9FF AA60-AA7F 1780-17FF 3005-3007 3041-30FF 31F0-31FF 3400-4DBF 4E00-9FFF F900-FAFF
FF66-FF9F 20000-323AF"""
UNENDED_SCRIPTS = "E00-E7F E80-EFF"  # Thai and Lao
WIDE_TERMINALS = "3002 FE12 FE15-FE16 FE52 FE56-FE57 FF01 FF0E FF1F FF61 104A-104B 17D4-17D5"
TABLE_CODES = 0x110000
CHECKED = (range(0x32400), range(0xE0000, 0xE0200))  # where Unicode has assigned characters; private use has no flags


def codes_of(ranges: str) -> Iterator[range]:
    """The code points of ranges in hexadecimal, as Unicode's files write them: "3002 FE15-FE16"."""
    for item in ranges.split():
        first, _, last = item.partition("-")
        yield range(int(first, 16), int(last or first, 16) + 1)


def _flags_of(char: str) -> int:
    category = unicodedata.category(char)
    flags = (SPACE if char.isspace() else 0) | (ALPHABETIC if char.isalpha() else 0)
    flags |= WORD if category[0] in "LMN" else 0
    flags |= INVISIBLE if category in ("Cc", "Cf") and not char.isspace() else 0
    return flags | (CLOSING if category in ("Pe", "Pf", "Pi") or char in "\"'" else 0)


@cache
def character_table() -> NDArray[np.uint8]:
    """Flags per code point, 1.1 MB; made once, in about 0.1 s."""
    table = np.zeros(TABLE_CODES, np.uint8)
    for codes in CHECKED:
        table[codes.start : codes.stop] = np.fromiter((_flags_of(chr(code)) for code in codes), np.uint8, len(codes))
    for ranges, flag in (
        (TERMINALS, TERMINAL),
        (UNSPACED_SCRIPTS, UNSPACED),
        (WIDE_TERMINALS, UNSPACED),
        (UNENDED_SCRIPTS, UNENDED),
    ):
        for codes in codes_of(ranges):
            table[codes.start : codes.stop] |= flag
    table.setflags(write=False)
    return table
