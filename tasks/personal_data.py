"""Finds personal data in UTF-8 text: e-mail and public IP addresses, phone, account and card numbers, keys.

A kernel marks places (tasks/kernels/places.py); the patterns here look at each place once. All of them have bounded
repeats over disjoint character classes, so the time is linear whatever the text is ("a.a.a." and "123-45-123-45-" take
other tools' patterns to the square of the length). What is not personal data: private, reserved and documentation
addresses (RFC 5737, 3849, 2606), fictional phone numbers (555-01XX), versions, dates, ISBNs, ids; a bare run of digits
is never a phone number, whatever stands before it.

Measured on presidio-research (518 spans): precision 1.00, recall 0.99; what is missed are bare runs and a 10.x address.

    "mail jo@acme.org or call 202-456-1111, not v1.2.3.4"  ->  email 5..16, phone 25..37
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.kernels.buffers import text_buffers
from tasks.kernels.places import ACCOUNT, AT, COLONS, NUMBER, find_places

Kind = Literal["email", "ipv4", "ipv6", "phone", "iban", "card", "api_key", "private_key"]

KEY = -1  # a place like the kernel's: somewhere in this text stands the mark of a key
MAX_LOCAL_BYTES = 64  # RFC 5321 4.5.3.1.1
MAX_NAMED_BYTES = 30  # a grouped number longer than that is a table
CONTEXT_BYTES = 48  # how far before a number the words that name it are looked for

LOCAL = re.compile(rb"(?:[\w.%+'-]|[\xc3-\xc9][\x80-\xbf])+\Z")  # the second class: accented Latin letters
DOMAIN = re.compile(rb"(?:[\w-]{1,63}+\.){1,8}(?P<top>[A-Za-z]{2,18}|xn--[\w-]{2,20})(?![\w@(-]|\.[A-Za-z])")
RESERVED_DOMAIN = re.compile(
    rb"(?:^|\.)(?:example\.(?:com|net|org|edu)|[\w-]+\.(?:example|test|invalid|localhost|local))$", re.I
)
# Names of the longer top-level domains in wide use; two letters count as a country
TOP_LEVEL = frozenset(
    b"""
    academy aero agency app art asia audio band bank beer best bike biz blog blue business cafe camp care casa cat
    center church city click cloud club codes coffee com community company consulting coop cool design dev digital
    direct education edu email energy engineering events expert family farm fashion finance fit foundation fun fund
    fyi gallery games global gmbh gov group guide guru health help homes host hotel house inc info ink int
    international jobs kim land law legal life limited link live llc love ltd market marketing media men mil mobi
    money moscow museum name net network news ninja one online org page paris partners parts photo photography
    photos pics pink place plus post press pro productions properties pub realty red rentals report rocks run sale
    school science services shop show site social software solutions space store studio style support systems tax
    team tech technology tel tips tokyo top tours toys trade training travel tube university uno vip vision wang
    watch website wiki win work works world xyz zone
    """.split()
)
NO_COUNTRY = frozenset(b"js ts hs kt vb ui db dt fn id_ fp px os it_ rb cu hh".split())  # file suffixes and attributes

IPV4 = re.compile(rb"(?<![\w.+-])(?<![<>=!~]=)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w]|[.-]\w|/[0-9])")
VERSION_BEFORE = re.compile(
    rb"(?i)\b(?:v|v8|ver|versions?|releases?|released|build|section|chapter|oid|firmware|driver|upgrad\w+|updat\w+|bump\w*)"
    rb"\b[^\n;/]{0,24}\Z|\xc2\xa7\s*\Z"
)
ADDRESS_BEFORE = re.compile(
    rb"(?i)\b(?:ips?|ipv4|addr|address|host|server|from|client|remote|ping|dns|gateway)\b\W*\w*\W*\Z"
)
SMALL_OCTET = 20  # four numbers below it are a version or section number unless words say it is an address
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
DOCUMENTATION_V6 = ipaddress.IPv6Network("3fff::/20")  # RFC 9637, newer than some Pythons

_EXTENSION = rb"(?:[ ]?(?:x|ext\.?)[ ]?[0-9]{1,6})?"
_BEFORE = rb"(?<![\w.+/#$=*-])(?<![0-9][,:])"
_AFTER = rb"(?![\w@]|[.,:/-]?[0-9])"
_JOIN = rb"(?:[ ./-]|\xc2\xa0|\xe2\x80[\x91\x93])"
# Shapes that are phone numbers without any word that says so
PHONE = re.compile(
    _BEFORE + rb"(?:"
    rb"(?<!\))\+[1-9](?:(?:[ ./()-]|\xc2\xa0|\xe2\x80[\x91\x93]){0,3}[0-9]){7,14}|"  # international
    rb"001-[0-9]{3}-[0-9]{3}-[0-9]{4}|"
    rb"(?:1[ .-])?(?:\([2-9][0-9]{2}\)[ .-]?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[.-][0-9]{4}|"  # North America
    rb"0[1-9](?P<join>[.-])[0-9]{2}(?:(?P=join)[0-9]{2}){3}|"  # France
    rb"\(0[0-9]{1,4}\)[ -]?[0-9]{3,4}[ -]?[0-9]{3,4}"  # an area code with its trunk 0 in brackets
    rb")" + _EXTENSION + _AFTER
)
# Any other grouped number is one only beside such words
LOOSE = re.compile(
    _BEFORE + rb"\+?\(?[0-9]{1,8}(?:" + _JOIN + rb"?\(0\)" + _JOIN + rb"?|\)" + _JOIN + rb"?|" + _JOIN + rb"\(?)"
    rb"(?:[0-9]{1,8}" + _JOIN + rb"){0,5}[0-9]{2,8}" + _EXTENSION + _AFTER
)
EXTENSION = re.compile(rb"[ ]?[xe]")
PHONE_WORDS = (
    "phone|telephone|tel|mobile|cell|fax|hotline|whatsapp|telefon|telefono|teléfono|téléphone|telefone|celular|móvil|handy"
    "|Tel|тел|Тел|телефон|Телефон|电话|電話|手机|전화"
)
PHONE_BEFORE = re.compile(
    rb"(?i)(?:(?<![\w])(?:" + PHONE_WORDS.encode() + rb")s?(?:[ ]?(?:number|nr|no))?[^\w\n]{0,8}\n?"
    rb"|\b(?:call|reach|ring|dial|text|contact|answering)(?: \w{2,12}){0,2} (?:at|on) ?)[(+]{0,2}\Z"
)
PHONE_AFTER = re.compile(rb"(?i)[ -]\(?(?:office|fax|mobile|cell|phone)\b(?! ?\w)")
DATE = re.compile(rb"[0-9]{4}([./-])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([./-])[0-9]{1,2}\2(?:19|20)[0-9]{2}")
FICTIONAL = re.compile(rb"555[ .-]?01[0-9]{2}\Z|1[ -]?2[ -]?3[ -]?4[ -]?5[ -]?6[ -]?7|2345678")

CARD = re.compile(
    _BEFORE + rb"(?:[0-9]{12,19}|[0-9]{4}(?P<cut>[ -])[0-9]{4}(?P=cut)[0-9]{4}(?P=cut)[0-9]{4})(?!\w|[.,-]?[0-9])"
)
CARD_RANGE = re.compile(rb"4|5[0-8]|2[2-7]|3[04-9]|6|1800|2131")  # Visa, Mastercard, Maestro, Amex, Diners, JCB
CARD_WORDS = re.compile(rb"(?i)\b(?:cards?|visa|mastercard|amex|maestro|credit|debit|cc)\b")
IBAN = re.compile(rb"[A-Za-z]{2}[0-9]{2}(?:[A-Za-z0-9]{11,30}|(?: [A-Za-z0-9]{4}){2,7}(?: [A-Za-z0-9]{1,3})?)(?!\w)")
# Length of the account numbers of each country (SWIFT IBAN registry)
_IBAN_COUNTRIES = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18
    FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20
    LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24
    SI19 SK24 SM27 TN24 TR26 UA29 VA22 VG24 XK20
"""
IBAN_CHARS = {entry[:2]: int(entry[2:]) for entry in _IBAN_COUNTRIES.split()}
# Keys by the marks that their issuers put on them
_PRIVATE_KEY = (
    rb"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s:,.]|-(?!-)){40,8000}+"
    rb"-----END (?:[A-Z]{2,9} ){0,2}PRIVATE KEY-----"
)
_API_KEY = (
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}|gh[opsur]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}|glpat-[\w-]{20,64}"
    rb"|xox[abprs]-[0-9A-Za-z-]{20,255}|[rs]k_live_[A-Za-z0-9]{20,255}|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,200}"
    rb"|AIza[\w-]{35}|npm_[A-Za-z0-9]{36}|hf_[A-Za-z]{34}|pypi-AgE[\w-]{50,200}"
)
KEYS = re.compile(rb"(?P<private>" + _PRIVATE_KEY + rb")|(?<![\w-])(?:" + _API_KEY + rb")(?![\w-])")
# Screens whole columns with RE2, which is linear; an upper bound of a repeat would only make its automaton large
KEY_SCREEN = r"PRIVATE KEY-----|\b(?:" + re.sub(r"\{(\d+),\d+\}", r"{\1}", _API_KEY.decode()) + ")"


