"""Evaluation sets: where their files lie and what their items say.

A set is a JSONL (plain, gz, zst), CSV or Parquet file with one item per row. Keys name columns; `a.b` goes into
objects. A value may be a text, a number or a list of texts (each counts; `answer_index` names the column with the right
one's place). A path is absolute, `s3://...`, begins with `{root}` (the storage root) or `recipe:` (a file that ships
with the recipes).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from tasks.errors import DataError
from tasks.recipe_files import Format, check_path, format_of, read_recipe_file, read_rows, value_of
from tasks.storage import Storage

CANARY_SET = "(canary)"  # the set of the items that prove the search; no other may bear the name
UNKNOWN_ANSWERS = ("", "-1", "None", "nan")  # how published test splits hide their labels

Action = Literal["drop", "cut", "report"]


class EvaluationSetConfig(BaseModel, frozen=True, extra="forbid", strict=True):
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
        return check_path(value)

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
    return read_recipe_file(storage, config.path, place_of(name))


def place_of(name: str) -> str:
    """Where a set stands in the recipe."""
    return f"decontaminate.evaluation_sets.{name}"


def read_items(data: bytes, name: str, config: EvaluationSetConfig) -> list[Item]:
    """The items of a set. Raises DataError naming set and row when a row cannot be read or lacks a named column."""
    items = []
    kind = format_of(config.path, config.format, place_of(name))
    for number, row in enumerate(read_rows(data, kind, place_of(name))):
        place = f"{place_of(name)}: row {number}"
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


def _texts(row: Any, key: str | None, place: str) -> tuple[str, ...]:
    return () if key is None else _as_texts(value_of(row, key, place))


def _as_texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(str(text) for text in values if text is not None and str(text).strip())


def _answers(row: Any, config: EvaluationSetConfig, place: str) -> tuple[str, ...]:
    """The answer, the chosen one of several choices, or all of them where the set does not tell (hidden labels)."""
    if config.answer is None or config.answer_index is None:
        return _texts(row, config.answer, place)
    choices, index = value_of(row, config.answer, place), str(value_of(row, config.answer_index, place)).strip()
    if index in UNKNOWN_ANSWERS:
        return _as_texts(choices)
    number = index.removesuffix(".0")
    position = int(number) if number.isdecimal() else ord(index.upper()) - ord("A") if len(index) == 1 else -1
    if not isinstance(choices, list) or not 0 <= position < len(choices):
        raise DataError(
            f"{place}: answer {index!r} is none of {len(choices) if isinstance(choices, list) else 1} choices"
        )
    return _as_texts(choices[position])
