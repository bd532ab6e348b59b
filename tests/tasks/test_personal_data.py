"""Personal data is found where people label it, and nowhere else; in linear time; at valid UTF-8 boundaries."""

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.personal_data import Kind, Match, find_in_column, find_personal_data

GOLD = Path(__file__).parents[3] / "shared/data/gold/pii_presidio.parquet"
GOLD_KINDS = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "IP_ADDRESS": "ip",
}
KEY = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9"


def found_in(text: str) -> list[tuple[Kind, str]]:
    return [(m.kind, text.encode()[m.start : m.end].decode()) for m in find_personal_data(text)]


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("Mail <jo.doe+x@mail.acme-corp.org>.", "email", "jo.doe+x@mail.acme-corp.org"),
        ("jürgen@müller.de schreibt an jürgen@firma.de", "email", "jürgen@firma.de"),
        ("邮箱：foo@bar.com。", "email", "foo@bar.com"),
        ("'jo@acme.io', she wrote", "email", "jo@acme.io"),
        ("mailto:jo@acme.co.uk?subject=x", "email", "jo@acme.co.uk"),
        ("from 86.231.85.193 port 22", "ipv4", "86.231.85.193"),
        ("http://86.231.85.193:8080/x", "ipv4", "86.231.85.193"),
        ("the server 8.8.4.4 answers", "ipv4", "8.8.4.4"),
        ("It was 93.184.216.34.", "ipv4", "93.184.216.34"),
        ("[2a04:4e42:e00::347] and", "ipv6", "2a04:4e42:e00::347"),
        ("4f8a:c99e:dc86:faf9:5988:5f63:375e:8a2a", "ipv6", "4f8a:c99e:dc86:faf9:5988:5f63:375e:8a2a"),
        ("call (202) 456-1111 today", "phone", "(202) 456-1111"),
        ("202-456-1111 x123", "phone", "202-456-1111 x123"),
        ("1-209-255-1000", "phone", "1-209-255-1000"),
        ("202.456.1111.", "phone", "202.456.1111"),
        ("+46 (0)8 928 571 38 fax", "phone", "+46 (0)8 928 571 38"),
        ("+447700677662 mobile", "phone", "+447700677662"),
        ("001-518-640-0854", "phone", "001-518-640-0854"),
        ("Tél. 01.84.17.61.18", "phone", "01.84.17.61.18"),
        ("(08) 8747 6301", "phone", "(08) 8747 6301"),
        ("Telefon: 0431 35 06 90", "phone", "0431 35 06 90"),
        ("电话：138 1234 9876", "phone", "138 1234 9876"),
        ("please call me at 358 0594.", "phone", "358 0594"),
        ("0910-5877671-Office\\,", "phone", "0910-5877671"),
        ("my credit card 4539799031796088", "card", "4539799031796088"),
        ("4539 7990 3179 6088", "card", "4539 7990 3179 6088"),
        ("IBAN gb50mvfc38361978683032", "iban", "gb50mvfc38361978683032"),
        ("GB56 HXDO 8816 7774 6561 19 please", "iban", "GB56 HXDO 8816 7774 6561 19"),
        (f"token = 'ghp_{KEY[:36]}'", "api_key", f"ghp_{KEY[:36]}"),
        ("key AKIAIOSFODNN7EXAMPLF;", "api_key", "AKIAIOSFODNN7EXAMPLF"),
        (f"sk-proj-{KEY}", "api_key", f"sk-proj-{KEY}"),
    ],
)
def test_personal_data_is_found(text: str, kind: Kind, wanted: str) -> None:
    assert (kind, wanted) in found_in(text)
    assert all(found[0] in (kind, "email") for found in found_in(text))


@pytest.mark.parametrize(
    "text",
    [
        # versions, sections, object identifiers
        "release 1.2.3.4", "v4.5.103.30", "upgrade V8 to 4.6.85.28", "foo==81.2.3.4", "pkg-81.22.33.44.tar.gz",
        "§ 81.2.3.4", "1.3.6.1.4.1.311", "in 2.4.1.0 we", "81.2.3.4-beta",
        # addresses that are nobody's: private, loopback, link-local, documentation, multicast, networks
        "10.218.6.131", "192.168.0.1", "127.0.0.1", "169.254.1.1", "192.0.2.17", "224.0.0.251", "81.2.3.0",
        "81.2.3.0/24", "fe80::1", "::1", "2001:db8::17", "2001:0bc8:31a0::/48", "fd00:1::5", "00:11:22:33:44:55",
        "00:11:22:33:44:55:66:77", "12:34:56:78", "std::add::be", "300.1.1.1", "081.2.3.4",
        # numbers
        "LinkedAccountId: 215805592", "phone 2158055921", "1234567890123", "2023-03-15 10:22:33", "15.03.2023 10-22",
        "ISBN 978-0-521-86842-6", "0-306-40615-2", "1,234 567-8901", "300(4.99-3.69)+300(5.50-3.86)",
        "30 09 02 01 07 02", "1914-1918", "0000 0001 0002 0003", "+1.5e10", "UTC+0200", "202-555-0117", "+44 1234567",
        "1 2 3 4 5 6 7 8 9",
        "4539799031796088", "4539 7990 3179 6089", "over 1 200 000 mobile subscribers", "AB12 CD34 EF56 7890 1234",
        # what only looks like an e-mail address
        "@property", "git@github.com:org/repo.git", "icon@2x.png", "a@b", "x@self.weight", "q@k.transpose(1)",
        "me@example.com", "you@mail.example.org", "root@localhost", "x@y.invalid", "a..b@acme.org", "user@host.local",
        "pkg@1.2.3", "@a@b.social",
        # keys of documentation
        "AKIAIOSFODNN7EXAMPLE", "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "task-management-of-a-very-long-name-without-digits",
        "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
    ],
)  # fmt: skip
def test_what_is_nobodys_stays(text: str) -> None:
    assert found_in(text) == []
    assert found_in(f"Some words, {text} and more.") == []