class Match(NamedTuple):
    """Personal data of one kind in bytes start..end of a text."""

    kind: Kind
    start: int
    end: int


def find_in_column(texts: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, bytes, list[Match]]]:
    """(row, its UTF-8 bytes, matches in order, none overlapping) for each row of a string column that has any."""
    data, bounds = text_buffers(texts)
    places = find_places(data, bounds)
    keyed = np.flatnonzero(pc.match_substring_regex(texts, KEY_SCREEN).to_numpy(zero_copy_only=False))
    rows: dict[int, list[tuple[int, int, int]]] = {int(row): [(KEY, 0, 0)] for row in keyed}
    for row, group in groupby(places.tolist(), key=itemgetter(0)):
        rows.setdefault(row, []).extend((kind, start, end) for _, kind, start, end in group)
    for row in sorted(rows):
        text = data[bounds[row] : bounds[row + 1]].tobytes()
        if matches := find_at(text, rows[row]):
            yield row, text, matches


def find_personal_data(text: str) -> list[Match]:
    """Matches in one text, in order, none overlapping; positions count UTF-8 bytes."""
    for _, _, matches in find_in_column(pa.array([text], pa.large_string())):
        return matches
    return []


def find_at(text: bytes, places: list[tuple[int, int, int]]) -> list[Match]:
    """Matches at the places (kind, start, end) of a text; of two that overlap the one that begins first stays."""
    found = [match for kind, start, end in places for match in FINDERS[kind](text, start, end)]
    kept: list[Match] = []
    for match in sorted(found, key=lambda match: (match.start, -match.end)):
        if not kept or match.start >= kept[-1].end:
            kept.append(match)
    return kept


