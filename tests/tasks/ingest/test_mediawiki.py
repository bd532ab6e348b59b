"""MediaWiki dumps: pages to documents, kinds counted, damage and entity bombs cost one page, ranges tile the file."""

import bz2
import gzip
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.ingest.mediawiki import read_mediawiki
from tasks.ingest.records import Outcome, Record, Rejected, Skipped
from tasks.ingest.sources import SourceConfig

CONFIG = SourceConfig(base="x", format="mediawiki")
REAL_DUMP = Path(__file__).parents[4] / "shared/data/text/enwiki-pages-articles1-shortened.xml.bz2"
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo>
    <base>https://de.wiki.example/wiki/Hauptseite</base>
    <namespaces><namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
    </namespaces>
  </siteinfo>
"""
END = "</mediawiki>\n"


def page(title: str, text: str, ns: int = 0, extra: str = "", model: str = "wikitext") -> str:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{ns}</ns>\n    <id>7</id>\n{extra}    <revision>\n"
        f"      <id>9</id>\n      <timestamp>2024-01-02T03:04:05Z</timestamp>\n"
        f"      <contributor><username>U</username><id>1</id></contributor>\n      <model>{model}</model>\n"
        f'      <text bytes="3" xml:space="preserve">{text}</text>\n    </revision>\n  </page>\n'
    )


PAGES = [page(f"Seite {n}", f"Text '''{n}''' mit [[Ziel|Wort]].") for n in range(20)]
DUMP = (HEAD + "".join(PAGES) + END).encode()


def read(data: bytes, start: int = 0, end: int | None = None, **settings: Any) -> list[Outcome]:
    return list(read_mediawiki(io.BytesIO(data), start, end, CONFIG.model_copy(update=settings)))


def titles(outcomes: list[Outcome]) -> list[str]:
    return [str(o.meta["title"]) for o in outcomes if isinstance(o, Record)]


def refusals(outcomes: list[Outcome]) -> list[str]:
    return [o.reason for o in outcomes if isinstance(o, Rejected)]


def multistream() -> bytes:
    """As Wikipedia's: the head, pages by fives, the end, each a bzip2 stream."""
    groups = ["".join(PAGES[at : at + 5]) for at in range(0, 20, 5)]
    return b"".join(bz2.compress(piece.encode()) for piece in (HEAD, *groups, END))


def test_a_page_is_a_document() -> None:
    (record,) = read((HEAD + page("Über A/B: C?", "[[Datei:x.png]]'''Ü''' &amp;amp; x") + END).encode())
    assert isinstance(record, Record)
    assert record.text == "Ü & x"
    assert record.url == "https://de.wiki.example/wiki/%C3%9Cber_A/B:_C%3F"
    assert record.timestamp == "2024-01-02T03:04:05Z"
    assert record.meta == {"title": "Über A/B: C?", "id": "7", "revision": "9", "namespace": 0}
    assert record.position == str(len(HEAD) + 2)


def test_other_kinds_are_counted() -> None:
    dump = HEAD + page("Diskussion:A", "x", 1) + page("A", "#REDIRECT [[B]]", extra='    <redirect title="B" />\n')
    dump += page("common.js", "x", 8) + page("A.json", "{}", model="json") + page("D", "text") + END
    kinds = Counter(o.kind for o in read(dump.encode()) if isinstance(o, Skipped))
    assert kinds == {"namespace_1": 1, "redirect": 1, "namespace_8": 1, "not_wikitext": 1}
    assert titles(read(dump.encode(), namespaces=(0, 1))) == ["Diskussion:A", "D"]


def test_without_an_extractor_the_wikitext_stays() -> None:
    (record,) = read((HEAD + page("A", "'''x'''") + END).encode(), extractor="none")
    assert isinstance(record, Record)
    assert record.text == "'''x'''"


def test_the_last_revision_counts() -> None:
    older = "    <revision><id>1</id><timestamp>1</timestamp><text>old</text><comment>c</comment></revision>\n"
    (record,) = read((HEAD + page("A", "new", extra=older) + END).encode())
    assert isinstance(record, Record)
    assert (record.text, record.meta["revision"]) == ("new", "9")


@pytest.mark.parametrize("compress", [lambda data: data, bz2.compress, gzip.compress])
def test_plain_and_compressed(compress: Any) -> None:
    outcomes = read(compress(DUMP))
    assert titles(outcomes) == [f"Seite {n}" for n in range(20)]
    assert len({o.position for o in outcomes if isinstance(o, Record)}) == 20
    assert refusals(outcomes) == []


