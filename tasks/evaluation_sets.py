"""Evaluation sets: where their files lie and what their items say.

A set is a JSONL (plain, gz, zst), CSV or Parquet file with one item per row. Keys name columns; `a.b` goes into
objects. A value may be a text, a number or a list of texts (each counts; `answer_index` names the column with the right
one's place). A path is absolute, `s3://...`, begins with `{root}` (the storage root) or `recipe:` (a file that ships
with the recipes).
"""

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pydantic import BaseModel, Field, model_validator

from tasks.errors import ConfigError, DataError, StorageError
from tasks.storage import Storage

RECIPES_FOLDER = Path(__file__).resolve().parent.parent / "flows" / "recipes"
RECIPE_PREFIX, ROOT_PREFIX = "recipe:", "{root}"
MAX_CSV_FIELD_BYTES = 1 << 24  # a passage; Python's own limit is 128 kB

Action = Literal["drop", "cut", "report"]
Format = Literal["jsonl", "csv", "parquet"]


class EvaluationSetConfig(BaseModel, frozen=True, extra="forbid"):
    """One evaluation set: its file, its columns, and what happens to documents that hold its items."""

    path: str = Field(
        description="file: absolute, s3://..., {root}/... or recipe:name", json_schema_extra={"neutral": ""}
    )  # out of fingerprints: the file's sha256 stands in its place
    format: Format | None = Field(default=None, description="jsonl, csv or parquet; by the file's name unless given")
    question: str | None = Field(default=None, description="column of the question or context")
    answer: str | None = Field(default=None, description="column of the answer, or of all choices")
    answer_index: str | None = Field(default=None, description="column with the right choice's place")
    passage: str | None = Field(default=None, description="column of a text that questions are about")
    id: str | None = Field(default=None, description="column of the item's id; the row number unless given")
    action: Action = Field(default="drop", description="drop the document, cut the span, or report only")
    min_overlap: float = Field(default=0.5, gt=0, le=1, description="share of an item's n-grams that counts")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.question is None and self.passage is None:
            raise ValueError("name the column of the question, of the passage, or both")
        if self.answer_index is not None and self.answer is None:
            raise ValueError("answer_index needs answer: the column of the choices")
        return self


@dataclass(frozen=True)
class Item:
    """One item of a set."""

    id: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    passages: tuple[str, ...]


def read_set_file(storage: Storage, name: str, config: EvaluationSetConfig) -> bytes:
    """The bytes of a set's file. Raises ConfigError with the key's path when it is missing."""
    path = config.path
    try:
        if path.startswith(RECIPE_PREFIX):
            return (RECIPES_FOLDER / path.removeprefix(RECIPE_PREFIX)).read_bytes()
        if path.startswith(ROOT_PREFIX):
            return storage.read_bytes(path.removeprefix(ROOT_PREFIX).lstrip("/"))
        folder, _, file = path.rpartition("/")
        return Storage(folder or "/").read_bytes(file)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ConfigError, StorageError) as error:
        if isinstance(error, StorageError) and not isinstance(error.__cause__, IsADirectoryError):
            raise
        raise ConfigError(f"decontaminate.evaluation_sets.{name}.path: {path}: no such file ({error})") from error


def read_items(data: bytes, name: str, config: EvaluationSetConfig) -> list[Item]:
    """The items of a set. Raises DataError naming set and row when a row cannot be read or lacks a named column."""
    items = []
    for number, row in enumerate(_rows(data, name, config)):
        place = f"decontaminate.evaluation_sets.{name}: row {number}"
        answers = _texts(row, config.answer, place)
        if config.answer_index is not None:
            answers = _chosen(answers, _value(row, config.answer_index, place), place)
        ids = _texts(row, config.id, place)
        items.append(
            Item(
                id=ids[0] if ids else str(number),
                questions=_texts(row, config.question, place),
                answers=answers,
                passages=_texts(row, config.passage, place),
            )
        )
    return items


def format_of(config: EvaluationSetConfig, name: str) -> Format:
    """The file's format: as given, else by its name. Raises ConfigError."""
    if config.format is not None:
        return config.format
    suffixes = [suffix for suffix in Path(config.path).suffixes if suffix not in (".gz", ".zst")]
    found: dict[str, Format] = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
    if not suffixes or suffixes[-1] not in found:
        raise ConfigError(f"decontaminate.evaluation_sets.{name}.format: {config.path}: name jsonl, csv or parquet")
    return found[suffixes[-1]]


def _rows(data: bytes, name: str, config: EvaluationSetConfig) -> Iterator[dict[str, Any]]:
    kind = format_of(config, name)
    try:
        plain = _decompressed(data)
        if kind == "parquet":
            yield from pq.read_table(io.BytesIO(plain)).to_pylist()
        elif kind == "csv":
            csv.field_size_limit(MAX_CSV_FIELD_BYTES)
            yield from csv.DictReader(io.StringIO(plain.decode("utf-8-sig"), newline=""))
        else:
            yield from (orjson.loads(line) for line in plain.splitlines() if line.strip())
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error, orjson.JSONDecodeError, EOFError, OSError) as error:
        raise DataError(f"decontaminate.evaluation_sets.{name}: the file is no valid {kind}: {error}") from error


def _decompressed(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    return data


def _value(row: Any, key: str, place: str) -> Any:
    value = row
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            has = ", ".join(sorted(map(str, value))) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{place} has no column {key!r}; it has: {has}")
        value = value[step]
    return value


def _texts(row: Any, key: str | None, place: str) -> tuple[str, ...]:
    if key is None:
        return ()
    value = _value(row, key, place)
    values = value if isinstance(value, list) else [value]
    return tuple(str(text) for text in values if text is not None and str(text).strip())


def _chosen(answers: tuple[str, ...], index: Any, place: str) -> tuple[str, ...]:
    """The answer at an index given as a number (0, "0") or as a letter ("A")."""
    text = str(index).strip()
    position = int(text) if text.isdigit() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
    if not 0 <= position < len(answers):
        raise DataError(f"{place}: answer {index!r} is none of {len(answers)} choices")
    return (answers[position],)