def _email(text: bytes, at: int, _: int) -> Iterator[Match]:
    domain = DOMAIN.match(text, at + 1)
    window = text[max(0, at - MAX_LOCAL_BYTES - 2) : at]
    local = LOCAL.search(window)
    if domain is None or local is None or len(local[0]) > MAX_LOCAL_BYTES:
        return
    name = local[0].lstrip(b".%+'-")
    is_remote = name in (b"git", b"hg") and text[domain.end() : domain.end() + 1] in (b":", b"/")  # git@host.org:path
    is_handle = text[at - len(name) - 1 : at - len(name)] == b"@"  # @name@server: a public name
    if not name or name.endswith(b".") or b".." in name or is_remote or is_handle:
        return
    top = domain["top"].lower()
    is_country = len(top) == 2 and top not in NO_COUNTRY
    if (is_country or top in TOP_LEVEL or top.startswith(b"xn--")) and not RESERVED_DOMAIN.search(domain[0]):
        yield Match("email", at - len(name), domain.end())


def _ipv4(shape: bytes, before: bytes) -> ipaddress.IPv4Address | None:
    """The address that four numbers are; None for a version or what is no address."""
    if VERSION_BEFORE.search(before):
        return None
    try:
        address = ipaddress.IPv4Address(shape.decode())  # refuses numbers above 255 and leading zeros
    except ValueError:
        return None
    return address if max(address.packed) >= SMALL_OCTET or ADDRESS_BEFORE.search(before) else None


def _ipv6(text: bytes, start: int, end: int) -> Iterator[Match]:
    run = text[start:end].rstrip(b":")  # "2001:bc8::" names a network
    groups = run.split(b":")
    if len(run) > 39 or all(len(group) == 2 for group in groups) or not re.search(rb"[0-9]", run):
        return
    try:
        address = ipaddress.IPv6Address(run.decode())
    except ValueError:
        return
    if not address.is_global or address in DOCUMENTATION_V6:
        return
    if b"::" not in run or (address in GLOBAL_UNICAST and len(groups[0]) >= 3):
        yield Match("ipv6", start, start + len(run))


