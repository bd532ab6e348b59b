"""Files that a recipe names: their places, their formats, their rows; what is wrong is named with its key path."""

import gzip
from pathlib import Path

import pytest
import zstandard

from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError
from tasks.recipe_files import Format, format_of, read_recipe_file, read_rows, value_of

MARK = b"\xef\xbb\xbf"
JSONL = b'{"a": {"b": 1}}\n\n{"a": {"b": 2}}\n'


def test_the_format_follows_from_the_name_or_is_given() -> None:
    assert format_of("a.b/x.csv.gz", None, "quiz") == "csv"
    assert format_of("x.txt", "parquet", "quiz") == "parquet"
    assert format_of("x.txt.gz", None, "quiz") == "text"
    for path in ("x.bin", "x"):
        with pytest.raises(ConfigError, match=r"^quiz\.format"):
            format_of(path, None, "quiz")


@pytest.mark.parametrize(
    "data", [JSONL, gzip.compress(JSONL), zstandard.compress(JSONL), MARK + JSONL, gzip.compress(MARK + JSONL)]
)
def test_compressed_rows_are_the_same(data: bytes) -> None:
    assert [value_of(row, "a.b", "row") for row in read_rows(data, "jsonl", "quiz")] == [1, 2]


def test_plain_text_has_a_row_per_line() -> None:
    assert [*read_rows("one é\r\n\n two \n".encode(), "text", "quiz")] == [{"text": "one é"}, {"text": " two "}]


def test_a_line_of_json_may_hold_any_separator() -> None:
    assert [*read_rows('{"a": "\u2028\x85"}'.encode(), "jsonl", "quiz")] == [{"a": "\u2028\x85"}]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_a_byte_order_mark_is_left_out_at_the_beginning_alone(kind: Format) -> None:
    line = {"jsonl": b'{"text": "one"}', "csv": b"text\none", "text": b"one"}[kind]
    assert [*read_rows(MARK + line, kind, "quiz")] == [{"text": "one"}]
    twice = MARK + line + b"\n" + MARK + line
    if kind == "jsonl":
        with pytest.raises(DataError, match="no valid jsonl"):
            list(read_rows(twice, kind, "quiz"))
    else:
        assert [row["text"] for row in read_rows(twice, kind, "quiz")][1].startswith("\ufeff")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_wide_characters_are_refused_by_name(kind: Format) -> None:
    with pytest.raises(DataError, match=f"^quiz: the file is no valid {kind}: it is in UTF-16-LE; write it in UTF-8"):
        list(read_rows('{"text": 1}'.encode("utf-16"), kind, "quiz"))


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(DataError, match=r"^quiz: row 3 has no column 'a\.c'; it has: b$"):
        value_of({"a": {"b": 1}}, "a.c", "quiz: row 3")


def test_a_broken_file_is_an_error() -> None:
    for data, kind in ((b"{", "jsonl"), (b"PAR1", "parquet"), (b"\xff", "csv"), (gzip.compress(JSONL)[:20], "jsonl")):
        with pytest.raises(DataError, match=f"^quiz: the file is no valid {kind}"):
            list(read_rows(data, kind, "quiz"))  # type: ignore[arg-type]


def test_a_file_is_found_in_the_root_and_by_its_path(workspace: Workspace, tmp_path: Path) -> None:
    workspace.storage.write_bytes("lists/a.txt", b"in the root")
    (tmp_path / "a.txt").write_bytes(b"elsewhere")
    assert read_recipe_file(workspace.storage, "{root}/lists/a.txt", "list") == b"in the root"
    assert read_recipe_file(workspace.storage, str(tmp_path / "a.txt"), "list") == b"elsewhere"
    with pytest.raises(ConfigError, match=r"^list\.path: .*b\.txt: no such file"):
        read_recipe_file(workspace.storage, str(tmp_path / "b.txt"), "list")
