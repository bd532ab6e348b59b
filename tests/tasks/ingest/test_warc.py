"""WARC, WET and ARC: good records behind bad ones are kept, positions name the member, other kinds are counted."""

import csv
import gzip
import io
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.ingest.extract import PageExtractor
from tasks.ingest.records import Outcome, Record, Rejected, Skipped
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import DAMAGES
from tasks.ingest.warc import read_warc

REAL_FILES = Path(__file__).parents[4] / "shared" / "data" / "warc"
WARC = SourceConfig(base="x", format="warc", extractor="resiliparse")
PARAGRAPH = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "


@pytest.fixture(scope="module")
def extractor() -> Iterator[PageExtractor]:
    shared = PageExtractor()
    yield shared
    shared.close()


def record(
    kind: str, block: bytes, url: str = "http://a.example/", length: int | None = None, fields: str = ""
) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2024-01-02T03:04:05Z\r\n"
    head += (
        f"WARC-Record-ID: <urn:{kind}>\r\n{fields}Content-Length: {len(block) if length is None else length}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def response(text: str, fields: str = "Content-Type: text/html; charset=utf-8", status: int = 200) -> bytes:
    page = f"<html><head><title>T</title></head><body><p>{text}</p></body></html>".encode()
    return f"HTTP/1.1 {status} X\r\n{fields}\r\n\r\n".encode() + page


def page(n: int, length: int | None = None) -> bytes:
    return record("response", response(f"Page {n}. {PARAGRAPH * 3}"), f"http://a.example/{n}", length)


def read(
    data: bytes, extractor: PageExtractor, start: int = 0, end: int | None = None, config: SourceConfig = WARC
) -> list[Outcome]:
    return list(read_warc(io.BytesIO(data), start, end, config, extractor))


def numbers(outcomes: list[Outcome]) -> list[int]:
    return [int(o.text.split()[1].rstrip(".")) for o in outcomes if isinstance(o, Record)]


def refusals(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(o.position, o.reason) for o in outcomes if isinstance(o, Rejected)]


def test_a_page_becomes_a_document(extractor: PageExtractor) -> None:
    (found,) = read(page(1), extractor)
    assert isinstance(found, Record)
    assert found.text.startswith("Page 1. The quick brown fox")
    assert (found.position, found.url, found.timestamp) == ("0", "http://a.example/1", "2024-01-02T03:04:05Z")
    assert found.meta == {"id": "<urn:response>", "title": "T"}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (record("warcinfo", b"software: x"), "warcinfo"),
        (record("request", b"GET / HTTP/1.1\r\n\r\n"), "request"),
        (record("metadata", b"a: b"), "metadata"),
        (record("revisit", response("x")), "revisit"),
        (record("continuation", b"x"), "continuation"),
        (record("made-up", b"x"), "unknown_type"),
        (record("response", response("x", status=404)), "http_4xx"),
        (record("response", response("x", status=301)), "http_3xx"),
        (record("response", response("x", "Content-Type: image/png")), "not_text"),
        (record("resource", b"\x89PNG", fields="Content-Type: image/png\r\n"), "not_text"),
        (record("response", b"not http", "dns:a.example"), "not_text"),
    ],
)
def test_what_is_not_wanted_is_skipped_by_kind(extractor: PageExtractor, data: bytes, kind: str) -> None:
    assert read(data, extractor) == [Skipped(kind)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (record("response", b"not http at all"), "bad_http"),
        (record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"), "empty"),
        (record("response", response("<i>" * 10_000)), "too_deep"),
        (record("response", response("<script>x()</script>")), "no_content"),
        (record("response", response("x" * (9 << 20))), "too_large"),
        (record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\na\0b"), "binary"),
    ],
)
def test_bad_pages_are_named(extractor: PageExtractor, data: bytes, reason: str) -> None:
    outcomes = read(data + page(2), extractor)
    assert refusals(outcomes) == [("0", reason)]
    assert numbers(outcomes) == [2]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (record("conversion", "größe".encode(), fields="Content-Type: text/plain\r\n"), "größe"),
        (record("resource", b"plain", fields="Content-Type: text/plain; charset=ascii\r\n"), "plain"),
        (record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=cp1251\r\n\r\n\xe4\xe0"), "да"),
        (record("response", b"HTTP/1.1 200 OK\r\n\r\n<!DOCTYPE html><p>sniffed"), "sniffed"),
    ],
)
def test_other_documents(extractor: PageExtractor, data: bytes, text: str) -> None:
    (found,) = read(data, extractor)
    assert isinstance(found, Record)
    assert found.text.strip() == text


