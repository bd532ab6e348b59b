"""Charsets: mark, label, meta, detection, replacement, in this order; nothing ever fails."""

import pytest

from tasks.ingest.charset import Decoded, decode_bytes, known_charset, wide_charset

JAPANESE = "日本語の文章です。これは文字コードを調べるための十分に長い文章で、漢字とかなが混ざっています。" * 3
RUSSIAN = "Это довольно длинный русский текст, по которому можно узнать кодировку страницы без подсказки. " * 3


@pytest.mark.parametrize(
    ("data", "label", "charset", "text"),
    [
        ("añ".encode(), None, "utf-8", "añ"),
        ("añ".encode("utf-8-sig"), "latin-1", "utf-8", "añ"),
        ("añ".encode("utf-16"), None, "utf-16-le", "añ"),
        ("añ".encode("utf-32"), None, "utf-32-le", "añ"),
        ("añ“".encode("cp1252"), "iso-8859-1", "cp1252", "añ“"),
        ("añ“".encode(), "iso-8859-1", "utf-8", "añ“"),  # a label that any bytes satisfy says nothing
        ("añ“".encode(), "iso-8859-1-foo", "utf-8", "añ“"),
        (JAPANESE.encode("shift_jis"), "utf-8", None, JAPANESE),
        (JAPANESE.encode("euc_jp"), None, "euc_jp", JAPANESE),
        (JAPANESE.encode("iso2022_jp"), None, None, JAPANESE),
        (RUSSIAN.encode("cp1251"), None, "cp1251", RUSSIAN),
        (RUSSIAN.encode("koi8-r"), "koi8-r", "koi8-r", RUSSIAN),
        (b"<meta charset=windows-1251>" + "да".encode("cp1251"), None, "cp1251", "<meta charset=windows-1251>да"),
        ("très court".encode("cp1252"), None, "cp1252", "très court"),  # too short to detect
        (b"", None, "utf-8", ""),
    ],
)
def test_charsets(data: bytes, label: str | None, charset: str | None, text: str) -> None:
    decoded = decode_bytes(data, label, is_html=True)
    assert (decoded.text, decoded.replaced) == (text, 0)
    assert charset is None or decoded.charset.replace("-", "_") == charset.replace("-", "_")


def test_damaged_utf8_stays_utf8_and_says_so() -> None:
    assert decode_bytes("żółć ".encode() + b"\xff" + " ąę".encode(), "utf-8") == Decoded("żółć \ufffd ąę", "utf-8", 1)


@pytest.mark.parametrize(
    ("data", "text", "charset", "replaced"),
    [
        (b"half \xed\xa0\x80 a pair", "half \ufffd a pair", "cesu-8", 1),
        (b"\xed\xb0\x80\xed\xa0\x80 \xef\xbf\xbd", "\ufffd\ufffd \ufffd", "cesu-8", 2),  # one was there before
        ("é ".encode() + b"\xed\xa0\xbd\xed\xb8\x80!", "é 😀!", "cesu-8", 0),  # a pair is a character
        ("ㄱ 힣 \ud7ff".encode(), "ㄱ 힣 \ud7ff", "utf-8", 0),  # the neighbours of surrogates are sound
    ],
)
def test_surrogates_in_utf8_are_joined_or_counted(data: bytes, text: str, charset: str, replaced: int) -> None:
    """Java and Oracle write such UTF-8 (CESU-8); a browser's guess would be windows-1252."""
    assert decode_bytes(data) == Decoded(text, charset, replaced)


@pytest.mark.parametrize(
    "label", ["base64", "rot13", "hex", "iso-8859-1-foo", "big5_solaris", "", "\x00", "undefined", "idna"]
)
def test_a_label_that_names_no_charset_is_none(label: str) -> None:
    assert known_charset(label) is None


def test_any_bytes_can_be_decoded() -> None:
    for first in range(256):
        data = bytes([first, 0x80, 0x41, 0xFF, 0x1B, first ^ 0x55]) * 3
        for label in (None, "utf-8", "shift_jis", "gb2312", "utf-16", "utf-7", "idna", "nonsense"):
            decode_bytes(data, label).text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("data", "charset"),
    [
        ('{"a": 1}'.encode("utf-16"), "utf-16-le"),
        (b"\xfe\xff" + "text".encode("utf-16-be"), "utf-16-be"),
        ('{"a": 1}'.encode("utf-16-be"), "utf-16-be"),
        ('{"a": 1}'.encode("utf-32"), "utf-32-le"),
        ('{"a": 1}'.encode("utf-8-sig"), None),
        (b"{\0\0\0", None),  # damaged
        (b"", None),
    ],
)
def test_texts_of_wide_characters_are_told_by_their_first_bytes(data: bytes, charset: str | None) -> None:
    assert wide_charset(data) == charset
