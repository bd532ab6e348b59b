"""Which files a run takes, what identifies them, and what it says when they are not there or changed."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.errors import ConfigError, DataError
from tasks.ingest.sources import (
    Format,
    IngestConfig,
    InputFile,
    InputFiles,
    SourceConfig,
    check_unchanged,
    format_of,
    glob_pattern,
    list_inputs,
)  # fmt: skip
from tasks.storage import Storage
from tests.conftest import LIMIT_SECONDS


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def config(**sources: dict[str, Any]) -> IngestConfig:
    return IngestConfig.model_validate({"sources": sources})


def test_files_are_listed_by_relative_key_with_size_and_hash(tmp_path: Path) -> None:
    root = Storage(str(tmp_path / "lake"))
    write(tmp_path / "lake" / "raw" / "web", b="two", a__c="one")
    found = list_inputs(config(web={"base": "{root}/raw/web"}), root)
    assert [(file.key, file.size) for file in found.sources["web"]] == [("a/c", 3), ("b", 3)]
    assert found.sources["web"][0].sha256 == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert InputFiles.model_validate_json(found.model_dump_json()) == found


def test_identity_names_content_not_places(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, a="x", b="y") for name in ("one", "two"))
    first, second = (list_inputs(config(s={"base": str(f)}), Storage(str(tmp_path))) for f in (one, two))
    assert first.identity(["s"]) == second.identity(["s"])
    write(two, b="z")
    assert first.identity(["s"]) != list_inputs(config(s={"base": str(two)}), Storage(str(tmp_path))).identity(["s"])


def test_include_and_exclude(tmp_path: Path) -> None:
    write(tmp_path, a__x_py="", a__b__y_py="", z_md="", a__test__t_py="")
    source = {"base": str(tmp_path), "include": ["**/*_py"], "exclude": ["**/test/**"]}
    found = list_inputs(config(s=source), Storage(str(tmp_path)))
    assert [file.key for file in found.sources["s"]] == ["a/b/y_py", "a/x_py"]


@pytest.mark.parametrize(
    ("glob", "key", "matches"),
    [
        ("**", "a/b/c.txt", True),
        ("*.txt", "c.txt", True),
        ("*.txt", "a/c.txt", False),
        ("**/*.txt", "c.txt", True),
        ("**/*.txt", "a/b/c.txt", True),
        ("a/**", "a/b/c.txt", True),
        ("a/**", "ab/c.txt", False),
        ("a/?.txt", "a/b.txt", True),
        ("a/?.txt", "a/bb.txt", False),
        ("a+(1)[x].txt", "a+(1)[x].txt", True),
        ("*.txt", "c.txt\n", False),
    ],
)
def test_globs(glob: str, key: str, matches: bool) -> None:
    assert bool(glob_pattern(glob).match(key)) is matches


def test_a_missing_base_or_an_empty_selection_names_the_key(tmp_path: Path) -> None:
    write(tmp_path / "full", a="x")
    (tmp_path / "empty").mkdir()
    for base in ("nowhere", "empty"):
        with pytest.raises(ConfigError, match=r"ingest\.sources\.web\.base: nothing is at"):
            list_inputs(config(web={"base": str(tmp_path / base)}), Storage(str(tmp_path)))
    source = {"base": str(tmp_path / "full"), "include": ["*.jsonl"]}
    with pytest.raises(ConfigError, match=r"ingest\.sources\.web\.include: none of the 1 files .* the first is 'a'"):
        list_inputs(config(web=source), Storage(str(tmp_path)))


def test_a_base_may_be_a_single_file_s_folder_only(tmp_path: Path) -> None:
    write(tmp_path, a="x")
    with pytest.raises(ConfigError):
        list_inputs(config(web={"base": str(tmp_path / "a")}), Storage(str(tmp_path)))


def test_a_name_that_is_not_utf8_is_refused_unless_excluded(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "good.jsonl").write_text("{}")
    (tmp_path / "web" / os.fsdecode(b"bad\xff.jsonl")).write_text("{}")
    source: dict[str, Any] = {"base": str(tmp_path / "web")}
    with pytest.raises(ConfigError, match=r"ingest\.sources\.web\.base: the name of .*bad.* is not UTF-8"):
        list_inputs(IngestConfig.model_validate({"sources": {"web": source}}), Storage(str(tmp_path)))
    source |= {"exclude": ["bad*"]}
    found = list_inputs(IngestConfig.model_validate({"sources": {"web": source}}), Storage(str(tmp_path)))
    assert [file.key for file in found.sources["web"]] == ["good.jsonl"]


def test_a_changed_file_is_an_error_a_touched_one_is_not(tmp_path: Path) -> None:
    write(tmp_path, a="one")
    place = Storage(str(tmp_path))
    (file,) = list_inputs(config(s={"base": str(tmp_path)}), place).sources["s"]
    check_unchanged(file, place)
    os.utime(tmp_path / "a", (1, 1))
    check_unchanged(file, place)
    (tmp_path / "a").write_text("two")
    with pytest.raises(DataError, match="a changed since the run listed its inputs"):
        check_unchanged(file, place)
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="a is gone"):
        check_unchanged(file, place)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.jsonl.gz", "jsonl"),
        ("a/b.JSON.zst", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.parquet", "parquet"),
        ("CC-MAIN.warc.gz", "warc"),
        ("CC-MAIN.warc.wet.gz", "wet"),
        ("x.arc.gz", "warc"),
        ("x.html", "html"),
        ("x.py", "text"),
        ("README", "text"),
        ("dir.parquet/README", "text"),
    ],
)
def test_formats_by_name(key: str, expected: Format) -> None:
    assert format_of(key, SourceConfig(base="x")) == expected
    assert format_of(key, SourceConfig(base="x", format="lines")) == "lines"


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"a": {}},
        {"a": {"base": ""}},
        {"a:b": {"base": "x"}},
        {"../a": {"base": "x"}},
        {"a": {"base": "x", "format": "docx"}},
        {"a": {"base": "x", "extractor": "lynx"}},
        {"a": {"base": "x", "on_damage": "ignore"}},
        {"a": {"base": "x", "limits": {"max_depth": 0}}},
        {"a": {"base": "x", "globs": ["*"]}},
    ],
)
def test_wrong_settings_are_refused(sources: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**sources)


def test_reading_leaves_out_what_cannot_change_a_document() -> None:
    one = SourceConfig(base="here", include=("a",), exclude=("b",), priority=3, text_key="body")
    two = SourceConfig(base="there", text_key="body")
    assert one.reading() == two.reading()
    assert one.reading() != SourceConfig(base="here").reading()


def test_files_on_s3_are_identified_by_etag(s3_root: str) -> None:
    root = Storage(s3_root)
    root.write_bytes("raw/a.txt", b"one")
    (file,) = list_inputs(config(s={"base": "{root}/raw"}), root).sources["s"]
    assert (file.key, file.size, file.sha256) == ("a.txt", 3, "")
    assert file.identity == file.etag != ""
    check_unchanged(file, Storage(f"{s3_root}/raw"))
    root.write_bytes("raw/a.txt", b"two")
    with pytest.raises(DataError, match="changed"):
        check_unchanged(file, Storage(f"{s3_root}/raw"))
    assert isinstance(file, InputFile)


def test_an_unchanged_file_is_not_hashed_again_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.sources.SETTLED_SECONDS", -1.0)
    path, root = tmp_path / "raw/a.txt", Storage(str(tmp_path / "lake"))
    path.parent.mkdir()
    path.write_text("one")
    config = IngestConfig.model_validate({"sources": {"web": {"base": str(path.parent)}}})
    first = list_inputs(config, root)
    (file,) = first.sources["web"]
    marked = InputFiles(sources={"web": (file.model_copy(update={"sha256": "as noted"}),)})
    assert list_inputs(config, root, marked).sources["web"][0].sha256 == "as noted"

    times = path.stat()
    while path.stat().st_ctime_ns == times.st_ctime_ns:  # the clock of a disk ticks every few milliseconds
        path.write_text("two")  # as long as before, and with its old time of change
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (changed,) = list_inputs(config, root, marked).sources["web"]
    assert changed.modified == file.modified
    assert changed.sha256 not in (file.sha256, "as noted")


def test_a_file_of_just_now_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's clock may tick slower than a file is written twice."""
    monkeypatch.setattr("tasks.ingest.sources.SETTLED_SECONDS", LIMIT_SECONDS)
    (tmp_path / "a.txt").write_text("one")
    config = IngestConfig.model_validate({"sources": {"web": {"base": str(tmp_path)}}})
    (file,) = list_inputs(config, Storage(str(tmp_path / "lake"))).sources["web"]
    assert (file.stamp, InputFiles(sources={"web": (file,)}).hashes()) == ("", {})
