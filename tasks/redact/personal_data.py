"""Finds personal data in UTF-8 text: e-mail and public IP addresses, phone, account and card numbers, keys.

A kernel marks places (tasks/kernels/places.py); the patterns here and in phone_numbers.py, account_numbers.py and
credentials.py look at each place once. All of them have bounded repeats over disjoint character classes, so the time is
linear whatever the text is ("a.a.a." and "123-45-123-45-" take other tools' patterns to the square of the length).
What has the form counts, whoever it belongs to: an address at example.com too. What does not: addresses that are not
public (private, loopback, documentation: RFC 1918, 5737, 3849), networks, versions, dates, ISBNs, ids, hashes.

    "mail jo@acme.org or call 202-456-1111, not v1.2.3.4"  ->  email 5..16, phone 25..37
"""

import ipaddress
import re
from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.redact.account_numbers import find_cards, find_ibans
from tasks.redact.credentials import KEY_SCREEN, find_keys
from tasks.redact.phone_numbers import DATE, find_phones

Kind = Literal["email", "ipv4", "ipv6", "phone", "iban", "card", "api_key", "private_key"]

# Kinds of places, as tasks/kernels/places.py numbers them; KEY: somewhere in this text stands the mark of a key
KEY, NUMBER, AT, COLONS, ACCOUNT = -1, 0, 1, 2, 3
MAX_LOCAL_BYTES = 64  # RFC 5321 4.5.3.1.1
CONTEXT_BYTES = 48  # how far before an address the words that name it are looked for
MIN_CARD_BYTES = 12

_LETTER = rb"[\xc3-\xc9][\x80-\xbf]"  # accented Latin letters
LOCAL = re.compile(rb"(?:[\w.%+'-]|" + _LETTER + rb")+\Z")
DOMAIN = re.compile(
    rb"(?:(?:[\w-]|" + _LETTER + rb"){1,63}+\.){1,8}(?P<top>[A-Za-z]{2,18}|xn--[\w-]{2,20})(?![\w@(-]|\.[A-Za-z])"
)
USER_OF_URL = re.compile(rb"://[^\s/@?#]*\Z")  # http://user:password@host
MAX_URL_USER_BYTES = 2 * MAX_LOCAL_BYTES
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

IPV4 = re.compile(
    rb"(?<![\w.+-])(?<![<>=!~]=)(?P<host>(?:[0-9]{1,3}\.){3}[0-9]{1,3})(?P<prefix>/[0-9]{1,2})?+(?![\w/]|[.-]\w)"
)
VERSION_BEFORE = re.compile(
    rb"(?i)\b(?:v|v8|ver|versions?|releases?|released|build|section|chapter|oid|firmware|driver|upgrad\w+|updat\w+|bump\w*)"
    rb"\b[^\n;/]{0,24}\Z|\xc2\xa7\s*\Z"
)
ADDRESS_BEFORE = re.compile(
    rb"(?i)\b(?:ips?|ipv4|addr|address|host|server|from|client|remote|ping|dns|gateway)\b(?:[^\w\n]*\w*)[^\w\n]*\Z"
)
SMALL_OCTET = 32  # four numbers below it, and any x.0.0.y, are a version or section number unless words say otherwise
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 behind NAT64, RFC 6052
MAX_IPV6_BYTES, MIN_FULL_BYTES = 45, 24
DOTTED_TAIL = re.compile(rb"(?:\.[0-9]{1,3}){3}(?![\w.])")  # of ::ffff:86.231.85.193
DOCUMENTATION_V6 = ipaddress.IPv6Network("3fff::/20")  # RFC 9637, newer than some Pythons


class Match(NamedTuple):
    """Personal data of one kind in bytes start..end of a text."""

    kind: Kind
    start: int
    end: int


