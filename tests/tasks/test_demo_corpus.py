"""The demo's raw text: three sources, the same bytes every time, no trace of this machine."""

import gzip
import json
import sys
import sysconfig
from pathlib import Path, PurePosixPath

import pytest

from tasks import demo_corpus
from tasks.demo_corpus import FOLDER, MARKER, is_prose, warc_record, write_python_corpus
from tasks.ingest.extract import PageExtractor
from tasks.ingest.records import Record, Skipped
from tasks.ingest.sources import SourceConfig
from tasks.ingest.warc import read_warc
from tasks.storage import Storage


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(str(tmp_path_factory.mktemp("lake")))
    write_python_corpus(storage)
    return storage


def test_there_are_three_sources_of_at_least_20_mb(corpus: Storage) -> None:
    sizes = corpus.read_json(MARKER)["raw_bytes"]
    assert set(sizes) == {"code", "docs", "web"}
    assert 20_000_000 <= sum(sizes.values()) <= 60_000_000
    assert all(size > 1_000_000 for size in sizes.values())


def test_the_marker_makes_it_idempotent(corpus: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    before = corpus.list_files(FOLDER)
    monkeypatch.setattr(demo_corpus, "code_files", None)  # would fail if it were called
    write_python_corpus(corpus)
    assert corpus.list_files(FOLDER) == before


def test_an_interrupted_or_older_corpus_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))
    for name in ("code_files", "docs_files"):
        monkeypatch.setattr(demo_corpus, name, lambda: iter([("a", b"x", 1)]))
    monkeypatch.setattr(demo_corpus, "web_files", lambda: iter([("b", 1, 1)]))  # no bytes: fails while writing
    with pytest.raises(TypeError):
        write_python_corpus(storage)
    assert not storage.exists(MARKER)
    storage.write_bytes(f"{FOLDER}/web/left-over", b"")
    monkeypatch.setattr(demo_corpus, "web_files", lambda: iter([("c", b"z", 1)]))
    write_python_corpus(storage)
    assert [info.key.removeprefix(f"{FOLDER}/") for info in storage.list_files(FOLDER)] == [
        "code/a", "complete.json", "docs/a", "web/c",
    ]  # fmt: skip
    storage.write_json(MARKER, {"version": 0})
    monkeypatch.setattr(demo_corpus, "web_files", lambda: iter([("d", b"z", 1)]))
    write_python_corpus(storage)
    assert storage.exists(f"{FOLDER}/web/d")


def test_pages_are_the_same_again() -> None:
    modules = ("cgi", "ctypes", "difflib", "os", "socket", "unittest")  # they show environment, addresses, sets
    first, second = (list(demo_corpus.pydoc_pages(*modules)) for _ in range(2))
    assert first == second
    assert [name for name, _ in first] == list(modules)


def test_pages_hold_no_path_and_no_address_of_this_machine(corpus: Storage) -> None:
    places = {
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_path("stdlib"),
        str(Path.home()),
        str(Path(__file__).parents[2]),
    }
    places = {place for place in places if len(Path(place).parts) > 2} - {"/usr/local"}  # "/tmp" may well be in a text
    for info in corpus.list_files(f"{FOLDER}/web"):
        page = gzip.decompress(corpus.read_bytes(info.key)).decode()
        for place in places:
            assert place not in page, (info.key, place)
        assert "at 0x7f" not in page
        assert "at&nbsp;0x7f" not in page


def test_pages_are_read_like_a_crawl(corpus: Storage) -> None:
    extractor = PageExtractor()
    with corpus.open_input(f"{FOLDER}/web/j.warc.gz") as file:
        outcomes = list(read_warc(file, 0, None, SourceConfig(base="x", extractor="resiliparse"), extractor))
    extractor.close()
    assert outcomes[0] == Skipped("warcinfo")
    records = {o.url: o for o in outcomes if isinstance(o, Record)}
    json_page = records["https://pydoc.example/json.html"]
    assert "JSON (JavaScript Object Notation)" in json_page.text
    assert str(json_page.meta["title"]).startswith("Python: ")
    assert len(records) == len(outcomes) - 1


def test_docs_hold_descriptions_and_licences(corpus: Storage) -> None:
    rows = gzip.decompress(corpus.read_bytes(f"{FOLDER}/docs/p.jsonl.gz")).decode().splitlines()
    by_id = {row["id"]: row for row in map(json.loads, rows)}
    assert by_id["pyarrow/description"]["url"].startswith("https://pypi.org/project/pyarrow/")
    assert any("LICENSE" in name for name in by_id)
    assert len(by_id) == len(rows)


def test_packages_vendored_on_the_path_are_not_installed_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendored = tmp_path / "packaging-0.1.dist-info"  # importing setuptools puts such a folder on sys.path
    vendored.mkdir()
    (vendored / "METADATA").write_text("Metadata-Version: 2.1\nName: packaging\nVersion: 0.1\n\nVendored.\n")
    monkeypatch.syspath_prepend(tmp_path)
    files = {name: gzip.decompress(data) for name, data, _ in demo_corpus.docs_files()}
    assert b"packaging/description" in files["p.jsonl.gz"]
    assert b"Vendored." not in files["p.jsonl.gz"]


def test_code_has_no_tests(corpus: Storage) -> None:
    keys = [info.key.removeprefix(f"{FOLDER}/code/") for info in corpus.list_files(f"{FOLDER}/code")]
    assert "json/decoder.py" in keys
    assert not [key for key in keys if key.startswith("test/") or "/tests/" in key]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("x-1.dist-info/licenses/LICENSE.txt", True),
        ("x/docs/guide.rst", True),
        ("x/README", True),
        ("x/license.py", False),
        ("x/data.txt", False),
        ("../../../bin/README.md", False),
        ("/etc/NOTICE", False),
    ],
)
def test_which_files_are_prose(path: str, wanted: bool) -> None:
    assert is_prose(PurePosixPath(path)) is wanted


def test_records_are_the_same_bytes_again() -> None:
    assert warc_record("response", "http://a/", b"x") == warc_record("response", "http://a/", b"x")
