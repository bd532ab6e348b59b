"""Scores of tasks: the log-likelihoods of transformers on the export, the harness's formulas, and the gate."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.contamination import status_of_file
from tasks.errors import ConfigError, NotComputed
from tasks.evaluate import EvaluateConfig, evaluate_checkpoint
from tasks.evaluate.task_items import TaskConfig, TaskName
from tasks.evaluate.task_scores import SCHEMA, PairEncoder, check_tasks, mean_of, score_text, scores_of
from tasks.export import ExportConfig, export_model
from tasks.manifest import Manifest
from tasks.storage import Storage
from tests.tasks.conftest import LENGTH, TrainedRun

LONG = "time light water stone river " * 30
ROWS: dict[TaskName, list[dict[str, Any]]] = {
    "arc_easy": [
        {"question": "time light?", "choices": {"text": ["old stone", "no"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question": f"{LONG}?", "choices": {"text": ["é東京", "x", "no"], "label": ["1", "2", "3"]}, "answerKey": "1"},
    ],
    "arc_challenge": [
        {"question": "each no", "choices": {"text": ["old", LONG], "label": ["A", "B"]}, "answerKey": "A"},  # too long
        {"question": "each no", "choices": {"text": ["old", "under"], "label": ["A", "B"]}, "answerKey": "A"},
    ],
    "hellaswag": [
        {"activity_label": "Walks", "ctx_a": "time light", "ctx_b": "", "endings": ["over", "no [] house"], "label": 1},
        {"activity_label": "Walks", "ctx_a": "time [a]", "ctx_b": "[b]", "endings": ["over", "no"], "label": "0"},
    ],
    "piqa": [{"goal": "sings", "sol1": "small old ", "sol2": "small old tree", "label": 1}],
    "lambada_openai": [{"text": "time light water stone river"}, {"text": "walks  sings"}, {"text": "time"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks(trained_run: TrainedRun) -> dict[TaskName, TaskConfig]:
    for name, rows in ROWS.items():
        data = "\n".join(json.dumps(row) for row in rows).encode()
        trained_run.into.storage.write_bytes(f"tasks/{name}.jsonl", data)
    return {name: TaskConfig(path=f"{{root}}/tasks/{name}.jsonl") for name in ROWS}


def cleaned_of(run: TrainedRun, names: list[TaskName], **sha256: str) -> Manifest:
    """The training documents as if the files of these tasks had been searched for."""
    sets = run.documents.config["evaluation_sets"]
    files = {name: hashlib.sha256(run.into.storage.read_bytes(f"tasks/{name}.jsonl")).hexdigest() for name in names}
    return dataclasses.replace(
        run.documents,
        fingerprint="0" * 64,
        config=run.documents.config | {"evaluation_sets": sets | dict.fromkeys(names, sets["quiz"])},
        extra={"evaluation_sets": {name: dict[str, Any]() for name in names}},
        external={"evaluation_sets": run.documents.external["evaluation_sets"] | files | sha256},
    )


def evaluate(run: TrainedRun, tasks: dict[TaskName, TaskConfig], *more: Manifest) -> Manifest:
    config = EvaluateConfig(prompts=(), rows_per_source=1, tasks=tasks)
    return evaluate_checkpoint(run.trained, run.vocabulary, *run.held_out.values(), *more, into=run.into, config=config)


@pytest.fixture(scope="module")
def scores(trained_run: TrainedRun, tasks: dict[TaskName, TaskConfig]) -> Manifest:
    return evaluate(trained_run, tasks, cleaned_of(trained_run, list(tasks)))


def rows_of(run: TrainedRun, task: str) -> list[dict[str, Any]]:
    folder = Path(run.into.storage.path("evaluate.tasks/parts"))
    receipts = [json.loads(file.read_bytes()) for file in folder.glob("*.json")]
    [key] = [receipt["key"] for receipt in receipts if receipt["source"] == task]
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{key}.parquet").to_pylist()
    return rows


# What the harness asks for each of ROWS: context and continuations, written out by hand from its task files
ASKED: dict[str, list[tuple[str, list[str]]]] = {
    "arc_easy": [
        ("Question: time light?\nAnswer:", [" old stone", " no"]),
        (f"Question: {LONG}?\nAnswer:", [" é東京", " x", " no"]),
    ],
    "arc_challenge": [
        ("Question: each no\nAnswer:", [" old", f" {LONG}"]),
        ("Question: each no\nAnswer:", [" old", " under"]),
    ],
    "hellaswag": [("Walks: time light", [" over", " no house"]), ("Walks: time ", [" over", " no"])],
    "piqa": [("Question: sings\nAnswer:", [" small old ", " small old tree"])],
    "lambada_openai": [("time light water stone", [" river"]), ("walks ", [" sings"]), ("", [" time"])],
}


def test_log_likelihoods_are_those_of_transformers_on_the_export(trained_run: TrainedRun, scores: Manifest) -> None:
    """One row at a time, tokens of the continuation added up one by one, nothing of ours but the exported folder."""
    exported = export_model(trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=ExportConfig())
    folder = trained_run.into.storage.path(exported.reference)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    length = model.config.max_position_embeddings
    compared = 0
    for task, asked in ASKED.items():
        found = {(row["item"], row["choice"]): row for row in rows_of(trained_run, task)}
        assert len(found) == sum(len(continuations) for _, continuations in asked)
        for item, (context, continuations) in enumerate(asked):
            for choice, continuation in enumerate(continuations):
                text, row = context.rstrip(), found[item, choice]
                head = tokenizer(text)["input_ids"] if text else [tokenizer.bos_token_id]
                whole = tokenizer(context + continuation)["input_ids"]
                ids = whole[len(head) :]
                assert row["tokens"] == len(ids)
                if len(ids) > length:
                    assert row["log_likelihood"] is None
                    continue
                given = torch.tensor([whole[-length - 1 : -1]])
                with torch.no_grad():
                    logits = model(given).logits[0].double()
                nats = [float(logits[-len(ids) + n].log_softmax(0)[token]) for n, token in enumerate(ids)]
                assert row["log_likelihood"] == pytest.approx(sum(nats), abs=1e-4)
                best = [int(logits[-len(ids) + n].argmax()) for n in range(len(ids))]
                assert row["is_greedy"] == (best == ids)
                compared += 1
    assert compared == 17


def test_what_the_manifest_says(trained_run: TrainedRun, scores: Manifest) -> None:
    lines = {line["task"]: line for line in scores.extra["tasks"]}
    assert list(lines) == sorted(ROWS)
    assert {line["status"] for line in lines.values()} == {"decontaminated"}
    assert {name: (line["items"], line["unscored"]) for name, line in lines.items()} == {
        "arc_easy": (2, 0), "arc_challenge": (1, 1), "hellaswag": (2, 0), "piqa": (1, 0), "lambada_openai": (3, 0),
    }  # fmt: skip
    for name, line in lines.items():
        assert 0 <= line["acc"] <= 1
        assert ("acc_norm" in line) == (name != "lambada_openai")
        assert (line["acc_stderr"] is None) == (line["items"] == 1)
    lambada = [row["log_likelihood"] for row in rows_of(trained_run, "lambada_openai")]
    assert lines["lambada_openai"]["perplexity"] == pytest.approx(math.exp(-np.mean(lambada)))


def test_only_what_changed_is_scored_again(
    trained_run: TrainedRun, tasks: dict[TaskName, TaskConfig], scores: Manifest
) -> None:
    cleaned = cleaned_of(trained_run, list(tasks))
    assert evaluate(trained_run, tasks, cleaned).reference == scores.reference
    dry = dataclasses.replace(trained_run, into=dataclasses.replace(trained_run.into, dry=True))
    fewer = tasks | {"piqa": tasks["piqa"].model_copy(update={"limit": 1})}
    with pytest.raises(NotComputed, match=r"tasks\.piqa\.limit: None -> 1"):
        evaluate(dry, fewer, cleaned)
    elsewhere = tasks | {
        "piqa": tasks["piqa"].model_copy(update={"path": trained_run.into.storage.path("tasks/piqa.jsonl")})
    }
    assert evaluate(dry, elsewhere, cleaned).reference == scores.reference  # the content counts, not the place


# --- the gate ------------------------------------------------------------------------------------------------------


def test_no_score_for_what_was_not_searched_for(trained_run: TrainedRun, tasks: dict[TaskName, TaskConfig]) -> None:
    some: dict[TaskName, TaskConfig] = {name: tasks[name] for name in ("piqa", "arc_easy", "arc_challenge")}
    cleaned = cleaned_of(trained_run, ["piqa", "arc_easy"], arc_easy="f" * 64)
    lines = {line.pop("task"): line for line in evaluate(trained_run, some, cleaned).extra["tasks"]}
    assert "acc" in lines.pop("piqa")
    assert lines == {
        "arc_easy": {"status": "not decontaminated (set arc_easy of stage decontaminate is another file)"},
        "arc_challenge": {"status": "not decontaminated (sources: code, web)"},
    }


def test_the_set_may_have_another_name(trained_run: TrainedRun, tasks: dict[TaskName, TaskConfig]) -> None:
    storage, file = trained_run.into.storage, "sets/quiz.jsonl"
    quiz = hashlib.sha256(storage.read_bytes(file)).hexdigest()
    assert status_of_file(storage, trained_run.trained, [], "quiz", quiz) == "decontaminated"
    assert status_of_file(storage, trained_run.trained, [], "watched", quiz).startswith("not decontaminated (sources")
    renamed: dict[TaskName, TaskConfig] = {"piqa": tasks["piqa"].model_copy(update={"evaluation_set": "quiz"})}
    [line] = evaluate(trained_run, renamed).extra["tasks"]
    assert line["status"] == "not decontaminated (set quiz of stage decontaminate is another file)"


# --- single functions ----------------------------------------------------------------------------------------------


def table(*rows: tuple[int, int, int, bool, float | None, bool | None]) -> pa.Table:
    columns = [*zip(*rows, strict=True)]
    values = [columns[0], columns[1], columns[2], columns[3], [1] * len(rows), columns[4], columns[5]]
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(values, SCHEMA, strict=True)], schema=SCHEMA)


def test_accuracy_by_likelihood_and_per_character() -> None:
    found = scores_of(
        table(
            (0, 0, 2, False, -3.0, False), (0, 1, 8, True, -4.0, False),  # per character the longer one wins
            (1, 0, 4, True, -1.0, True), (1, 1, 4, False, -1.0, True),  # a tie: the first one
            (2, 0, 4, True, None, None), (2, 1, 4, False, -1.0, True),  # cannot be scored
            (3, 0, 4, True, -9.0, True), (3, 1, 4, False, -1.0, True),
        ),
        is_choice=True,
    )  # fmt: skip
    assert (found["items"], found["unscored"]) == (3, 1)
    assert (found["acc"], found["acc_norm"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert found["acc_stderr"] == pytest.approx(np.std([0, 1, 0], ddof=1) / math.sqrt(3))


def test_lambada_counts_greedy_words_and_perplexity() -> None:
    found = scores_of(table((0, 0, 4, True, -1.0, True), (1, 0, 4, True, -3.0, False)), is_choice=False)
    assert (found["acc"], found["perplexity"]) == (0.5, pytest.approx(math.exp(2)))
    assert found["perplexity_stderr"] == pytest.approx(math.exp(2) * 1.0)  # deviation sqrt(2) / sqrt(2 items)


def test_scores_are_told_with_their_errors(scores: Manifest) -> None:
    line = {"task": "piqa", "status": "decontaminated", "items": 9, "unscored": 0, "acc": 0.25, "acc_stderr": 0.01}
    assert score_text(line | {"acc_norm": 0.5, "acc_norm_stderr": None}) == "acc 0.2500 ± 0.0100, acc_norm 0.5000"
    assert score_text(line | {"unscored": 2}).endswith(
        ", 2 items not scored: a choice is empty or longer than the context"
    )
    assert score_text({"task": "piqa", "status": "not decontaminated (x)"}) == "not decontaminated (x)"


def test_a_task_of_which_nothing_can_be_scored() -> None:
    found = scores_of(table((0, 0, 4, True, None, None)), is_choice=False)
    assert found == {
        "items": 0, "unscored": 1, "acc": None, "acc_stderr": None, "perplexity": None, "perplexity_stderr": None,
    }  # fmt: skip
    assert mean_of([2.0]) == (2.0, None)


def test_pairs_are_cut_where_the_context_ends(trained_run: TrainedRun) -> None:
    encoder = PairEncoder(trained_run.vocabulary.read_file(trained_run.into.storage, "tokenizer.json"), 0)
    encode = encoder.tokenizer.encode
    head, tail = encoder.encode("time light  ", " water")
    assert head == encode("time light").ids
    assert head + tail == encode("time light   water").ids
    assert encoder.encode("", " water") == ([0], encode(" water", add_special_tokens=False).ids)
    assert encoder.encode("   ", "x") == ([0], encode("   x", add_special_tokens=False).ids)
    bos = encoder.prefix_text
    assert encoder.encode("", f"{bos}x") == ([0], encode("x", add_special_tokens=False).ids)
    assert encoder.encode(f"{bos}time", " x")[0] == encode("time").ids  # it is not given a second one


def test_every_task_is_checked_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(json.dumps(ROWS["piqa"][0]).encode())
    storage = Storage(str(tmp_path))
    check_tasks(storage, {"piqa": TaskConfig(path="{root}/x.jsonl")})
    with pytest.raises(ConfigError, match=r"evaluate\.tasks\.arc_easy\.path: row 0 has no column 'question'"):
        check_tasks(storage, {"arc_easy": TaskConfig(path="{root}/x.jsonl")})
    assert LENGTH == 64  # LONG is longer than the context of the model