def test_wet_takes_conversions_only(extractor: PageExtractor) -> None:
    data = page(1) + record("conversion", b"text", fields="WARC-Identified-Content-Language: eng\r\n")
    wet = SourceConfig(base="x", format="wet")
    skipped, found = read(data, extractor, config=wet)
    assert skipped == Skipped("response")
    assert isinstance(found, Record)
    assert (found.text, found.meta["languages"]) == ("text", "eng")


def test_pages_that_are_extracted_together_keep_their_order_and_what_lies_between(extractor: PageExtractor) -> None:
    pieces = [page(n, None if n % 10 else 3) if n % 3 else record("request", b"GET /") + page(n) for n in range(1, 45)]
    found = read(b"".join(pieces), extractor)
    assert numbers(found) == list(range(1, 45))
    assert [isinstance(outcome, Skipped) for outcome in found[:9]] == [False, False, True, False] * 2 + [False]
    assert [n for n, o in enumerate((o for o in found if isinstance(o, Record)), 1) if "wrong_length" in o.edits] == [
        n for n in range(1, 45) if n % 10 == 0 and n % 3
    ]


def test_positions(extractor: PageExtractor) -> None:
    pages = [page(n) for n in range(4)]
    offsets = [sum(map(len, pages[:n])) for n in range(4)]
    plain = [o.position for o in read(b"".join(pages), extractor) if isinstance(o, Record)]
    assert plain == [str(offset) for offset in offsets]
    members = [gzip.compress(data) for data in pages]
    starts = [str(sum(map(len, members[:n]))) for n in range(4)]
    assert [o.position for o in read(b"".join(members), extractor) if isinstance(o, Record)] == starts
    whole = gzip.compress(b"".join(pages))
    assert [o.position for o in read(whole, extractor) if isinstance(o, Record)] == [
        "0", *(f"0+{offset}" for offset in offsets[1:]),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [0, 5, 100, 300, 10**6, 10**12])
def test_a_record_of_wrong_length_ends_where_the_next_begins(extractor: PageExtractor, length: int) -> None:
    config = SourceConfig(base="x", format="warc", max_record_bytes=10**13)
    outcomes = read(page(1) + page(2, length) + page(3), extractor, config=config)
    assert numbers(outcomes) == [1, 2, 3]
    assert [o.edits for o in outcomes if isinstance(o, Record)][0::2] == [{}, {}]
    assert list(outcomes[1].edits) == ["wrong_length"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "junk", [b"garbage\r\n", b"WARC/1.0\r\nWARC-Type: response\r\n\r\n", b"\0" * 100, b"x" * (3 << 20)]
)
def test_junk_between_records_costs_itself(extractor: PageExtractor, junk: bytes) -> None:
    outcomes = read(page(1) + junk + b"\r\n" + page(2), extractor)
    assert numbers(outcomes) == [1, 2]
    assert [reason for _, reason in refusals(outcomes)] in (["corrupt_record"], [])


def test_lf_line_ends_and_folded_headers(extractor: PageExtractor) -> None:
    data = page(1).replace(b"\r\n", b"\n")
    block = len(response(f"Page 1. {PARAGRAPH * 3}"))
    data = data.replace(f"Content-Length: {block}".encode(), f"Content-Length:\n  {block - 3}".encode())
    outcomes = read(data + data, extractor)
    assert numbers(outcomes) == [1, 1]
    assert refusals(outcomes) == []


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85, 0.99])
@pytest.mark.parametrize("is_gzip", [True, False])
def test_a_cut_file_keeps_the_records_before_the_cut(extractor: PageExtractor, share: float, is_gzip: bool) -> None:
    records = [gzip.compress(page(n)) if is_gzip else page(n) for n in range(10)]
    data = b"".join(records)
    cut = int(len(data) * share)
    whole = sum(1 for n in range(10) if sum(map(len, records[: n + 1])) <= cut + 4)  # a record may lack its line ends
    outcomes = read(data[:cut], extractor)
    assert numbers(outcomes)[:whole] == list(range(whole))
    assert [reason for _, reason in refusals(outcomes)] in (["truncated"], [])
    assert len(numbers(outcomes)) + len(refusals(outcomes)) <= whole + 1


