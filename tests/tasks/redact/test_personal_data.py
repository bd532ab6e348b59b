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

from tasks.redact.personal_data import Kind, Match, find_in_column, find_personal_data

GOLD = Path(__file__).parents[4] / "shared/data/gold/pii_presidio.parquet"
GOLD_KINDS = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "IP_ADDRESS": "ip",
}


def found_in(text: str) -> list[tuple[Kind, str]]:
    return [(m.kind, text.encode()[m.start : m.end].decode()) for m in find_personal_data(text)]


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("Mail <jo.doe+x@mail.acme-corp.org>.", "email", "jo.doe+x@mail.acme-corp.org"),
        ("jürgen@firma.de schreibt", "email", "jürgen@firma.de"),
        ("an info@müller.de geschrieben", "email", "info@müller.de"),
        ("邮箱：foo@bar.com。", "email", "foo@bar.com"),
        ("'jo@acme.io', she wrote", "email", "jo@acme.io"),
        ("mailto:jo@acme.co.uk?subject=x", "email", "jo@acme.co.uk"),
        ("jane.doe@example.com", "email", "jane.doe@example.com"),
        ("from 86.231.85.193 port 22", "ipv4", "86.231.85.193"),
        ("http://86.231.85.193:8080/x", "ipv4", "86.231.85.193"),
        ("ip:86.231.85.193", "ipv4", "86.231.85.193"),
        ("inet 86.231.85.193/24 brd", "ipv4", "86.231.85.193"),
        ("the server 8.8.4.4 answers", "ipv4", "8.8.4.4"),
        ("It was 93.184.216.34.", "ipv4", "93.184.216.34"),
        ("[2a04:4e42:e00::347] and", "ipv6", "2a04:4e42:e00::347"),
        ("http://[2a00:1450:4001:81b::200e]:443/", "ipv6", "2a00:1450:4001:81b::200e"),
        ("addr:2a00:1450:4001:81b::200e/64", "ipv6", "2a00:1450:4001:81b::200e"),
        ("2a00:1450:4001:81b::200e%eth0", "ipv6", "2a00:1450:4001:81b::200e"),
        ("2001:4860:4860:0:0:0:0:8888", "ipv6", "2001:4860:4860:0:0:0:0:8888"),
        ("4f8a:c99e:dc86:faf9:5988:5f63:375e:8a2a", "ipv6", "4f8a:c99e:dc86:faf9:5988:5f63:375e:8a2a"),
        ("::ffff:86.231.85.193", "ipv6", "::ffff:86.231.85.193"),
        ("64:ff9b::86.231.85.193", "ipv6", "64:ff9b::86.231.85.193"),
        ("call (202) 456-1111 today", "phone", "(202) 456-1111"),
        ("tel:202-456-1111", "phone", "202-456-1111"),
        ("my credit card 4539799031796088", "card", "4539799031796088"),
        ("IBAN gb50mvfc38361978683032", "iban", "gb50mvfc38361978683032"),
        ("key AKIAIOSFODNN7EXAMPLE;", "api_key", "AKIAIOSFODNN7EXAMPLE"),
    ],
)
def test_personal_data_is_found(text: str, kind: Kind, wanted: str) -> None:
    assert found_in(text) == [(kind, wanted)]


@pytest.mark.parametrize(
    "text",
    [
        # versions, sections, object identifiers
        "release 1.2.3.4", "v4.5.103.30", "upgrade V8 to 4.6.85.28", "foo==81.2.3.4", "pkg-81.22.33.44.tar.gz",
        "§ 81.2.3.4", "1.3.6.1.4.1.311", "in 2.4.1.0 we", "81.2.3.4-beta", "on this host.\n12.4.1.2. Configuring",
        "Liberty 21.0.0.12, 23.0.0.1",
        # addresses that are nobody's: private, loopback, link-local, documentation, multicast, networks
        "10.218.6.131", "192.168.0.1", "172.16.5.4", "127.0.0.1", "169.254.1.1", "192.0.2.17", "224.0.0.251",
        "81.2.3.0", "81.2.3.255", "81.2.3.0/24", "81.2.3.32/27", "fe80::1", "::1", "2001:db8::17", "3fff::1",
        "2001:0bc8:31a0::/48", "fd00:1::5", "::ffff:10.0.0.1", "00:11:22:33:44:55",
        "00:11:22:33:44:55:66:77", "12:34:56:78", "1:2:3:4:5:6:7:8", "std::add::be", "300.1.1.1", "081.2.3.4",
        # numbers
        "LinkedAccountId: 215805592", "1234567890123", "2023-03-15 10:22:33", "15.03.2023 10-22",
        "ISBN 978-0-521-86842-6", "0-306-40615-2", "1.0.0.0", "AB12 CD34 EF56 7890 1234",
        "d41d8cd98f00b204e9800998ecf8427e", "550e8400-e29b-41d4-a716-446655440000",
        "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12", "10.1000/182", "arXiv:2005.14165", "0x1f:0x2e:0x3d",
        # what only looks like an e-mail address
        "@property", "git@github.com:org/repo.git", "icon@2x.png", "a@b", "x@self.weight", "q@k.transpose(1)",
        "root@localhost", "x@y.invalid", "a..b@acme.org", "user@host.local", "pkg@1.2.3", "@a@b.social",
        "http://user:secret@acme.org/x", "ssh://deploy@acme.org",
    ],
)  # fmt: skip
def test_what_is_nobodys_stays(text: str) -> None:
    assert found_in(text) == []
    assert found_in(f"Some words, {text} and more.") == []


def test_matches_are_in_order_and_do_not_overlap() -> None:
    text = "jo@acme.org, 202-456-1111; 86.231.85.193 and +31 546 577 994 (jo@acme.org)"
    assert [kind for kind, _ in found_in(text)] == ["email", "phone", "ipv4", "phone", "email"]
    chain = "4539 7990 3179 6088 (202) 456-1111 86.231.85.193 10.0.0.7 +31 546 577 994"
    assert [kind for kind, _ in found_in(chain)] == ["card", "phone", "ipv4", "phone"]


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
    "a@" + "a." * 40, "eyJ", "eyJaaaaaaaaaaaa.", "://a", "://a@", ":1", "1:2.", "::1.2.3.4", "+1.2", "(0123)45 ",
    "4539 7990 3179 6088 (202) 456-1111 ", "86.231.85.193 (202) 456-1111 ", "1.2.3.4/24 ", "user:x@y.zz ",
]  # fmt: skip


def seconds_for(text: str) -> float:
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        find_personal_data(text)
        best = min(best, time.process_time() - start)
    return best


def test_time_grows_with_the_text_not_with_its_square() -> None:
    """agent-governance-toolkit#3566, langchain#39593: separators by the thousand.

    All hostile texts together, of one size and of 16 times that size: a square would take 256 times as long.
    """
    small, large = (sum(seconds_for(p * (size // len(p))) for p in HOSTILE) for size in (1 << 12, 1 << 16))
    assert large / small < 64


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
