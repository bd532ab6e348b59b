"""Phone numbers: every usual way to write one is found, and other grouped numbers are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.redact.personal_data import find_personal_data


def phones_in(text: str) -> list[str]:
    data = text.encode()
    return [data[m.start : m.end].decode() for m in find_personal_data(text) if m.kind == "phone"]


NORTH_AMERICA = [
    "202-456-1111", "(202) 456-1111", "(202)456-1111", "(202) 456 1111", "202.456.1111", "202/456-1111",
    "1-202-456-1111", "1 (202) 456-1111", "+1 (202) 456-1111", "+1-202-456-1111", "+1.202.456.1111", "+12024561111",
    "+1 202 456 1111", "001-518-640-0854", "202-456-1111 x123", "202-456-1111, ext. 12", "(555) 123-4567",
    "+1 202\u2011456\u20111111", "+1\u00a0202\u00a0456\u00a01111",
]  # fmt: skip
INTERNATIONAL = [
    "+44 20 7946 1234", "+44 (0)20 7946 1234", "+44-20-7946-1234", "0044 20 7946 1234", "011 44 20 7946 1234",
    "+49 30 901820", "+49 (0) 30 / 901820", "+33 1 84 17 61 18", "+33(0)1 84 17 61 18", "01.84.17.61.18",
    "+86 138 1234 9876", "+91-9876543210", "+55 (11) 91234-5678", "+7 (495) 123-45-67", "8 (495) 123-45-67",
    "+81-3-1234-5678", "+61 412 345 678", "+447700677662", "(08) 8747 6301", "(0431) 35 06 90", "+46 (0)8 928 571 38",
]  # fmt: skip


@pytest.mark.parametrize("number", NORTH_AMERICA + INTERNATIONAL)
@pytest.mark.parametrize("text", ["{}", "Reach us: {}.", "<td>{}</td>", "a, {}; b", '"phone":"{}"', "電話 {}。"])
def test_numbers_are_found_whole_by_their_form(number: str, text: str) -> None:
    assert phones_in(text.format(number)) == [number]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Telefon: 0431 35 06 90", "0431 35 06 90"),
        ("电话：138 1234 9876", "138 1234 9876"),
        ("please call me at 358 0594.", "358 0594"),
        ("call 202 456 1111", "202 456 1111"),
        ("phone_number = 020 7946 1234", "020 7946 1234"),
        ("0910-5877671-Office\\,", "0910-5877671"),
        ("the fax 30-90 18 20", "30-90 18 20"),
    ],
)
def test_other_numbers_are_found_beside_words(text: str, wanted: str) -> None:
    assert phones_in(text) == [wanted]
    assert phones_in(f"It is {wanted} or so") == []


@pytest.mark.parametrize(
    "text",
    [
        "phone 2158055921", "tel:2024561111", "LinkedAccountId: 215805592", "1,234 567-8901",  # bare runs, thousands
        "300(4.99-3.69)+300(5.50-3.86)", "30 09 02 01 07 02", "1914-1918", "1 2 3 4 5 6 7 8 9",
        "+1.5e10", "+3.14159265", "+10.50 20.75 30.25", "x = y +12345678", "+0.12345678",  # arithmetic
        "UTC+0200", "2023-01-15T10:22:33+02:00", "+2023-01-15 10:22:33", "+15.01.2023 10", "-1234567,12 +1234567,12",
        "0000 0001 0002 0003", "0020 0021 0022 0023", "0012 3456 7890", "(01) 09501101530003 (17) 140704",
        "over 1 200 000 mobile subscribers", "ISBN 978-0-521-86842-6", "ISSN 2049-3630", "078-05-1120",
        "4539 7990 3179 6089", "id 123e4567-e89b-12d3-a456-426614174000", "10.1145/3292500.3330701", "+1 234 567",
        "123-456-7890-123", "pp. 202-456", "RFC 2606, 5737, 3849", "lat 52.520008, 13.404954", "+1 000 000 0000",
    ],
)  # fmt: skip
def test_other_numbers_stay(text: str) -> None:
    assert phones_in(text) == []
    assert phones_in(f"Some words, {text} and more.") == []


@given(st.from_regex(r"[2-9][0-9]{2}", fullmatch=True), st.from_regex(r"[2-9][0-9]{2}", fullmatch=True),
       st.from_regex(r"[0-9]{4}", fullmatch=True), st.sampled_from(NORTH_AMERICA[:14]))  # fmt: skip
def test_every_number_of_a_form_is_found(area: str, exchange: str, line: str, form: str) -> None:
    number = form.replace("202", area, 1).replace("456", exchange).replace("1111", line)
    assert phones_in(f"at {number}, home") == [number]


def test_two_numbers_in_a_row_are_two() -> None:
    assert phones_in("+1 202-456-1111 or 202-456-2222, 202-456-3333") == [
        "+1 202-456-1111",
        "202-456-2222",
        "202-456-3333",
    ]
