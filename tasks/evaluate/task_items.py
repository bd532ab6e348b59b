"""Items of evaluation tasks, read from their files in the formats in which they are published.

An item is a context, its choices and the place of the right one; each choice is scored as " " + choice after the
context. Contexts are those of lm-evaluation-harness, 0-shot (`arc_easy.yaml` and the like):

  arc_easy, arc_challenge           Question: {question}\\nAnswer:
  piqa                              Question: {goal}\\nAnswer:
  hellaswag                         {activity_label}: {ctx_a} {ctx_b, capitalised}, WikiHow's brackets taken out
  lambada_openai, lambada_standard  the passage without its last word, which is the only choice

Columns: ARC as AI2 publishes it (question.stem, question.choices [{text, label}], answerKey) or as the hub does
(question, choices {text, label}, answerKey); HellaSwag activity_label, ctx_a, ctx_b, endings, label; PIQA goal, sol1,
sol2 and label, or a file of labels; LAMBADA text (plain text too), or context and continuation. Besides, those of
llm-foundry (query, choices, gold), and OLMo's HellaSwag, in which the endings stand in the query.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from tasks.errors import DataError
from tasks.recipe_files import Format, check_path, format_of, read_recipe_file, read_rows, value_of
from tasks.storage import Storage

TaskName = Literal["arc_easy", "arc_challenge", "hellaswag", "piqa", "lambada_openai", "lambada_standard"]

OLMO_QUERY = re.compile(r"(.*?)\nChoose the best continuation:\n(.*)\nAnswer:", flags=re.DOTALL)
OLMO_ENDING = re.compile(r"(?:^|\n) [A-Z]\. ")


class TaskConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """One evaluation task: where its items are."""

    path: str = Field(
        description="file: absolute, s3://..., {root}/... or recipe:name", json_schema_extra={"neutral": ""}
    )  # out of fingerprints, like labels_path: the sha256 of the files stand in their place
    labels_path: str | None = Field(
        default=None, description="piqa: file with one label per line", json_schema_extra={"neutral": None}
    )
    format: Format | None = Field(
        default=None, description="jsonl, csv, parquet or text; by the file's name unless given"
    )
    limit: int | None = Field(default=None, ge=1, description="only the first so many items")
    evaluation_set: str | None = Field(
        default=None, description="set of decontaminate that is this file; the one of the task's name unless given"
    )

    @field_validator("path", "labels_path")
    @classmethod
    def _check_path(cls, value: str | None) -> str | None:
        return value if value is None else check_path(value)


@dataclass(frozen=True)
class TaskItem:
    """One item; `gold` is the place of the right choice."""

    context: str
    choices: tuple[str, ...]
    gold: int


def read_task_files(storage: Storage, name: TaskName, config: TaskConfig) -> list[bytes]:
    """The items' file and, where one is named, that of the labels. Raises ConfigError when one is missing."""
    files = [read_recipe_file(storage, config.path, place_of(name))]
    if config.labels_path is not None:
        files.append(read_recipe_file(storage, config.labels_path, place_of(name), "labels_path"))
    return files


def place_of(name: str) -> str:
    """Where a task stands in the recipe."""
    return f"evaluate.tasks.{name}"


def read_task(files: list[bytes], name: TaskName, config: TaskConfig) -> list[TaskItem]:
    """The items. Raises ConfigError (format) and DataError (rows), both with the key's path."""
    place = f"{place_of(name)}.path"
    rows = list(read_rows(files[0], format_of(config.path, config.format, place_of(name)), place))
    if len(files) > 1:
        rows = _with_labels(rows, files[1], name)
    if not rows:
        raise DataError(f"{place}: {config.path} has no items")
    read = READERS[name.partition("_")[0]]
    return [_checked(read, row, f"{place}: row {number}") for number, row in enumerate(rows[: config.limit])]


def _with_labels(rows: list[dict[str, Any]], data: bytes, name: str) -> list[dict[str, Any]]:
    labels = data.decode("utf-8", "replace").split()
    if name != "piqa" or len(labels) != len(rows):
        what = f"{len(labels)} labels for {len(rows)} items" if name == "piqa" else "only piqa has labels of its own"
        raise DataError(f"{place_of(name)}.labels_path: {what}")
    return [row | {"label": label} for row, label in zip(rows, labels, strict=True)]


