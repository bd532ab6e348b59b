"""Evaluation sets: where their files lie and what their items say.

A set is a JSONL (plain, gz, zst), CSV or Parquet file with one item per row. Keys name columns; `a.b` goes into
objects. A value may be a text, a number or a list of texts (each counts; `answer_index` names the column with the right
one's place). A path is absolute, `s3://...`, begins with `{root}` (the storage root) or `recipe:` (a file that ships
with the recipes).
"""

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, field_validator, model_validator

from tasks.errors import ConfigError, DataError, StorageError
from tasks.storage import Storage

RECIPES_FOLDER = Path(__file__).resolve().parent.parent / "flows" / "recipes"
RECIPE_PREFIX, ROOT_PREFIX = "recipe:", "{root}"
CANARY_SET = "(canary)"  # the set of the items that prove the search; no other may bear the name
MAX_CSV_FIELD_BYTES = 1 << 24  # a passage; Python's own limit is 128 kB

UNKNOWN_ANSWERS = ("", "-1", "None", "nan")  # how published test splits hide their labels

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

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if value and not value.startswith(("/", ROOT_PREFIX, RECIPE_PREFIX)) and "://" not in value:
            raise ValueError(f"{value!r} depends on the working folder: begin it with /, s3://, {{root}}/ or recipe:")
        return value

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
        ids = _texts(row, config.id, place)
        items.append(
            Item(
                id=ids[0] if ids else str(number),
                questions=_texts(row, config.question, place),
                answers=_answers(row, config, place),
                passages=_texts(row, config.passage, place),
            )
        )
    if repeated := [name for name, times in Counter(item.id for item in items).items() if times > 1]:
        raise DataError(
            f"decontaminate.evaluation_sets.{name}.id: {config.id!r} is no key: {len(repeated)} ids name several rows, "
            f"{repeated[0]!r} among them; leave `id` out to count by row number"
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
    except (pa.ArrowException, ValueError, csv.Error, zlib.error, EOFError, OSError) as error:
        raise DataError(f"decontaminate.evaluation_sets.{name}: the file is no valid {kind}: {error}") from error


def _decompressed(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as plain:
            return bytes(plain.read())
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
    return () if key is None else _as_texts(_value(row, key, place))


def _as_texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(str(text) for text in values if text is not None and str(text).strip())


def _answers(row: Any, config: EvaluationSetConfig, place: str) -> tuple[str, ...]:
    """The answer, the chosen one of several choices, or all of them where the set does not tell (hidden labels)."""
    if config.answer is None or config.answer_index is None:
        return _texts(row, config.answer, place)
    choices, index = _value(row, config.answer, place), str(_value(row, config.answer_index, place)).strip()
    if index in UNKNOWN_ANSWERS:
        return _as_texts(choices)
    number = index.removesuffix(".0")
    position = int(number) if number.isdecimal() else ord(index.upper()) - ord("A") if len(index) == 1 else -1
    if not isinstance(choices, list) or not 0 <= position < len(choices):
        raise DataError(
            f"{place}: answer {index!r} is none of {len(choices) if isinstance(choices, list) else 1} choices"
        )
    return _as_texts(choices[position])