def test_a_cut_whole_file_gzip_keeps_the_records_before_the_cut(extractor: PageExtractor) -> None:
    noise = random.Random(1)
    pages = [
        record("response", response(" ".join([f"Page {n}."] + [str(noise.random()) for _ in range(60)])))
        for n in range(10)
    ]
    data = gzip.compress(b"".join(pages))
    outcomes = read(data[: int(len(data) * 0.6)], extractor)
    assert numbers(outcomes) == list(range(len(numbers(outcomes))))
    assert len(numbers(outcomes)) >= 5
    assert [reason for _, reason in refusals(outcomes)] == ["truncated"]


def test_random_damage_costs_only_the_record_it_hits(extractor: PageExtractor) -> None:
    members = [gzip.compress(page(n)) for n in range(8)]
    data = b"".join(members)
    for seed in range(40):
        draw = random.Random(seed)
        at = draw.randrange(4, len(data))
        broken = data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]
        outcomes = read(broken, extractor)
        hit = next(n for n in range(8) if at < sum(map(len, members[: n + 1])))
        assert set(range(8)) - {hit} <= set(numbers(outcomes)), seed
        positions = [o.position for o in outcomes if not isinstance(o, Skipped)]
        assert len(positions) == len(set(positions))


@pytest.mark.parametrize("step", [50, 400, 1_000])
def test_ranges_tile_the_members(extractor: PageExtractor, step: int) -> None:
    data = b"".join(gzip.compress(page(n)) for n in range(12))
    found = [o for start in range(0, len(data), step) for o in read(data, extractor, start, start + step)]
    assert numbers(found) == list(range(12))
    assert [o.position for o in found if isinstance(o, Record)] == [
        o.position for o in read(data, extractor) if isinstance(o, Record)
    ]


def test_arc(extractor: PageExtractor) -> None:
    version = b"1 0 Archive\nURL IP-address Archive-date Content-type Archive-length\n"
    data = b"filedesc://x.arc 0.0.0.0 20240102030405 text/plain %d\n%s\n" % (len(version), version)
    for n in range(3):
        block = response(f"Page {n}. {PARAGRAPH * 3}")
        data += b"http://a.example/%d 10.0.0.1 20240102030405 text/html %d\n%s\n" % (n, len(block), block)
    outcomes = read(data, extractor)
    assert outcomes[0] == Skipped("warcinfo")
    assert numbers(outcomes) == [0, 1, 2]
    assert isinstance(outcomes[1], Record)
    assert (outcomes[1].url, outcomes[1].timestamp) == ("http://a.example/0", "2024-01-02T03:04:05Z")


def test_too_large_records_are_passed_over(extractor: PageExtractor) -> None:
    config = SourceConfig(base="x", format="warc", max_record_bytes=5_000)
    outcomes = read(record("response", b"x" * 6_000) + page(2), extractor, config=config)
    assert refusals(outcomes) == [("0", "too_large")]
    assert numbers(outcomes) == [2]


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", b"\n"])
def test_nothing_gives_nothing(extractor: PageExtractor, data: bytes) -> None:
    assert read(data, extractor) == []