@pytest.mark.parametrize("step", [100, 333, 1_000, 100_000])
@pytest.mark.parametrize("data", [DUMP, multistream(), bz2.compress(DUMP)], ids=["plain", "multistream", "one stream"])
def test_ranges_tile_the_pages(data: bytes, step: int) -> None:
    pieces = [read(data, at, min(at + step, len(data))) for at in range(0, len(data), step)]
    assert [o for piece in pieces for o in piece] == read(data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&bomb;", "corrupt_record"),
        ("a <b> c", "corrupt_record"),
        ("&#0;", "corrupt_record"),
        ("{{only|a template}}", "no_content"),
        ("x" * 3_000, "too_large"),
    ],
)
def test_a_bad_page_costs_itself(text: str, reason: str) -> None:
    dump = HEAD + PAGES[0] + page("bad", text) + PAGES[1] + END
    limits = CONFIG.limits.model_copy(update={"max_bytes": 2_000})
    outcomes = read(dump.encode(), limits=limits)
    assert titles(outcomes) == ["Seite 0", "Seite 1"]
    assert refusals(outcomes) == [reason]


def test_entities_of_a_document_type_are_never_known(tmp_path: Path) -> None:
    """A billion laughs and a file on this machine: the pages that use them are refused, nothing is expanded or read."""
    (tmp_path / "secret").write_text("secret")
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    kind = f'<!DOCTYPE m [<!ENTITY l0 "ha">{laughs}<!ENTITY f SYSTEM "file://{tmp_path}/secret">]>'
    dump = kind + HEAD + page("laughs", "&l9;") + page("file", "&f;") + PAGES[0] + END
    outcomes = read(dump.encode())
    assert titles(outcomes) == ["Seite 0"]
    assert refusals(outcomes) == ["corrupt_record", "corrupt_record"]
    inner = HEAD + PAGES[0].replace("<title>", kind + "<title>", 1) + PAGES[1] + END
    assert refusals(read(inner.encode())) == ["corrupt_record"]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("data", [DUMP, multistream()], ids=["plain", "multistream"])
def test_a_cut_dump_is_named_and_keeps_the_pages_before_the_cut(data: bytes, share: float) -> None:
    outcomes = read(data[: int(len(data) * share)])
    kept = titles(outcomes)
    assert kept == titles(read(data))[: len(kept)]
    assert len(kept) >= 20 * share - 6
    assert refusals(outcomes) == ["truncated"]


def test_a_broken_stream_costs_its_own_pages() -> None:
    data = bytearray(multistream())
    second = data.find(b"BZh", data.find(b"BZh", 5) + 5)  # pages 5 to 9
    data[second + 40 : second + 60] = bytes(20)
    outcomes = read(bytes(data))
    assert titles(outcomes) == [f"Seite {n}" for n in range(20) if not 5 <= n < 10]
    assert refusals(outcomes) == ["corrupt_member"]


def test_a_page_that_is_too_long_to_hold_is_passed_over() -> None:
    dump = HEAD + PAGES[0] + page("long", "x" * 1_000_000) + PAGES[1] + END
    outcomes = read(dump.encode(), max_record_bytes=100_000)
    assert titles(outcomes) == ["Seite 0", "Seite 1"]
    assert refusals(outcomes) == ["too_large"]


@pytest.mark.parametrize("data", [b"", b"no dump", b"<mediawiki></mediawiki>", b"<page>"])
def test_what_is_no_dump(data: bytes) -> None:
    assert refusals(read(data)) == ([] if b"</" in data else ["truncated"])


@pytest.mark.skipif(not REAL_DUMP.is_file(), reason="the shared dump is not here")
def test_a_real_dump() -> None:
    with REAL_DUMP.open("rb") as file:
        outcomes = list(read_mediawiki(file, 0, None, CONFIG))
    kinds = Counter(o.kind if isinstance(o, Skipped) else type(o).__name__ for o in outcomes)
    assert kinds == {"Record": 106, "redirect": 99, "namespace_4": 1}
    text = next(o.text for o in outcomes if isinstance(o, Record))
    assert text.startswith("Anarchism is a political philosophy")
    assert not any(mark in text for mark in ("{{", "[[", "<ref", "{|"))
