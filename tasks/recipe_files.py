"""Files that a recipe names one by one (evaluation sets, labelled sets, word lists, models): their places and rows.

A path is absolute, `s3://...`, begins with `{root}` (the storage root) or `recipe:` (a file that ships with the
recipes). Rows are those of JSONL, CSV, plain text (a row per line, column `text`; all plain, gz or zst) or Parquet;
`a.b` names a column inside an object. Errors begin with the place in the recipe, such as
`decontaminate.evaluation_sets.quiz`.
"""

import csv
import gzip
import io
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import ConfigError, DataError, StorageError
from tasks.ingest.charset import wide_charset
from tasks.storage import Storage

RECIPES_FOLDER = Path(__file__).resolve().parent.parent / "flows" / "recipes"
RECIPE_PREFIX, ROOT_PREFIX = "recipe:", "{root}"
MAX_CSV_FIELD_BYTES = 1 << 24  # a passage; Python's own limit is 128 kB

Format = Literal["jsonl", "csv", "parquet", "text"]


def check_path(path: str) -> str:
    """For a validator: the path itself. Raises ValueError when it depends on the working folder."""
    if path and not path.startswith(("/", ROOT_PREFIX, RECIPE_PREFIX)) and "://" not in path:
        raise ValueError(f"{path!r} depends on the working folder: begin it with /, s3://, {{root}}/ or recipe:")
    return path


def read_recipe_file(storage: Storage, path: str, place: str, key: str = "path") -> bytes:
    """The bytes of a file. Raises ConfigError with the key's path when it is missing."""
    try:
        if path.startswith(RECIPE_PREFIX):
            return (RECIPES_FOLDER / path.removeprefix(RECIPE_PREFIX)).read_bytes()
        if path.startswith(ROOT_PREFIX):
            return storage.read_bytes(path.removeprefix(ROOT_PREFIX).lstrip("/"))
        folder, _, file = path.rpartition("/")
        return Storage(folder or "/").read_bytes(file)
    except ConfigError as error:
        raise ConfigError(f"{place}.{key}: {error}") from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, StorageError) as error:
        if isinstance(error, StorageError) and not isinstance(error.__cause__, IsADirectoryError):
            raise
        raise ConfigError(f"{place}.{key}: {path}: no such file ({error})") from error


def format_of(path: str, given: Format | None, place: str) -> Format:
    """The file's format: as given, else by its name. Raises ConfigError."""
    if given is not None:
        return given
    suffixes = [suffix for suffix in Path(path).suffixes if suffix not in (".gz", ".zst")]
    found: dict[str, Format] = {
        ".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "text",
    }  # fmt: skip
    if not suffixes or suffixes[-1] not in found:
        raise ConfigError(f"{place}.format: {path}: name jsonl, csv, parquet or text")
    return found[suffixes[-1]]


def read_rows(data: bytes, kind: Format, place: str) -> Iterator[dict[str, Any]]:
    """The rows of a file. Raises DataError when it is not of that format."""
    try:
        plain = decompressed(data)
        if kind == "parquet":
            yield from pq.read_table(io.BytesIO(plain)).to_pylist()
        elif kind == "csv":
            csv.field_size_limit(MAX_CSV_FIELD_BYTES)
            yield from csv.DictReader(io.StringIO(unmarked(plain).decode(), newline=""))
        elif kind == "text":
            yield from ({"text": line.rstrip("\r")} for line in unmarked(plain).decode().split("\n") if line.strip())
        else:
            yield from (orjson.loads(line) for line in unmarked(plain).splitlines() if line.strip())
    except (pa.ArrowException, ValueError, csv.Error, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{place}: the file is no valid {kind}: {error}") from error


def value_of(row: Any, column: str, place: str) -> Any:
    """A row's value, `a.b` going into objects. Raises DataError, with the columns that there are."""
    value = row
    for step in column.split("."):
        if not isinstance(value, dict) or step not in value:
            has = ", ".join(sorted(map(str, value))) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{place} has no column {column!r}; it has: {has}")
        value = value[step]
    return value


def unmarked(data: bytes) -> bytes:
    """A text in UTF-8 without its byte order mark. Raises ValueError for one in UTF-16 or UTF-32."""
    if charset := wide_charset(data):
        raise ValueError(f"it is in {charset.upper()}; write it in UTF-8")
    return data.removeprefix(BOM_UTF8)


def decompressed(data: bytes) -> bytes:
    """The content of a gz or zst file; other data as it is."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as plain:
            return bytes(plain.read())
    return data
