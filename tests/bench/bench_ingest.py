"""Ingest: records that the WARC reader finds in real files, whole and cut, beside warcio's counts; its speed.

`pytest tests/bench/bench_ingest.py -m bench -s` prints two lines: records read, against those that warcio 1.7 found
(MANIFEST.tsv of the shared files), with damage found; and MB of uncompressed archive per CPU-second, HTML kept,
beside fastwarc's iterator, which reads headers and bodies and decodes nothing.
"""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from tasks.ingest import SourceConfig
from tasks.ingest.extract import PageExtractor
from tasks.ingest.records import Outcome, Record, Rejected
from tasks.ingest.stage import DAMAGES
from tasks.ingest.warc import read_warc
from tests.bench.clock import cpu_seconds

FILES = Path(__file__).parents[3] / "shared/data/warc"
CONFIG = SourceConfig(base="-", format="warc", extractor="none")
OVERCOUNTED = 5  # lines of damaged records that warcio counts as records (tests/tasks/ingest/test_warc.py names them)


def read(data: bytes, extractor: PageExtractor) -> list[Outcome]:
    """All outcomes of a file."""
    return list(read_warc(io.BytesIO(data), 0, None, CONFIG, extractor))


def is_damage(outcome: Outcome) -> bool:
    """Whether an outcome says that its file is damaged."""
    if isinstance(outcome, Record):
        return "wrong_length" in outcome.edits
    return isinstance(outcome, Rejected) and outcome.reason in (*DAMAGES, "bad_http")


@pytest.mark.bench
@pytest.mark.skipif(not FILES.is_dir(), reason="the crawl files are not here")
def test_real_files() -> None:
    """Whole, then cut at 60 %: a cut inside a compressed member has to show."""
    ours = theirs = files = damaged = cut_inside = cut_named = 0
    extractor = PageExtractor()
    for row in csv.DictReader((FILES / "MANIFEST.tsv").open(), delimiter="\t"):
        path = FILES.parent / row["file"]
        if path.suffix == ".wacz":  # a zip archive
            continue
        data = path.read_bytes()
        outcomes = read(data, extractor)
        files, ours = files + 1, ours + len(outcomes)
        theirs += sum(json.loads(row["types"]).values())
        damaged += any(map(is_damage, outcomes))
        cut = data[: len(data) * 6 // 10]
        if data[:2] == b"\x1f\x8b" and not ends_whole(cut):
            cut_inside += 1
            cut_named += any(map(is_damage, read(cut, extractor)))
    print(
        f"\ningest WARC/ARC/WET: {files} files, {ours} records, warcio {theirs} ({OVERCOUNTED} of them no records), "
        f"ratio {ours / theirs:.2f}, target: none lost; {damaged} damaged files named; "
        f"cut at 60 %: {cut_named} of {cut_inside} named"
    )
    assert ours >= theirs - OVERCOUNTED
    assert cut_named == cut_inside


def ends_whole(data: bytes) -> bool:
    """Whether gzipped data ends where a member ends."""
    try:
        gzip.decompress(data)
    except (EOFError, OSError):
        return False
    return True


@pytest.mark.bench
@pytest.mark.skipif(not FILES.is_dir(), reason="the crawl files are not here")
def test_speed() -> None:
    """The largest sound file, gzipped record by record."""
    path = max(FILES.rglob("*.warc.gz"), key=lambda path: path.stat().st_size)
    data, extractor = path.read_bytes(), PageExtractor()
    size = len(gzip.decompress(data)) / 1e6
    mine = cpu_seconds(lambda: read(data, extractor))
    peer = cpu_seconds(lambda: [r.reader.read() for r in ArchiveIterator(io.BytesIO(data))])
    print(f"ingest {path.name}: {size / mine:.0f} MB/s, fastwarc {size / peer:.0f}, ratio {peer / mine:.2f}, no target")