def test_a_private_key_is_found_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n" + "MIIEowIBAAKCAQEA\n" * 30
    text = f"before\n{key}-----END RSA PRIVATE KEY-----\nafter"
    assert found_in(text) == [("private_key", f"{key}-----END RSA PRIVATE KEY-----")]
    assert found_in(text.replace("END RSA PRIVATE", "END PUBLIC")) == []


def test_matches_are_in_order_and_do_not_overlap() -> None:
    text = "jo@acme.org, 202-456-1111; 86.231.85.193 and +31 546 577 994 (jo@acme.org)"
    assert [kind for kind, _ in found_in(text)] == ["email", "phone", "ipv4", "phone", "email"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_positions_are_utf8_boundaries_in_any_text(before: str, after: str) -> None:
    before, after = (text.encode("utf-8", "replace").decode() for text in (before, after))
    text = f"{before} jo@acme.org {after}\u3000+31 546 577 994\u3000{before}"
    data = text.encode()
    matches = find_personal_data(text)
    assert ("email", "jo@acme.org") in [(m.kind, data[m.start : m.end].decode()) for m in matches]
    for match in matches:
        data[: match.start].decode()
        data[match.end :].decode()
    assert all(a.end <= b.start for a, b in pairwise(matches))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="a1.@-:+ ()\u00e9中", max_size=40), min_size=1, max_size=8))
def test_a_text_is_judged_by_itself(texts: list[str]) -> None:
    """What stands before or after a text in the same buffer does not count."""
    column: dict[int, list[Match]] = {row: [] for row in range(len(texts))}
    column |= {row: matches for row, _, matches in find_in_column(pa.array(texts, pa.large_string()))}
    assert list(column.values()) == [find_personal_data(text) for text in texts]


HOSTILE = [
    "1.1.1.", "123-45-", "a.", "a@a.", "a@", "::", "a:b:", "1 ", "01-", "+1", "(0)12", "GB12 ABCD ", "1.2.3.4 ", "(1)",
    "-----BEGIN PRIVATE KEY-----aaaa", "ghp_", "github_pat_", "sk-", "phone 12-34-56-78 ", "4111 1111 1111 1111 ",
    "a@" + "a." * 40,
]  # fmt: skip


def seconds_for(text: str) -> float:
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        find_personal_data(text)
        best = min(best, time.process_time() - start)
    return best


def test_time_grows_with_the_text_not_with_its_square() -> None:
    """All hostile texts together, of one size and of four times that size: a square would take 16 times as long."""
    small, large = (sum(seconds_for(p * (size // len(p))) for p in HOSTILE) for size in (1 << 14, 1 << 16))
    assert large / small < 8


def test_megabytes_without_personal_data_pass() -> None:
    blob = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODkr" * 12_000
    assert find_personal_data(blob) == []
    assert find_personal_data("a@" + "a." * 500_000 + "!") == []
    assert find_personal_data(" " * 2_000_000 + "jo@acme.org")[0].start == 2_000_000


def gold_quality(kinds: tuple[str, ...]) -> tuple[float, float]:
    """(precision, recall) on presidio-research over spans of these kinds; a span counts when it is equal."""
    rows = pq.read_table(GOLD, columns=["text", "spans"]).to_pylist()
    found, wanted = (Counter[tuple[int, str, str]]() for _ in range(2))
    for row, text, matches in find_in_column(pa.array([row["text"] for row in rows], pa.large_string())):
        names = ("ip" if match.kind.startswith("ip") else match.kind for match in matches)
        values = (text[match.start : match.end].decode() for match in matches)
        found.update((row, name, value) for name, value in zip(names, values, strict=True) if name in kinds)
    for number, row in enumerate(rows):
        spans = ((GOLD_KINDS.get(span["entity_type"]), span["entity_value"]) for span in row["spans"])
        wanted.update((number, kind, value) for kind, value in spans if kind in kinds)
    true = (found & wanted).total()
    return true / found.total(), true / wanted.total()


@pytest.mark.skipif(not GOLD.exists(), reason="the gold data is not here")
@pytest.mark.parametrize("kinds", [("email", "phone", "ip"), tuple(GOLD_KINDS.values())])
def test_precision_and_recall_on_presidio_research(kinds: tuple[str, ...]) -> None:
    precision, recall = gold_quality(kinds)
    assert precision >= 0.99
    assert recall >= 0.97
