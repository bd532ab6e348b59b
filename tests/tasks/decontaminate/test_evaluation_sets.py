"""Evaluation sets in every format; what is missing or wrong is named with its key path."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.decontaminate.evaluation_sets import EvaluationSetConfig, Item, read_items, read_set_file
from tasks.errors import ConfigError, DataError

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Who?", "choices": ["Ann", "Bob"], "gold": 1, "doc": {"text": "A passage."}},
    {"id": "b", "question": "Größe?", "choices": ["1", "2"], "gold": "A", "doc": {"text": None}},
]
ITEMS = [Item("a", ("Who?",), ("Bob",), ("A passage.",)), Item("b", ("Größe?",), ("1",), ())]
KEYS = {"id": "id", "question": "question", "answer": "choices", "answer_index": "gold", "passage": "doc.text"}


def config_of(path: str = "x.jsonl", **values: Any) -> EvaluationSetConfig:
    path = path if path.startswith(("/", "{root}", "recipe:")) else f"/{path}"
    return EvaluationSetConfig.model_validate({"path": path, **(values or KEYS)})


def jsonl(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def parquet() -> bytes:
    sink = io.BytesIO()
    rows = [row | {"gold": str(row["gold"])} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("x.jsonl", jsonl()),
        ("x.jsonl.gz", gzip.compress(jsonl())),
        ("x.jsonl.zst", zstandard.compress(jsonl())),
        ("x.jsonl.zst", zstandard.compress(jsonl()[:50]) + zstandard.compress(jsonl()[50:])),
        ("x.jsonl.gz", gzip.compress(jsonl()[:50]) + gzip.compress(jsonl()[50:])),
        ("x.parquet.gz", gzip.compress(parquet())),
        ("folder.v2/x.json", b"\n" + jsonl() + b"\n\n"),
        ("x.parquet", parquet()),
    ],
)
def test_formats_give_the_same_items(path: str, data: bytes) -> None:
    assert read_items(data, "quiz", config_of(path)) == ITEMS


def test_csv_with_a_byte_order_mark_quotes_and_a_long_field() -> None:
    data = f'\ufeffQuestion,Best Answer\r\n"Who, then?","Bob ""B"" {"x" * 200_000}"\r\n,none\r\n'.encode()
    config = config_of("quiz.csv", question="Question", answer="Best Answer")
    first, second = read_items(data, "quiz", config)
    assert (first.id, first.questions) == ("0", ("Who, then?",))
    assert first.answers[0].startswith('Bob "B" xxx')
    assert (second.id, second.questions, second.answers) == ("1", (), ("none",))


@pytest.mark.parametrize(
    ("gold", "answers"),
    [(1, ("Bob",)), ("1", ("Bob",)), (1.0, ("Bob",)), ("B", ("Bob",)), ("b", ("Bob",)), (0, ()), (2, ("Cy",)),
     (None, ("Bob", "Cy")), ("", ("Bob", "Cy")), (-1, ("Bob", "Cy"))],
)  # fmt: skip
def test_the_place_of_the_answer_counts_empty_choices_and_may_be_hidden(gold: Any, answers: tuple[str, ...]) -> None:
    data = jsonl([{"q": "Who?", "c": ["", "Bob", "Cy"], "i": gold}])
    config = config_of(question="q", answer="c", answer_index="i")
    assert read_items(data, "quiz", config) == [Item("0", ("Who?",), answers, ())]


def test_a_list_counts_as_several_texts_and_numbers_as_text() -> None:
    data = jsonl([{"q": ["One?", " ", "Two?"], "a": 54}])
    assert read_items(data, "quiz", config_of(question="q", answer="a")) == [Item("0", ("One?", "Two?"), ("54",), ())]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id": "a", "question": "Who"', r"evaluation_sets\.quiz: the file is no valid jsonl"),
        (b"\x1f\x8b\x08\x00rest", r"evaluation_sets\.quiz: the file is no valid jsonl"),
        (jsonl([{"query": 1}]), r"evaluation_sets\.quiz: row 0 has no column 'id'; it has: query"),
        (jsonl([ROWS[0], ROWS[1] | {"doc": 3}]), r"row 1 has no column 'doc\.text'; it has: int"),
        (jsonl([ROWS[0] | {"gold": 2}]), "answer '2' is none of 2 choices"),
        (jsonl([ROWS[0] | {"gold": "x1"}]), "answer 'x1' is none of 2 choices"),
        (jsonl([ROWS[0] | {"choices": "Bob"}]), "answer '1' is none of 1 choices"),
        (jsonl([ROWS[0], ROWS[1], ROWS[0]]), r"quiz\.id: 'id' is no key: 1 ids name several rows, 'a' among them"),
        (b"[1, 2]", r"row 0 has no column 'id'; it has: list"),
        (gzip.compress(jsonl())[:60], r"evaluation_sets\.quiz: the file is no valid jsonl"),
        (gzip.compress(jsonl())[:20] + b"x" * 40, r"evaluation_sets\.quiz: the file is no valid jsonl"),
        (zstandard.compress(jsonl())[:60], r"evaluation_sets\.quiz: the file is no valid jsonl"),
    ],
)
def test_a_broken_set_is_named_with_its_row(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_items(data, "quiz", config_of())


@pytest.mark.parametrize("data", [b"PAR1 no", b"\xff\xfe"])
def test_a_file_of_another_format_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError, match="no valid parquet"):
        read_items(data, "quiz", config_of("x.parquet"))
    with pytest.raises(DataError, match=r"no valid (csv|jsonl)|no column"):
        read_items(b"\xff\xfe", "quiz", config_of("x.csv"))


def test_places_of_files(workspace: Workspace, tmp_path: Path) -> None:
    workspace.storage.write_bytes("evals/quiz.jsonl", b"in the root")
    (tmp_path / "quiz.jsonl").write_bytes(b"elsewhere")
    storage = workspace.storage
    assert read_set_file(storage, "quiz", config_of("{root}/evals/quiz.jsonl")) == b"in the root"
    assert read_set_file(storage, "quiz", config_of(str(tmp_path / "quiz.jsonl"))) == b"elsewhere"
    demo = read_set_file(storage, "demo", config_of("recipe:demo_evaluation.jsonl"))
    items = read_items(demo, "demo", config_of(question="question", answer="answer", passage="passage", id="id"))
    assert 30 <= len(items) <= 50
    assert len({item.id for item in items}) == len(items)


@pytest.mark.parametrize("path", ["{root}/none.jsonl", "recipe:none.jsonl", "/no/such/none.jsonl"])
def test_a_missing_file_is_an_error_with_its_key_path(workspace: Workspace, path: str) -> None:
    with pytest.raises(ConfigError, match=r"decontaminate\.evaluation_sets\.quiz\.path: .*none\.jsonl: no such file"):
        read_set_file(workspace.storage, "quiz", config_of(path))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"answer": "a"}, "question, of the passage"),
        ({"question": "q", "answer_index": "i"}, "answer_index needs answer"),
        ({"question": "q", "action": "burn"}, "action"),
        ({"question": "q", "min_overlap": 0}, "min_overlap"),
        ({"question": "q", "prompt": "q"}, "prompt"),
        ({"question": "q", "path": "quiz.jsonl"}, "depends on the working folder"),
        ({"question": "q", "path": "./evals/quiz.jsonl"}, "depends on the working folder"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSetConfig.model_validate({"path": "/x.jsonl"} | wrong)
