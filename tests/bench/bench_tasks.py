"""Task scores beside lm-evaluation-harness: the same items and model, log-likelihood by log-likelihood.

The harness (BENCH_LM_EVAL names its program) runs its own task files on the exported model; only the data set is
replaced by a local file, the one that we read as well. Real items come from ../shared/data.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.dataset import Workspace
from tasks.evaluate import EvaluateConfig, evaluate_checkpoint
from tasks.evaluate.task_items import TaskConfig, TaskName
from tasks.evaluate.task_scores import digests_of, read_all
from tasks.export import ExportConfig, export_model
from tasks.harness import VARIABLE, run_harness
from tasks.manifest import Manifest
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage
from tests.tasks.conftest import TrainedRun, train_everything

PEER = "BENCH_LM_EVAL"  # tests see none of the BASEMILL_ variables of the shell
DATA = Path(__file__).parents[3] / "shared" / "data" / "evals"
ITEMS = 100
CONTEXT = 512  # some of the items are longer, and cut
HUGE_NATS = 512  # from here on two steps of fp32, in which the harness adds up, are more than 1e-4
METRICS = ("acc", "acc_norm", "perplexity")
Rows = Iterator[dict[str, Any]]

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),  # the harness draws 100,000 samples for the error of the perplexity
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data"),
    pytest.mark.skipif(PEER not in os.environ, reason=f"{PEER} names no lm_eval"),
]


def rows_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(ITEMS), strict=False)]


def arc(name: str) -> Rows:
    for row in rows_of(f"llm-foundry/arc_{name}_test.jsonl.gz"):
        labels = list("ABCDE"[: len(row["choices"])])
        choices = {"text": row["choices"], "label": labels}
        yield {
            "question": row["query"].removeprefix("Question: "),
            "choices": choices,
            "answerKey": labels[row["gold"]],
        }


def piqa() -> Rows:
    labels = (DATA / "piqa_native" / "valid-labels.lst").read_text().split()
    for row, label in zip(rows_of("piqa_native/valid.jsonl.gz"), labels, strict=False):
        yield row | {"label": int(label)}


def hellaswag() -> Rows:
    for row in rows_of("hellaswag/hellaswag_val_olmo1k.jsonl.gz"):
        query, _, endings = row["query"].removesuffix("\nAnswer:").partition("\nChoose the best continuation:\n")
        label, _, context = query.partition(": ")
        pieces = [ending.partition(". ")[2] for ending in endings.split("\n ")]
        texts = {"endings": [f"[step] {piece}" for piece in pieces], "ctx_a": f"{context} [title]", "ctx_b": "the end"}
        yield {"activity_label": label, "label": str(row["gold"])} | texts


def lambada() -> Rows:
    for row in rows_of("llm-foundry/lambada_openai_test.jsonl.gz"):
        yield {"text": f"{row['context']} {row['continuation']}"}


TASKS: dict[TaskName, tuple[str, Callable[[], Rows]]] = {
    "arc_easy": ("arc/arc_easy.yaml", lambda: arc("easy")),
    "arc_challenge": ("arc/arc_challenge.yaml", lambda: arc("challenge")),
    "hellaswag": ("hellaswag/hellaswag.yaml", hellaswag),
    "piqa": ("piqa/piqa.yaml", piqa),
    "lambada_openai": ("lambada/lambada_openai.yaml", lambada),
}


def test_scores_equal_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, os.environ[PEER])
    trained_run = train_everything(Workspace(Storage(str(tmp_path / "lake"))), CONTEXT)
    configs = {name: write_task(tmp_path, name) for name in TASKS}
    ours = our_scores(trained_run, configs)
    theirs = their_scores(trained_run, tmp_path)
    likelihoods = our_likelihoods(trained_run.into)
    for name in TASKS:
        found, samples = likelihoods[name], theirs[f"local_{name}", "samples"]
        compared = [(found[s["doc_id"], n], float(resp[0][0])) for s in samples for n, resp in enumerate(s["resps"])]
        assert len(compared) == len(found)
        usual, huge = ([(a, b) for a, b in compared if (abs(b) >= HUGE_NATS) == is_huge] for is_huge in (False, True))
        difference = max(abs(one - other) for one, other in usual)
        steps = [abs(one - other) / float(np.spacing(np.float32(abs(other)))) for one, other in huge]
        print(
            f"task scores, {name}: {len(usual)} log-likelihoods, largest difference {difference:.2g}, target 1e-4"
            + (f"; {len(huge)} beyond -{HUGE_NATS} nats, within {max(steps):.1f} steps of fp32" if huge else "")
        )
        assert difference <= 1e-4
        assert all(step <= 2 for step in steps)
        results = theirs[f"local_{name}", "results"]
        for metric in (metric for metric in METRICS if f"{metric},none" in results):
            own, other = ours[name][metric], results[f"{metric},none"]
            errors = ours[name][f"{metric}_stderr"], results[f"{metric}_stderr,none"]
            print(f"  {metric} ours {own:.6g} ± {errors[0]:.4g}, harness {other:.6g} ± {errors[1]:.4g}")
            assert own == pytest.approx(other, rel=1e-4)


def write_task(folder: Path, name: TaskName) -> TaskConfig:
    """The items as one file, and the harness's own task over it."""
    file, (place, rows) = folder / f"{name}.jsonl", TASKS[name]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    installed = next((Path(os.environ[PEER]).parents[1] / "lib").glob("python*/site-packages/lm_eval/tasks"))
    split = "validation" if name in ("hellaswag", "piqa") else "test"
    task = {
        "include": str(installed / place), "task": f"local_{name}", "dataset_path": "json", "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file)}}, "training_split": None, f"{split}_split": split,
    }  # fmt: skip
    if split == "test":
        task["validation_split"] = None
    (folder / f"local_{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return TaskConfig(path=str(file))


def our_scores(run: TrainedRun, tasks: dict[TaskName, TaskConfig]) -> dict[str, dict[str, Any]]:
    sets = run.documents.config["evaluation_sets"]
    digests = {name: own[0] for name, own in digests_of(read_all(run.into.storage, tasks)).items()}
    cleaned = replace(
        run.documents,
        fingerprint="0" * 64,
        config=run.documents.config | {"evaluation_sets": sets | dict.fromkeys(tasks, sets["quiz"])},
        extra={"evaluation_sets": {name: {} for name in tasks}},
        external={"evaluation_sets": run.documents.external["evaluation_sets"] | digests},
    )
    config = EvaluateConfig(prompts=(), rows_per_source=1, tasks=tasks)
    scores = evaluate_checkpoint(
        run.trained, run.vocabulary, *run.held_out.values(), cleaned, into=run.into, config=config
    )
    return {line["task"]: line for line in scores.extra["tasks"]}


def our_likelihoods(into: Workspace) -> dict[str, dict[tuple[int, int], float]]:
    found: dict[str, dict[tuple[int, int], float]] = {}
    folder = Path(into.storage.path("evaluate.tasks/parts"))
    for file in folder.glob("*.json"):
        receipt = json.loads(file.read_bytes())
        for row in pq.read_table(folder / f"{receipt['key']}.parquet").to_pylist():
            found.setdefault(receipt["source"], {})[row["item"], row["choice"]] = row["log_likelihood"]
    return found


def their_scores(run: TrainedRun, folder: Path) -> dict[tuple[str, str], Any]:
    exported = export_model(run.trained, run.vocabulary, into=run.into, config=ExportConfig())
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    record.set_dataset(line_of(exported))
    names = ",".join(f"local_{name}" for name in TASKS)
    options = ["--include_path", str(folder), "--log_samples", "--batch_size", "8", "--device", "cpu"]
    found = run_harness(run.into.storage, record, names, options)
    place = f"{exported.reference}/harness/{found.created}"
    results = {(score.task, "results"): score.metrics for score in found.scores}
    samples = {}
    for name in (name for name in found.files if name.startswith("samples_")):
        task = name.removeprefix("samples_").rpartition("_")[0]
        lines = run.into.storage.read_bytes(f"{place}/{name}").splitlines()
        samples[task, "samples"] = [json.loads(line) for line in lines]
    return cast("dict[tuple[str, str], Any]", results | samples)


def line_of(manifest: Manifest) -> DatasetLine:
    return DatasetLine(
        label="export", stage="export", reference=manifest.reference, digest=manifest.digest, code="", made_by="x",
        cached=False, attempt=1, seconds=0.0,
    )  # fmt: skip
