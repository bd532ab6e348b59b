"""Items of evaluation tasks: every published format gives the harness's contexts; a wrong file names its key."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.errors import ConfigError, DataError
from tasks.evaluate.task_items import TaskConfig, TaskItem, TaskName, as_lines, read_task, read_task_files
from tasks.storage import Storage

DATA = Path(__file__).parents[4] / "shared" / "data" / "evals"
BIRDS = TaskItem("Question: Which sings?\nAnswer:", ("a stone", "a bird"), 1)
ARC_NATIVE = {
    "id": "A_1", "answerKey": "2",
    "question": {
        "stem": "Which sings?",
        "choices": [{"text": "a stone", "label": "1"}, {"text": "a bird", "label": "2"}],
    },
}  # fmt: skip
ARC_HUB = {
    "id": "A_1",
    "question": "Which sings?",
    "answerKey": "B",
    "choices": {"text": ["a stone", "a bird"], "label": ["A", "B"]},
}
QUERY = {"query": "Question: Which sings?", "choices": ["a stone", "a bird"], "gold": 1}
PIQA = {"goal": "Which sings?", "sol1": "a stone", "sol2": "a bird"}
HELLASWAG = {
    "activity_label": "Cooking", "ctx_a": "Heat [substeps] the pan. [title] Wait.", "ctx_b": "the COOK",
    "endings": ["[step] turns  it [title] Off", "leaves"], "label": 0, "ind": 4,
}  # fmt: skip


def jsonl(*rows: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def items_of(name: TaskName, data: bytes, path: str = "/x.jsonl", *more: bytes, **config: Any) -> list[TaskItem]:
    return read_task([data, *more], name, TaskConfig(path=path, **config))


@pytest.mark.parametrize("row", [ARC_NATIVE, ARC_HUB, QUERY])
@pytest.mark.parametrize("name", ["arc_easy", "arc_challenge"])
def test_arc(name: TaskName, row: dict[str, Any]) -> None:
    assert items_of(name, jsonl(row)) == [BIRDS]


def test_arc_from_a_parquet_file_of_the_hub() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([ARC_HUB, ARC_HUB]), sink)
    assert items_of("arc_easy", sink.getvalue(), "/x.parquet") == [BIRDS, BIRDS]


def test_piqa_with_its_labels_inside_or_beside() -> None:
    assert items_of("piqa", jsonl(PIQA | {"label": 1})) == [BIRDS]
    assert items_of("piqa", jsonl(PIQA, PIQA | {"sol1": "one "}), "/x.jsonl", b"1\n0\n")[1].choices[0] == "one "
    assert items_of("piqa", gzip.compress(jsonl(QUERY | {"query": "Question: Which sings?\n"})), "/x.jsonl.gz") == [
        BIRDS
    ]


def test_hellaswag_is_prepared_as_the_harness_does() -> None:
    wanted = TaskItem("Cooking: Heat the pan.. Wait. The cook", (" turns it. Off", "leaves"), 0)
    [item] = items_of("hellaswag", jsonl(HELLASWAG | {"label": "0"}))
    assert item == wanted
    olmo = "Cooking: Heat. The cook\nChoose the best continuation:\n A. turns it\n off.\n B. leaves\nAnswer:"
    [item] = items_of("hellaswag", jsonl({"query": olmo, "choices": ["A", "B"], "gold": 1}))
    assert item == TaskItem("Cooking: Heat. The cook", ("turns it\n off.", "leaves"), 1)
    foundry = {"query": "Cooking: Heat. The cook", "choices": ["turns", "leaves"], "gold": 1}
    assert items_of("hellaswag", jsonl(foundry)) == [TaskItem("Cooking: Heat. The cook", ("turns", "leaves"), 1)]


def test_lambada_splits_off_the_last_word() -> None:
    wanted = [TaskItem("the end of\nthe  old", ("river",), 0)]
    assert items_of("lambada_openai", jsonl({"text": "the end of\nthe  old river"})) == wanted
    assert items_of("lambada_openai", jsonl({"context": "the end of\nthe  old", "continuation": "river"})) == wanted
    assert items_of("lambada_standard", b"one two\r\n\nthree\n", "/x.txt") == [
        TaskItem("one", ("two",), 0),
        TaskItem("", ("three",), 0),
    ]


def test_only_the_first_items() -> None:
    items = items_of("arc_easy", jsonl(*([ARC_HUB] * 5)), limit=2)
    assert list(as_lines(items)) == 2 * [{"context": BIRDS.context, "choices": list(BIRDS.choices), "gold": 1}]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("arc_easy", PIQA, "row 0 has no column 'question'; it has: goal, sol1, sol2"),
        ("arc_easy", ARC_HUB | {"answerKey": "Z"}, r"row 0: the right one of 2 choices is -1 \(-1: no label\)"),
        ("arc_easy", QUERY | {"gold": 2}, "row 0: the right one of 2 choices is 2"),
        ("arc_easy", QUERY | {"choices": "ab"}, "row 0: choices is no list of texts"),
        ("piqa", PIQA, "row 0 has no column 'label'"),
        ("piqa", PIQA | {"label": -1}, "row 0: the right one of 2 choices is -1"),
        ("piqa", PIQA | {"sol2": 5, "label": 0}, "row 0: sol2 is int, not text"),
        ("hellaswag", HELLASWAG | {"label": ""}, "row 0: the right one of 2 choices is -1"),
        ("hellaswag", {"query": "x\nChoose the best continuation:\n A. y\nAnswer:", "choices": ["A", "B"], "gold": 0},
         "row 0: 2 choices, but 1 endings in the query"),
        ("lambada_openai", {"passage": "x"}, "row 0 has no column 'text'"),
    ],
)  # fmt: skip
def test_wrong_rows_are_named_with_their_key(name: TaskName, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^evaluate\.tasks\.{name}\.path: {message}"):
        items_of(name, jsonl(row))


@pytest.mark.parametrize("row", [b"5", b"null", b'["a"]', b'"text"'])
@pytest.mark.parametrize("name", ["arc_easy", "piqa", "hellaswag", "lambada_openai"])
def test_a_line_that_is_no_object_is_named(name: TaskName, row: bytes) -> None:
    with pytest.raises(DataError, match=rf"^evaluate\.tasks\.{name}\.path: row 0: \w+, not an object with columns"):
        items_of(name, row)


def test_wrong_files_are_named_with_their_key(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with pytest.raises(ConfigError, match=r"^evaluate\.tasks\.piqa\.path: /nowhere/x\.jsonl: no such file"):
        read_task_files(storage, "piqa", TaskConfig(path="/nowhere/x.jsonl"))
    (tmp_path / "x.jsonl").write_bytes(jsonl(PIQA))
    with pytest.raises(ConfigError, match=r"^evaluate\.tasks\.piqa\.labels_path: /nowhere/x\.lst: no such file"):
        read_task_files(storage, "piqa", TaskConfig(path="{root}/x.jsonl", labels_path="/nowhere/x.lst"))
    with pytest.raises(ConfigError, match=r"evaluate\.tasks\.piqa\.format: /x\.bin: name jsonl, csv, parquet or text"):
        items_of("piqa", b"", "/x.bin")
    with pytest.raises(DataError, match=r"evaluate\.tasks\.piqa\.path: the file is no valid jsonl"):
        items_of("piqa", b"{")
    with pytest.raises(DataError, match=r"evaluate\.tasks\.piqa\.path: /x\.jsonl has no items"):
        items_of("piqa", b"\n")
    with pytest.raises(DataError, match=r"evaluate\.tasks\.piqa\.labels_path: 1 labels for 2 items"):
        items_of("piqa", jsonl(PIQA, PIQA), "/x.jsonl", b"1\n")
    with pytest.raises(DataError, match=r"evaluate\.tasks\.arc_easy\.labels_path: only piqa has labels of its own"):
        items_of("arc_easy", jsonl(ARC_HUB), "/x.jsonl", b"1\n")
    with pytest.raises(ValidationError, match="depends on the working folder"):
        TaskConfig(path="x.jsonl")


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    ("name", "files", "count"),
    [
        ("arc_easy", ["llm-foundry/arc_easy_test.jsonl.gz"], 2376),
        ("arc_challenge", ["llm-foundry/arc_challenge_test.jsonl.gz"], 1172),
        ("piqa", ["llm-foundry/piqa_valid.jsonl.gz"], 1838),
        ("piqa", ["piqa_native/valid.jsonl.gz", "piqa_native/valid-labels.lst"], 1838),
        ("hellaswag", ["hellaswag/hellaswag_val_olmo1k.jsonl.gz"], 1000),
        ("lambada_openai", ["llm-foundry/lambada_openai_test.jsonl.gz"], 5153),
    ],
)
def test_published_files_are_read_whole(name: TaskName, files: list[str], count: int) -> None:
    paths = [str(DATA / file) for file in files]
    config = TaskConfig(path=paths[0], labels_path=paths[1] if len(paths) > 1 else None)
    items = read_task(read_task_files(Storage("/"), name, config), name, config)
    assert len(items) == count
    assert all(item.context and all(choice.strip() for choice in item.choices) for item in items)
    assert {len(item.choices) for item in items} <= {1, 2, 3, 4, 5}
