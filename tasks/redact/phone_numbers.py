"""Telephone numbers: shapes that are one by themselves, and other grouped numbers beside words that say so.

By themselves: "+" and a country code, North American numbers in groups, an area code with its trunk 0 in brackets,
dotted French and bracketed Russian numbers. A bare run of digits is never one, whatever stands before it; nor is a
date, a decimal fraction or a table of numbers. Patterns are bounded and tried once per chain of groups: linear time.

    "call (202) 456-1111 ext. 5" -> (5, 26)
"""

import re
from collections.abc import Iterator

MAX_NAMED_BYTES = 30  # a grouped number longer than that is a table
CONTEXT_BYTES = 48  # how far before a number the words that name it are looked for
EXTENSION_BYTES = 18  # room for ", extension 123456"
MIN_DIGITS, MAX_DIGITS = 8, 15  # of an international number; E.164 allows 15

_EXTENSION = rb"(?:,?[ ]?(?:x|ext(?:n|ension)?\.?)[ ]?[0-9]{1,6})?"
_BEFORE = rb"(?<![\w.+/#$*-])(?<![0-9][,:])"
_AFTER = rb"(?![\w@]|[.,:/-]?[0-9])"
_JOIN = rb"(?:[ ./-]|\xc2\xa0|\xe2\x80[\x91\x93])"
_PLUS = rb"(?<!\))\+[1-9](?:(?:[ ./()-]|\xc2\xa0|\xe2\x80[\x91\x93]){0,3}[0-9]){7,14}"
SHAPES = re.compile(
    _BEFORE + rb"(?:" + _PLUS + rb"|001-[0-9]{3}-[0-9]{3}-[0-9]{4}"
    rb"|(?:1[ .-])?(?:\([2-9][0-9]{2}\)[ .-]?[0-9]{3}[ .-]|[2-9][0-9]{2}-[0-9]{3}-"  # North America
    rb"|[2-9][0-9]{2}[ ./-][2-9][0-9]{2}[.-])[0-9]{4}"
    rb"|0[1-9](?P<join>[.-])[0-9]{2}(?:(?P=join)[0-9]{2}){3}"  # France
    rb"|8[ -]?\([3489][0-9]{2}\)[ -]?[0-9]{3}-[0-9]{2}-[0-9]{2}"  # Russia
    rb"|\(0[1-9][0-9]{0,4}\)[ -]?[0-9]{3,4}[ -]?[0-9]{3,4}"  # an area code with its trunk 0 in brackets
    rb"|\(0[1-9][0-9]{2,4}\)[ -]?[0-9]{2}(?:[ -][0-9]{2}){2,3}"
    rb")" + _EXTENSION + _AFTER
)
# Any other grouped number is one only beside such words, or when it begins with an exit code and a country's
LOOSE = re.compile(
    _BEFORE + rb"\+?\(?[0-9]{1,8}(?:" + _JOIN + rb"?\(0\)" + _JOIN + rb"?|\)" + _JOIN + rb"?|" + _JOIN + rb"\(?)"
    rb"(?:[0-9]{1,8}" + _JOIN + rb"){0,5}[0-9]{2,8}" + _EXTENSION + _AFTER
)
EXIT_CODE = re.compile(rb"(?:00|011)[ -]?[2-9][0-9]{1,2}[ -](?:\(?[1-9][0-9]{0,4}\)?)(?:[ -][0-9]{2,8}){1,4}")
EXTENSION = re.compile(rb",?[ ]?[xe]")
PHONE_WORDS = (
    "phone|telephone|tel|mobile|cell|fax|hotline|whatsapp|telefon|telefono|teléfono|téléphone|telefone|celular|móvil|handy"
    "|Tel|тел|Тел|телефон|Телефон|电话|電話|手机|전화"
)
PHONE_BEFORE = re.compile(
    rb"(?i)(?:(?<![\w])(?:" + PHONE_WORDS.encode() + rb")s?(?:[ _]?(?:number|nr|no))?[^\w\n]{0,8}\n?"
    rb"|\b(?:call|reach|ring|dial|text|contact|answering)(?: \w{2,12}){0,2} (?:at|on) ?"
    rb"|\b(?:call|ring|dial|fax)(?: me| us)? )[(+]{0,2}\Z"
)
PHONE_AFTER = re.compile(rb"(?i)[ -]\(?(?:office|fax|mobile|cell|phone)\b(?! ?\w)")
DATE = re.compile(rb"[0-9]{4}([./-])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([./-])[0-9]{1,2}\2(?:19|20)[0-9]{2}")


def find_phones(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Bytes of each phone number in the chain of digit groups text[start:end]."""
    begin = start
    while begin > max(0, start - 2) and text[begin - 1] in b"+(":
        begin -= 1
    limit = min(len(text), end + EXTENSION_BYTES)
    shapes = [match for match in SHAPES.finditer(text, begin, limit) if _is_phone(_number(match))]
    if not shapes and end - start <= MAX_NAMED_BYTES and (match := LOOSE.match(text, begin, limit)):
        shapes = [match] if match.end() >= end and _is_named(text, match) else []
    yield from (match.span() for match in shapes)


def _number(match: re.Match[bytes]) -> bytes:
    return EXTENSION.split(match[0])[0]


def _is_phone(number: bytes) -> bool:
    """Whether the digits of a shape can be those of a number: "+3.14159265" and "+2023-01-15 10" are none."""
    groups = re.findall(rb"[0-9]+", number)
    digits = b"".join(groups)
    if len(groups) > 7 or max(map(len, groups)) == 1 or number.count(b"(") != number.count(b")"):
        return False
    if not number.startswith(b"+"):
        return True
    is_fraction = b"." in number and (len(groups) < 4 or re.search(rb"[ /-]", number) is not None)
    is_short = len(digits) < (10 if len(groups) == 1 else MIN_DIGITS) or len(digits) > MAX_DIGITS
    is_american = digits.startswith(b"1")  # +1 and ten digits, none of them a trunk 0 or 1
    if is_fraction or is_short or DATE.match(number, 1):
        return False
    return not is_american or (len(digits) == 11 and digits[1:2] >= b"2")


def _is_named(text: bytes, match: re.Match[bytes]) -> bool:
    """Whether a grouped number has an exit code, or words beside it say that it is a phone number."""
    number = _number(match)
    digits = len(re.findall(rb"[0-9]", number))
    if not 6 <= digits <= MAX_DIGITS or DATE.match(number):
        return False
    if EXIT_CODE.fullmatch(number) and digits >= 11 and not re.search(rb"[ -]00", number):
        return True
    before = text[max(0, match.start() - CONTEXT_BYTES) : match.start()]
    return bool(PHONE_BEFORE.search(before) or PHONE_AFTER.match(text, match.end()))
