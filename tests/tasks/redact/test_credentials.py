"""Keys: those with an issuer's mark are found, placeholders and words with hyphens are not."""

import base64
import re

import pytest

from tasks.redact.credentials import KEY_SCREEN, KEYS
from tasks.redact.personal_data import find_personal_data

BODY = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0U1v2W3x4"
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"


def part(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


TOKEN = ".".join([part('{"alg":"HS256","typ":"JWT"}'), part('{"sub":"1234567890","name":"Jo"}'), BODY[:43]])
FOUND = [
    f"AKIA{BODY[:16].upper()}", f"ASIA{BODY[:16].upper()}", f"ghp_{BODY[:36]}", f"gho_{BODY[:36]}",
    f"github_pat_{BODY[:22]}_{BODY}", f"glpat-{BODY[:20]}", f"xoxb-123456789012-1234567890123-{BODY[:24]}",
    f"AIza{BODY[:35]}", f"GOCSPX-{BODY[:28]}", f"ya29.{BODY}", f"sk_live_{BODY[:24]}", f"rk_live_{BODY[:24]}",
    f"sk-{BODY}", f"sk-proj-{BODY}_x-{BODY}", f"sk-ant-api03-{BODY}", f"hf_{BODY[:34]}", f"npm_{BODY[:36]}",
    f"pypi-AgEIcHlwaS5vcmc{BODY}", f"dckr_pat_{BODY[:27]}", f"dop_v1_{HEX}", f"dapi{HEX[:32]}", f"shpat_{HEX[:32]}",
    f"SG.{BODY[:22]}.{BODY[:43]}", f"hvs.{BODY}", TOKEN,
]  # fmt: skip


def found_in(text: str) -> list[tuple[str, str]]:
    data = text.encode()
    return [(m.kind, data[m.start : m.end].decode()) for m in find_personal_data(text)]


@pytest.mark.parametrize("key", FOUND, ids=lambda key: key[:8])
def test_keys_with_a_mark_are_found_whole(key: str) -> None:
    for text in (key, f'token = "{key}"', f"export KEY={key}\n", f"https://api/x?key={key}&y=1", f"é{key}。"):
        assert found_in(text) == [("api_key", key)]


@pytest.mark.parametrize(
    "text",
    [
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "sk-" + "1" * 40, "AKIA" + "0" * 16, "sk-your-key-goes-here",
        "task-management-of-a-very-long-name-without-digits-2024", "risk-free-and-very-long-words-with-hyphens-and-1",
        "sk-a-slug-of-many-words-that-goes-on-and-on-2024", "ghp_tooshort1", f"xAKIA{BODY[:16].upper()}", HEX, BODY,
        "eyJhbGciOiJIUzI1NiJ9", f"{TOKEN.rpartition('.')[0]}", "SG.Paris.Berlin", "hf_hub_download", "npm_config_cache",
        "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
        "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\n" + "MIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqh\n" * 9 + "-----END CERTIFICATE-----",
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_placeholders_words_and_public_keys_stay(text: str) -> None:
    assert found_in(text) == []


@pytest.mark.parametrize("name", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("newline", ["\n", "\\n", '\\n"\n    "', "\r\n"])
def test_a_private_key_is_found_whole_however_code_holds_it(name: str, newline: str) -> None:
    lines = [
        f"-----BEGIN {name}PRIVATE KEY-----",
        *["MIIEowIBAAKCAQEA+/1b2C3d4"] * 40,
        f"-----END {name}PRIVATE KEY-----",
    ]
    key = newline.join(lines)
    assert found_in(f'key = "{key}";') == [("private_key", key)]
    assert found_in(f'key = "{key}";'.replace(f"END {name}PRIVATE", "END PUBLIC")) == []


def test_a_pgp_block_is_found() -> None:
    key = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{BODY}\n=Ab3d\n-----END PGP PRIVATE KEY BLOCK-----"
    assert found_in(key) == [("private_key", key)]


def test_two_keys_are_two_and_the_text_between_stays() -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----"
    assert found_in(f"{key}\nAnd - in between - words.\n{key}") == [("private_key", key)] * 2


def test_the_screen_lets_every_key_through() -> None:
    """The screen sees whole columns first: a key that it misses would never be looked at."""
    screen = re.compile(KEY_SCREEN)
    assert all(screen.search(key) for key in FOUND)
    assert all(KEYS.search(key.encode()) for key in FOUND)