# Files where another reader counts records that are none: it goes on inside a record that it misread.
# Files that warcio counts higher: it reads one record's lines as headers of further ones.
MISCOUNTED = {
    "bad.arc": 1,
    "broken.warc": 2,
    "invalid-warcfile-fields-empty.warc": 1,
    "invalid-warcfile-fields-invalidformat.warc": 1,
}
# Files that are damaged: cut off, overwritten, with lengths or headers that are wrong.
DAMAGED = {
    *("alexa_short_header.arc.gz", "bad.arc", "badexample.arc.gz", "broken.warc", "clipped.warc.gz", "redirect.warc"),
    *("corrupted-trailing-bytes.warc.gz.open", "example-extra.warc", "missing-http.warc.gz", "sample.warc.txt"),
    *("invalid-warcfile-fields-empty.warc", "invalid-warcfile-fields-invalidformat.warc"),
    *("invalid-warcfile-lonely-continuation.warc", "invalid-warcfile-lonely-monkeys.warc"),
    "invalid-warcfile-lonely-request-response-resource-conversion.warc",
    "invalid-warcfile-lonely-revisit.warc",
}
KEPT_HTML = WARC.model_copy(update={"extractor": "none"})  # records alone matter
real_files = pytest.mark.skipif(not REAL_FILES.is_dir(), reason="the shared crawl files are not here")


def manifest() -> list[tuple[Path, int]]:
    """The real files that are no zip archives, and how many records warcio found in each."""
    rows = csv.DictReader((REAL_FILES / "MANIFEST.tsv").open(), delimiter="\t")
    found = [(REAL_FILES.parent / row["file"], sum(json.loads(row["types"]).values())) for row in rows]
    return [(path, records) for path, records in found if path.suffix != ".wacz"]


@real_files
def test_real_files_lose_no_record_and_every_damaged_one_is_named(extractor: PageExtractor) -> None:
    named = set()
    for path, records in manifest():
        outcomes = read(path.read_bytes(), extractor)
        positions = [o.position for o in outcomes if not isinstance(o, Skipped)]
        assert len(positions) == len(set(positions)), path
        assert len(outcomes) >= records - MISCOUNTED.get(path.name, 0), path
        if any(o.edits if isinstance(o, Record) else isinstance(o, Rejected) for o in outcomes):
            named.add(path.name)
    assert named >= DAMAGED


@real_files
def test_real_files_that_are_cut_keep_all_records_before_the_cut(extractor: PageExtractor) -> None:
    """warcio#138, jwarc#17: a file cut at 60 % of its bytes ends as damaged, not as complete, and loses nothing."""
    for path, _ in manifest():
        data = path.read_bytes()
        whole = read(data, extractor, config=KEPT_HTML)
        end = len(data) * 6 // 10
        cut = read(data[:end], extractor, config=KEPT_HTML)
        kept = [o for o in cut if not (isinstance(o, Rejected) and o.reason in DAMAGES)]
        damaged_before = [o for o in whole if isinstance(o, Rejected) and o.reason in DAMAGES]
        sound = [o for o in whole if o not in damaged_before]
        assert kept[:-1] == sound[: max(0, len(kept) - 1)], path  # the last one may lie on the cut
        starts = member_starts(data)
        if len(starts) == len(whole) and not damaged_before:  # one record in each member
            assert len(kept) == sum(following <= end for following in [*starts[1:], len(data)]), path
            assert [o.reason for o in cut if isinstance(o, Rejected) and o.reason in DAMAGES] == (
                [] if end in starts else ["truncated"]
            ), path


def member_starts(data: bytes) -> list[int]:
    """Where the gzip members of a file begin."""
    starts, at = [], 0
    while data[at : at + 2] == b"\x1f\x8b":
        decoder = zlib.decompressobj(31)
        try:
            decoder.decompress(data[at:])
        except zlib.error:
            return []
        starts.append(at)
        at = len(data) - len(decoder.unused_data) if decoder.eof else len(data)
    return starts


@real_files
def test_real_files_with_a_flipped_byte_are_read_to_their_end(extractor: PageExtractor) -> None:
    for path, _ in manifest():
        data = bytearray(path.read_bytes())
        whole = {o.position for o in read(bytes(data), extractor, config=KEPT_HTML) if not isinstance(o, Skipped)}
        starts = member_starts(bytes(data))
        data[len(data) // 2] ^= 0x55
        outcomes = read(bytes(data), extractor, config=KEPT_HTML)
        found = {o.position for o in outcomes if not isinstance(o, Skipped)}
        if len(starts) == len(whole) > 2:
            assert len(whole - found) <= 2, path  # the record hit, and one that its header hid
