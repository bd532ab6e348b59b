"""Card and account numbers: issuer, length and check digits decide."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.redact.account_numbers import IBAN_CHARS, has_check_digit
from tasks.redact.personal_data import find_personal_data


def found_in(text: str) -> list[tuple[str, str]]:
    data = text.encode()
    return [(m.kind, data[m.start : m.end].decode()) for m in find_personal_data(text)]


def with_check_digit(digits: str) -> str:
    """The digits and the one that makes them pass, by trying all ten."""
    return next(digits + last for last in "0123456789" if has_check_digit((digits + last).encode()))


@pytest.mark.parametrize(
    ("begin", "length"),
    [("4", 16), ("4", 13), ("51", 16), ("2221", 16), ("2720", 16), ("34", 15), ("37", 15), ("300", 14), ("36", 14),
     ("3528", 16), ("1800", 15), ("6011", 16), ("65", 16), ("62", 16), ("5018", 12)],
)  # fmt: skip
def test_cards_of_every_issuer_are_found_near_a_word(begin: str, length: int) -> None:
    digits = with_check_digit((begin + "38201947561029")[: length - 1].ljust(length - 1, "7"))
    assert found_in(f"pay by card: {digits}.") == [("card", digits)]
    assert found_in(f"order {digits}.") == []  # one id in ten has a check digit by chance
    wrong = digits[:-1] + str((int(digits[-1]) + 1) % 10)
    assert found_in(f"pay by card: {wrong}.") == []


@pytest.mark.parametrize(
    "text",
    ["4539 7990 3179 6088", "5555-5555-5555-4444", "3782 822463 10005", "3056 930902 5904", "6011 1111 1111 1117"],
)
def test_cards_in_printed_groups_are_found_alone(text: str) -> None:
    assert found_in(f"It is {text}!") == [("card", text)]
    assert found_in(f"It is {text[:-1]}{(int(text[-1]) + 5) % 10}!") == []


@pytest.mark.parametrize(
    "text",
    [
        "card 9999 9999 9999 9995", "card 1234567890123452", "the IMEI of the card reader 490154203237518",
        "credit 0000000000000000", "card 4539-7990 3179-6088", "card 4539799031796088123456", "card 0.4539799031796088",
        "visa 45397990317960881",
    ],
)  # fmt: skip
def test_other_numbers_are_no_cards(text: str) -> None:
    assert found_in(text) == []


@given(st.text(alphabet="0123456789", min_size=1, max_size=18), st.integers(0, 17), st.integers(1, 9))
def test_a_wrong_digit_never_passes(digits: str, place: int, by: int) -> None:
    number = with_check_digit(digits)
    place %= len(number)
    changed = number[:place] + str((int(number[place]) + by) % 10) + number[place + 1 :]
    assert not has_check_digit(changed.encode())


def account_of(country: str, rng: random.Random) -> str:
    """An account number of a country with check digits by the rule of ISO 13616: 98 minus the remainder."""
    body = "".join(rng.choice("0123456789ABCDEFGHJK") for _ in range(IBAN_CHARS[country] - 4))
    check = 98 - int("".join(str(int(c, 36)) for c in f"{body}{country}00")) % 97
    return f"{country}{check:02}{body}"


def test_accounts_of_every_country_are_found_undivided_and_in_fours() -> None:
    rng = random.Random(1)
    for country in IBAN_CHARS:
        account = account_of(country, rng)
        fours = " ".join(account[at : at + 4] for at in range(0, len(account), 4))
        for text in (account, account.lower(), fours):
            assert found_in(f"IBAN:{text}, thanks") == [("iban", text)]
        assert found_in(f"IBAN {account}7") == []


@pytest.mark.parametrize(
    "text",
    ["GB82 WEST 1234 5698 7654 33", "XX82WEST12345698765432", "GB82WEST1234569876543", "DE12 3456",
     "AB12 CD34 EF56 7890 1234", "GB82-WEST12345698765432"],
)  # fmt: skip
def test_what_only_looks_like_an_account_stays(text: str) -> None:
    assert found_in(f"IBAN {text} and more") == []


def test_words_after_an_account_stay() -> None:
    assert found_in("GB82 WEST 1234 5698 7654 32 paid") == [("iban", "GB82 WEST 1234 5698 7654 32")]
