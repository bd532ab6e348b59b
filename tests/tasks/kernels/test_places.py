"""The marked places against a slow definition of what must be looked at, and their bounded work."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_buffers
from tasks.kernels.places import ACCOUNT, AT, COLONS, IPV4_GROUPS, MIN_DIGITS, NUMBER, find_places

CHAIN = re.compile(rb"[0-9](?:[ ./()\xc2\xa0\xe2\x80\x91\x93-]{0,4}[0-9])*")


def places_of(*texts: str) -> list[tuple[int, int, str]]:
    """(row, kind, the marked text)."""
    places = find_places(*text_buffers(pa.array(texts, pa.large_string())))
    return [(row, kind, texts[row].encode()[start:end].decode()) for row, kind, start, end in places.tolist()]


@pytest.mark.parametrize(
    ("text", "kind", "marked"),
    [
        ("write to a@b.de now", AT, "@"),
        ("call (202) 456-1111.", NUMBER, "202) 456-1111"),
        ("+447700677662", NUMBER, "447700677662"),
        ("card 4111111111111111", NUMBER, "4111111111111111"),
        ("at 2001:db8::1 or", COLONS, "2001:db8::1"),
        ("fe80::1", COLONS, "fe80::1"),
        ("IBAN GB56HXDO88167774656119!", ACCOUNT, "GB56HXDO88167774656119"),
        ("gb56 hxdo 8816 7774 6561 19", ACCOUNT, "gb56 hxdo 8816 7774 6561 19"),
        ("no\u00a0break 12\u00a034\u00a056", NUMBER, "12\u00a034\u00a056"),
    ],
)
def test_a_place_is_marked(text: str, kind: int, marked: str) -> None:
    assert places_of("clean", text, "")[0] == (1, kind, marked)


@pytest.mark.parametrize(
    "text",
    [
        "", " @ ", "@name", "a@b", "a@.com", "a@b@c", "std::vector<int>", "12:34:56", "1234567890", "12 34", "::",
        "10:20", "utf16 is used", "x" * 100, "0123456789" * 10, "AB1C", "日本語：二",
    ],
)  # fmt: skip
def test_what_cannot_be_personal_data_is_not_marked(text: str) -> None:
    assert places_of(text) == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(alphabet="0123456789 .-/()x+a\u00a0\u2011\u4e2d", max_size=60), max_size=6))
def test_number_chains_are_maximal_and_belong_to_one_text(texts: list[str]) -> None:
    wanted = []
    for row, text in enumerate(texts):
        for match in CHAIN.finditer(text.encode()):
            digits = len(re.findall(rb"[0-9]", match[0]))
            is_long = digits >= MIN_DIGITS or len(re.findall(rb"[0-9]+", match[0])) >= IPV4_GROUPS
            has_plus = text.encode()[: match.start()].endswith(b"+")
            is_grouped = digits < len(match[0])
            if is_long and (is_grouped or has_plus or 12 <= digits <= 19):
                wanted.append((row, match.start(), match.end()))
    found = find_places(*text_buffers(pa.array(texts, pa.large_string())))
    assert [(row, start, end) for row, kind, start, end in found.tolist() if kind == NUMBER] == wanted


@pytest.mark.parametrize(
    "piece", ["1.1.1.", "123-45-", "a.", "a@a.", "a@", "@", "::", "a:", "ab12", "GB12 ABCD ", "+1", "1 "]
)
def test_places_do_not_overlap_so_their_number_and_bytes_are_bounded(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    places = find_places(*text_buffers(pa.array([text], pa.large_string())))
    places = places[places[:, 1] != ACCOUNT]  # reaches back over two letters, forward at most 48 bytes
    assert (np.diff(places[:, 2]) > 0).all()
    assert (places[1:, 2] >= places[:-1, 3]).all()


def test_a_slice_of_a_column_is_read_as_such() -> None:
    column = pa.array(["a@b.de", "clean", "tel 12-34-56", None], pa.large_string())
    places = find_places(*text_buffers(column.slice(1)))
    assert places[:, 0].tolist() == [1]