def find_in_column(texts: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, bytes, list[Match]]]:
    """(row, its UTF-8 bytes, matches in order, none overlapping) for each row of a string column that has any."""
    from tasks.kernels.buffers import text_buffers  # late: numba, which a plan does not need
    from tasks.kernels.places import find_places

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
    is_user = USER_OF_URL.search(text, max(0, at - MAX_URL_USER_BYTES), at) is not None
    if not name or name.endswith(b".") or b".." in name or is_remote or is_handle or is_user:
        return
    top = domain["top"].lower()
    is_country = len(top) == 2 and top not in NO_COUNTRY
    if is_country or top in TOP_LEVEL or top.startswith(b"xn--"):
        yield Match("email", at - len(name), domain.end())


def _ipv4(shape: bytes, before: bytes) -> ipaddress.IPv4Address | None:
    """The address that four numbers are; None for a version or what is no address."""
    if VERSION_BEFORE.search(before):
        return None
    try:
        address = ipaddress.IPv4Address(shape.decode())  # refuses numbers above 255 and leading zeros
    except ValueError:
        return None
    is_plain = max(address.packed) >= SMALL_OCTET and address.packed[1:3] != b"\0\0"
    return address if is_plain or ADDRESS_BEFORE.search(before) else None


def _ipv6(text: bytes, start: int, end: int) -> Iterator[Match]:
    tail = DOTTED_TAIL.match(text, end)
    run = text[start : tail.end()] if tail else text[start:end].rstrip(b":")  # "2001:bc8::" names a network
    groups = run.split(b":")
    if len(run) > MAX_IPV6_BYTES or all(len(group) == 2 for group in groups) or not re.search(rb"[0-9]", run):
        return
    try:
        address = ipaddress.IPv6Address(run.decode())
    except ValueError:
        return
    is_public = (address.ipv4_mapped or address).is_global and address not in DOCUMENTATION_V6
    is_unicast = address in GLOBAL_UNICAST and len(groups[0]) >= 3
    is_full = tail is None and b"::" not in run and len(run) >= MIN_FULL_BYTES  # "1:2:3:4:5:6:7:8" is a list
    if is_public and (is_unicast or is_full or address.ipv4_mapped or address in TRANSLATED):
        yield Match("ipv6", start, start + len(run))


def _numbers(text: bytes, start: int, end: int) -> Iterator[Match]:
    """IPv4 addresses and cards in a chain of digit groups, and phone numbers in what is left of it."""
    run = text[start:end]
    if DATE.fullmatch(run):
        return
    addresses = list(_ipv4_addresses(text, start, end + 3)) if run.count(b".") >= 3 else []
    cards = [Match("card", *span) for span in find_cards(text, start, end)] if len(run) >= MIN_CARD_BYTES else []
    yield from cards
    yield from (match for match, is_public in addresses if is_public)
    taken = sorted((match.start, match.end) for match in cards + [match for match, _ in addresses])
    for first, last in find_phones(text, start, end):
        place = bisect(taken, (first, last))
        if (place == 0 or taken[place - 1][1] <= first) and (place == len(taken) or last <= taken[place][0]):
            yield Match("phone", first, last)


def _ipv4_addresses(text: bytes, start: int, end: int) -> Iterator[tuple[Match, bool]]:
    """Addresses, and whether each is of a machine on the internet: x.y.z.0, x.y.z.255, x.y.z.32/27 are of networks."""
    for match in IPV4.finditer(text, start, end):
        before = text[max(0, match.start() - CONTEXT_BYTES) : match.start()]
        if address := _ipv4(match["host"], before):
            mask = (1 << max(0, 32 - int(match["prefix"][1:] if match["prefix"] else 24))) - 1
            is_host = mask <= 1 or int(address) & mask not in (0, mask)
            yield Match("ipv4", *match.span("host")), address.is_global and not address.is_multicast and is_host


def _accounts(text: bytes, start: int, end: int) -> Iterator[Match]:
    return (Match("iban", *span) for span in find_ibans(text, start, end))


def _keys(text: bytes, _: int, __: int) -> Iterator[Match]:
    for start, end, is_private in find_keys(text):
        yield Match("private_key" if is_private else "api_key", start, end)


FINDERS: dict[int, Callable[[bytes, int, int], Iterator[Match]]] = {
    AT: _email, COLONS: _ipv6, ACCOUNT: _accounts, NUMBER: _numbers, KEY: _keys,
}  # fmt: skip
