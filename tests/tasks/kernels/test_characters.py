"""The character table agrees with Python's str methods and with the scripts that rules know."""

import sys
import unicodedata

import numpy as np
import pytest

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


def test_agrees_with_python_for_every_assigned_character() -> None:
    table = character_table()
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    for flag, claim in ((SPACE, str.isspace), (ALPHABETIC, str.isalpha)):
        assert np.array_equal((table[codes] & flag) != 0, [claim(chr(code)) for code in codes])
    is_word = [unicodedata.category(chr(code))[0] in "LMN" for code in codes]
    assert np.array_equal((table[codes] & WORD) != 0, is_word)


@pytest.mark.parametrize(
    ("chars", "flag"),
    [
        (".?!。！？।။؟", TERMINAL),
        ("ไทยລາວខ្មែរမြန်မာ日本ひらカタ。", UNSPACED),
        ("ไทยລາວ", UNENDED),
        ("\0\u200b\ufeff\u00ad", INVISIBLE),
        (")]”’»\"'」", CLOSING),
    ],
)
def test_flags(chars: str, flag: int) -> None:
    assert all(character_table()[ord(char)] & flag for char in chars)
    assert not any(character_table()[ord(char)] & flag for char in "a1é Жक한-#")


def test_table_is_made_once_and_cannot_be_changed() -> None:
    assert character_table() is character_table()
    assert not character_table().flags.writeable
