"""Card and bank account numbers: what has the shape, the issuer and the check digits of one.

Cards: issuer ranges with their lengths (ISO/IEC 7812) and Luhn's check digit; a number in the groups printed on cards
counts by itself, an undivided run of digits only near a word that says card: one in ten of all ids passes Luhn's test.
Accounts: IBANs (ISO 13616) of the length of their country whose remainder modulo 97 is 1, undivided or in fours.

    "GB82 WEST 1234 5698 7654 32" -> (0, 27)
"""

import re
from collections.abc import Iterator

NEAR_BYTES = 96  # how far from an undivided number the word may stand

CARD = re.compile(
    rb"(?<![\w.+/#$=*-])(?<![0-9][,:])(?:[0-9]{12,19}|[0-9]{4}(?P<cut>[ -])"
    rb"(?:[0-9]{4}(?P=cut)[0-9]{4}(?P=cut)[0-9]{4}(?:(?P=cut)[0-9]{1,3})?|[0-9]{6}(?P=cut)[0-9]{4,5}))"
    rb"(?!\w|[.,-]?[0-9])"
)
ISSUER = re.compile(
    rb"""4 (?: \d{12} | \d{15} | \d{18} )                                                    # Visa
    | (?: 5[1-5]\d\d | 222[1-9] | 22[3-9]\d | 2[3-6]\d\d | 27[01]\d | 2720 ) \d{12}          # Mastercard
    | 3[47] \d{13}                                                                           # American Express
    | 3 (?: 0[0-59] | [689]\d ) \d{11,16}                                                    # Diners Club
    | 35 (?: 2[89] | [3-8]\d ) \d{12,15} | (?: 1800 | 2131 ) \d{11}                          # JCB
    | (?: 5[06-8] | 6\d ) \d{10,17}                                      # Maestro, Discover, UnionPay""",
    re.VERBOSE,
)
CARD_WORDS = re.compile(
    rb"(?i)\b(?:cards?|cardnumber|visa|mastercard|amex|maestro|credit|debit|cc|cvv|cvc)\b|card_?num"
)
IBAN = re.compile(rb"[A-Za-z]{2}[0-9]{2}(?:[A-Za-z0-9]{11,30}|(?: [A-Za-z0-9]{4}){2,7}(?: [A-Za-z0-9]{1,3})?)(?!\w)")
# Length of the account numbers of each country (SWIFT IBAN registry)
_COUNTRIES = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 ES24
    FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32
    LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24
    RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30
"""
IBAN_CHARS = {entry[:2]: int(entry[2:]) for entry in _COUNTRIES.split()}


def find_cards(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Bytes of each card number in a chain of digit groups."""
    for match in CARD.finditer(text, start, min(len(text), end + 2)):
        digits = re.sub(rb"[ -]", b"", match[0])
        near = text[max(0, match.start() - NEAR_BYTES) : match.end() + NEAR_BYTES]
        if ISSUER.fullmatch(digits) and has_check_digit(digits) and (match["cut"] or CARD_WORDS.search(near)):
            yield match.span()


def has_check_digit(digits: bytes) -> bool:
    """Luhn's test (ISO/IEC 7812-1, annex B): every second digit from the right doubled, the sum divisible by ten."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = (digit - 48) << (place & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def find_ibans(text: bytes, start: int, _: int) -> Iterator[tuple[int, int]]:
    """Bytes of the IBAN that begins at `start`, if one does."""
    wanted = IBAN_CHARS.get(text[start : start + 2].decode().upper())
    match = IBAN.match(text, start)
    if wanted is None or match is None:
        return
    end, chars = start, 0
    while end < match.end() and chars < wanted:
        chars += text[end] != 32
        end += 1
    account = text[start:end].replace(b" ", b"").decode().upper()
    runs_on = text[end : end + 1].isalnum() and b" " not in text[start:end]
    if chars == wanted and not runs_on and int("".join(str(int(c, 36)) for c in account[4:] + account[:4])) % 97 == 1:
        yield start, end