def _checked(read: "Reader", row: dict[str, Any], place: str) -> TaskItem:
    if not isinstance(row, dict):
        raise DataError(f"{place}: {type(row).__name__}, not an object with columns")
    item = read(row, place)
    if not 0 <= item.gold < len(item.choices):
        raise DataError(f"{place}: the right one of {len(item.choices)} choices is {item.gold} (-1: no label)")
    return item


# --- one row -------------------------------------------------------------------------------------------------------

Reader = Callable[[dict[str, Any], str], TaskItem]


def _arc(row: dict[str, Any], place: str) -> TaskItem:
    if "query" in row:
        return _query_row(row, place, "\nAnswer:")
    question = value_of(row, "question", place)
    if isinstance(question, dict):
        stem, options = _text(question, "stem", place), value_of(question, "choices", place)
        if not isinstance(options, list):
            raise DataError(f"{place}: question.choices is {type(options).__name__}, not a list")
        texts, labels = ([_text(option, key, place) for option in options] for key in ("text", "label"))
    else:
        stem, texts, labels = (
            _text(row, "question", place),
            *(_texts(row, f"choices.{key}", place) for key in ("text", "label")),
        )
    answer = _text(row, "answerKey", place)
    return TaskItem(f"Question: {stem}\nAnswer:", tuple(texts), labels.index(answer) if answer in labels else -1)


def _piqa(row: dict[str, Any], place: str) -> TaskItem:
    if "query" in row:
        return _query_row(row, place, "\nAnswer:")
    goal, *solutions = (_text(row, key, place) for key in ("goal", "sol1", "sol2"))
    return TaskItem(f"Question: {goal}\nAnswer:", tuple(solutions), _place(row, "label", place))


def _hellaswag(row: dict[str, Any], place: str) -> TaskItem:
    if "query" in row:
        return _query_row(row, place, "")
    label, first, second = (_text(row, key, place) for key in ("activity_label", "ctx_a", "ctx_b"))
    endings = tuple(_without_brackets(ending) for ending in _texts(row, "endings", place))
    context = _without_brackets(f"{label}: {first} {second.capitalize()}")
    return TaskItem(context, endings, _place(row, "label", place))


def _without_brackets(text: str) -> str:
    """As the harness prepares HellaSwag: [title], [step], ... are artefacts of WikiHow."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _lambada(row: dict[str, Any], place: str) -> TaskItem:
    if "continuation" in row:
        text = f"{_text(row, 'context', place)} {_text(row, 'continuation', place)}"
    else:
        text = _text(row, "text", place)
    context, _, word = text.rpartition(" ")
    return TaskItem(context, (word,), 0)


def _query_row(row: dict[str, Any], place: str, end: str) -> TaskItem:
    """llm-foundry's rows; OLMo's, whose choices are letters, are taken apart."""
    query, choices = _text(row, "query", place), tuple(_texts(row, "choices", place))
    if not end and (match := OLMO_QUERY.fullmatch(query)):
        query, endings = match[1], tuple(OLMO_ENDING.split(match[2])[1:])
        if len(endings) != len(choices):
            raise DataError(f"{place}: {len(choices)} choices, but {len(endings)} endings in the query")
        choices = endings
    return TaskItem(f"{query.removesuffix(end and chr(10))}{end}", choices, _place(row, "gold", place))


def _text(row: Any, key: str, place: str) -> str:
    value = value_of(row, key, place)
    if not isinstance(value, str):
        raise DataError(f"{place}: {key} is {type(value).__name__}, not text")
    return value


def _texts(row: Any, key: str, place: str) -> list[str]:
    values = value_of(row, key, place)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{place}: {key} is no list of texts")
    return values


def _place(row: dict[str, Any], key: str, place: str) -> int:
    """The place of the right choice; -1 where published test splits hide it."""
    text = str(value_of(row, key, place)).strip()
    return int(text) if text.isdecimal() else -1


READERS: dict[str, Reader] = {"arc": _arc, "piqa": _piqa, "hellaswag": _hellaswag, "lambada": _lambada}


def as_lines(items: list[TaskItem]) -> Iterator[dict[str, Any]]:
    """The items as JSON values, for the parts that score them."""
    for item in items:
        yield {"context": item.context, "choices": list(item.choices), "gold": item.gold}