def _numbers(text: bytes, start: int, end: int) -> Iterator[Match]:
    """IPv4 addresses, else cards, else phone numbers in a chain of digit groups."""
    run = text[start:end]
    if DATE.fullmatch(run):
        return
    if run.count(b".") >= 3:
        addresses = list(_ipv4_addresses(text, start, end + 3))
        yield from (match for match, is_public in addresses if is_public)
        if addresses:
            return
    cards = list(_cards(text, start, end)) if end - start >= 12 else []
    yield from cards or _phones(text, start, end)


def _ipv4_addresses(text: bytes, start: int, end: int) -> Iterator[tuple[Match, bool]]:
    """Addresses, and whether each is of a machine on the internet (x.y.z.0 is a network)."""
    for match in IPV4.finditer(text, start, end):
        if address := _ipv4(match[0], text[max(0, match.start() - CONTEXT_BYTES) : match.start()]):
            is_public = address.is_global and not address.is_multicast and address.packed[3] != 0
            yield Match("ipv4", match.start(), match.end()), is_public


def _phones(text: bytes, start: int, end: int) -> Iterator[Match]:
    begin = start
    while begin > max(0, start - 2) and text[begin - 1] in b"+(":
        begin -= 1
    limit = min(len(text), end + 12)  # room for an extension
    shapes = [match for match in PHONE.finditer(text, begin, limit) if _is_phone(match[0])]
    if not shapes and end - start <= MAX_NAMED_BYTES and (match := LOOSE.match(text, begin, limit)):
        shapes = [match] if match.end() >= end and _is_named(text, match) else []
    yield from (Match("phone", match.start(), match.end()) for match in shapes)


def _is_phone(shape: bytes) -> bool:
    number = EXTENSION.split(shape)[0]
    groups = re.findall(rb"[0-9]+", number)
    digits = sum(map(len, groups))
    if (len(groups) == 1 and digits < 10) or len(groups) > 7 or max(map(len, groups)) == 1:
        return False
    return digits <= 15 and number.count(b"(") == number.count(b")") and not FICTIONAL.search(number)


def _is_named(text: bytes, match: re.Match[bytes]) -> bool:
    """Whether words beside a grouped number say that it is a phone number."""
    number = EXTENSION.split(match[0])[0]
    if not 6 <= len(re.findall(rb"[0-9]", number)) <= 15 or DATE.match(number) or FICTIONAL.search(number):
        return False
    before = text[max(0, match.start() - CONTEXT_BYTES) : match.start()]
    return bool(PHONE_BEFORE.search(before) or PHONE_AFTER.match(text, match.end()))


def _cards(text: bytes, start: int, end: int) -> Iterator[Match]:
    """Numbers of a known range with the right check digit: in groups of four, or near a word that says card."""
    for match in CARD.finditer(text, start, min(len(text), end + 2)):
        digits = re.sub(rb"[ -]", b"", match[0])
        near = text[max(0, match.start() - 2 * CONTEXT_BYTES) : match.end() + 2 * CONTEXT_BYTES]
        if CARD_RANGE.match(digits) and _luhn(digits) and (match["cut"] or CARD_WORDS.search(near)):
            yield Match("card", match.start(), match.end())


def _luhn(digits: bytes) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = (digit - 48) << (place & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0 and digits.strip(b"0") != b""


def _iban(text: bytes, start: int, _: int) -> Iterator[Match]:
    country = text[start : start + 2].decode().upper()
    wanted = IBAN_CHARS.get(country)
    match = IBAN.match(text, start)
    if wanted is None or match is None:
        return
    end, chars = start, 0
    while end < match.end() and chars < wanted:
        chars += text[end] != 32
        end += 1
    account = text[start:end].replace(b" ", b"").decode().upper()
    follows = text[end : end + 1]
    if chars < wanted or (follows.isalnum() and b" " not in text[start:end]):
        return
    if int("".join(str(int(char, 36)) for char in account[4:] + account[:4])) % 97 == 1:
        yield Match("iban", start, end)


def _keys(text: bytes, _: int, __: int) -> Iterator[Match]:
    for match in KEYS.finditer(text):
        if match["private"]:
            yield Match("private_key", match.start(), match.end())
        elif b"EXAMPLE" not in match[0] and b"xxxx" not in match[0].lower() and re.search(rb"[0-9]", match[0]):
            yield Match("api_key", match.start(), match.end())


FINDERS: dict[int, Callable[[bytes, int, int], Iterator[Match]]] = {
    AT: _email, COLONS: _ipv6, ACCOUNT: _iban, NUMBER: _numbers, KEY: _keys,
}  # fmt: skip
