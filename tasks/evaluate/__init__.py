"""evaluate: a trained phase, held-out rows, task files -> losses per source, scores of tasks, samples of text.

Reads the last checkpoint, the tokenizer and the held-out packs; one part per pack part, a row per pack row:

  row                  its place in the pack part
  tokens, bytes        targets that stand for text, and the bytes of text that they stand for
  nats_before, _after  sum of their losses under the first weights (step 0) and under the trained ones

Bits per byte = nats / (ln 2 x bytes): comparable between tokenizers. Bytes come from the vocabulary's own table, as
decoding single tokens would break characters; special tokens stand for no bytes and are left out of both sums. Worked:
ln(4,096) = 8.3 nats per token at 2.9 bytes per token are 4.1 bits per byte, a model that guesses.

Tasks: see task_items.py (formats) and task_scores.py. An evaluation set is told as "decontaminated" only if
every source of every phase was searched for it and cleaned; otherwise "not decontaminated" stands in the place of its
scores. Computed in fp32, whatever the training did.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field

from model.config import PhaseRun
from tasks.config import Several
from tasks.contamination import ancestors, status_of_file, status_of_sets
from tasks.dataset import Dataset, Workspace
from tasks.evaluate.task_items import TaskConfig, TaskName
from tasks.evaluate.task_scores import digests_of, read_all, score_tasks
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Receipt, Unit, read_part
from tasks.storage import Storage
from tasks.trained_model import (
    CHECKPOINT_FILE,
    MAX_EXPONENT,
    TOKENIZER_FILE,
    SamplingConfig,
    check_vocabulary,
    context_of,
    continue_text,
    first_weights,
    load_weights,
    one_thread,
)

RESULT_PACKAGES = ("torch",)
BYTES_FILE = "token_bytes.json"  # of a vocabulary
TOKENS_PER_FORWARD = 4096  # one core works at full speed, and logits of 4,096 entries take 67 MB
ALL_SOURCES = "all"

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("nats_before", pa.float64(), nullable=False),
        pa.field("nats_after", pa.float64(), nullable=False),
    ]
)
SUMS = ("tokens", "bytes", "nats_before", "nats_after")
HELD_OUT = "held_out:"  # begins the role of a pack among the inputs
SAMPLE_SCHEMA = pa.schema([pa.field("prompt", pa.string()), pa.field("text", pa.large_string())])


class EvaluateConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """What is measured."""

    rows_per_source: int = Field(
        default=2048, ge=1, description="held-out rows measured, spread over a source's parts; all if there are fewer"
    )
    evaluation_sets: Several[str] = Field(
        default=(), description="sets to report on beside those that decontamination knew"
    )
    tasks: dict[TaskName, TaskConfig] = Field(
        default={},
        description="tasks to score: name as in lm-evaluation-harness -> file",
        json_schema_extra={"neutral": {}},
    )
    prompts: Several[str] = Field(default=("The ", "def "), description="beginnings of the sampled texts")
    sampling: SamplingConfig = SamplingConfig()


def evaluate_checkpoint(*datasets: Manifest, into: Workspace, config: EvaluateConfig) -> Manifest:
    """The losses. `datasets`: one trained phase, its vocabulary, held-out packs, and (optional) the documents of stage
    decontaminate that speak for the training data: where theirs are equal, their newer report counts.

    `extra`: losses (a row per source and one for all: tokens, bytes, nats per token, bits per byte, perplexity, each
    before and after), tasks (a row per task: status, scores), evaluation_sets {name: status}, samples [{prompt, text}].
    """
    [trained] = [manifest for manifest in datasets if manifest.stage == "train"]
    [vocabulary] = [manifest for manifest in datasets if manifest.stage == "vocabulary"]
    packs = {m.config["request"]["source"]: m for m in datasets if m.stage == "pack"}
    newer = [manifest for manifest in datasets if manifest.stage == "decontaminate"]
    inputs = {"trained": trained, "vocabulary": vocabulary} | {HELD_OUT + name: m for name, m in packs.items()}
    known: dict[str, Any] = {}
    if newer:
        known["decontaminated"] = {m.digest: sorted(m.extra["evaluation_sets"]) for m in newer}
    if files := read_all(into.storage, config.tasks):
        known["tasks"] = digests_of(files)
    own, tasks = _without_paths(config), config.tasks
    dataset = into.dataset("evaluate", own, inputs=inputs, module=__name__, schema=SCHEMA, external=known)
    if found := dataset.find():
        return found
    check_vocabulary(PhaseRun.model_validate(trained.config).model, vocabulary.extra["size"])
    with dataset.lease():
        start = imported_weights(into.storage, trained)
        wanted = rows_of_parts(packs, config.rows_per_source)
        units = [_unit(dataset, part, {"rows": rows} | start) for part, rows in wanted]
        receipts = dataset.compute(units, measure_part)
        samples = _sample(dataset)
        status = {
            name: status_of_file(into.storage, trained, newer, tasks[name].evaluation_set or name, digests[0])
            for name, digests in known.get("tasks", {}).items()
        }
        parts = [_file(trained, CHECKPOINT_FILE), _file(vocabulary, TOKENIZER_FILE)]
        return dataset.publish(
            receipts,
            extra={
                "losses": losses_by_source(receipts),
                "tasks": score_tasks(dataset, tasks, files, status, parts),
                "evaluation_sets": status_of_sets(into.storage, trained, newer, config.evaluation_sets),
                "samples": samples,
            },
        )


def _without_paths(config: EvaluateConfig) -> EvaluateConfig:
    """The config as it decides the result: the content of a file counts, not its place."""
    no_paths = {"path": "", "labels_path": None}
    tasks = {name: task.model_copy(update=no_paths) for name, task in config.tasks.items()}
    return config.model_copy(update={"tasks": tasks})


def imported_weights(storage: Storage, trained: Manifest) -> dict[str, str]:
    """{"imported": reference} where training began with weights that were there; else nothing, they are drawn anew."""
    found = [manifest.reference for manifest in ancestors(storage, trained) if manifest.stage in ("import", "fork")]
    return {"imported": found[0]} if found else {}


def rows_of_parts(packs: dict[str, Manifest], rows_per_source: int) -> Iterator[tuple[Part, int]]:
    """How many rows to measure of each part: as many of the first ones as its share of the source asks for."""
    for _, pack in sorted(packs.items()):
        total = sum(part.rows or 0 for part in pack.parts)
        wanted, seen = min(rows_per_source, total), 0
        for part in pack.parts:
            before, seen = seen * wanted // max(total, 1), seen + (part.rows or 0)
            if rows := seen * wanted // max(total, 1) - before:
                yield part, rows


def measure_part(unit: Unit, writer: PartWriter) -> None:
    """Losses of the first rows of a pack part, under the first and the trained weights."""
    import torch

    checkpoint, token_bytes, pack = unit.inputs
    run = PhaseRun.model_validate(unit.arguments["run"])
    sizes = torch.tensor(unit.storage.read_json(f"{token_bytes.stage}/{BYTES_FILE}"), dtype=torch.int64)
    start = unit.arguments.get("imported")
    before = first_weights(run) if start is None else load_weights(unit.storage, start, run)
    models = before, load_weights(unit.storage, checkpoint.stage, run)
    left, first = unit.arguments["rows"], 0
    with one_thread():
        for group in read_part(unit.storage, pack, ["input_ids", "document_starts", "num_tokens"]):
            rows = group.slice(0, left)
            writer.rows_in += rows.num_rows
            measured = measure_rows(rows, models, sizes, first)
            writer.write(measured)
            for name in SUMS:
                writer.extra[name] = writer.extra.get(name, 0) + sum(measured[name].to_pylist())
            left, first = left - rows.num_rows, first + group.num_rows
            if not left:
                break


def measure_rows(rows: pa.Table, models: Sequence[Any], sizes: Any, first: int) -> pa.Table:
    """A line of SCHEMA per row of a pack; `models`: before, after; `sizes`: bytes of each token (a tensor)."""
    import torch

    from model.batches import targets_of

    ids = rows["input_ids"].combine_chunks().flatten().to_numpy().astype(np.int64).reshape(rows.num_rows, -1)
    starts = rows["document_starts"].to_pylist()
    targets = torch.from_numpy(targets_of(ids, starts, rows["num_tokens"].to_numpy()))
    bytes_BT = sizes[targets.clamp(min=0)] * (targets >= 0)
    targets = targets.where(bytes_BT > 0, -100)  # a special token is no text
    columns: list[list[float]] = [[], []]
    step = max(1, TOKENS_PER_FORWARD // ids.shape[1])
    for start in range(0, rows.num_rows, step):
        piece = slice(start, start + step)
        for model, column in zip(models, columns, strict=True):
            with torch.no_grad():
                losses = model(torch.from_numpy(ids[piece]), starts[piece], targets[piece])
            column += losses.nll_BT.double().sum(1).tolist()
    counts = [(targets >= 0).sum(1).tolist(), bytes_BT.sum(1).tolist()]
    return pa.Table.from_arrays(
        [pa.array(column) for column in ([*range(first, first + rows.num_rows)], *counts, *columns)], schema=SCHEMA
    )


def sample_part(unit: Unit, writer: PartWriter) -> None:
    """Text after each prompt, as the trained model continues it."""
    checkpoint, tokenizer = unit.inputs
    assert isinstance(unit.config, EvaluateConfig)
    run = PhaseRun.model_validate(unit.arguments["run"])
    model = load_weights(unit.storage, checkpoint.stage, run)
    data = unit.storage.read_bytes(f"{tokenizer.stage}/{TOKENIZER_FILE}")
    with one_thread():
        texts = [
            continue_text(model, data, prompt, unit.config.sampling, context=unit.arguments["context"])
            for prompt in unit.config.prompts
        ]
    writer.write(pa.table([list(unit.config.prompts), texts], schema=SAMPLE_SCHEMA))


def losses_by_source(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """A row per source in order of name, then one over all of them (each token counts alike)."""
    sums: dict[str, dict[str, float]] = {}
    for receipt in receipts:
        for name in (receipt.part.source or "", ALL_SOURCES):
            total = sums.setdefault(name, dict.fromkeys(SUMS, 0))
            for key in SUMS:
                total[key] += receipt.extra.get(key, 0)
    order = sorted(sums, key=lambda name: (name == ALL_SOURCES, name))
    return [{"source": name, **losses_of(**sums[name])} for name in order]


def losses_of(tokens: float, bytes: float, nats_before: float, nats_after: float) -> dict[str, Any]:
    """The figures of one source from its sums; null where no text was held out."""
    row: dict[str, Any] = {"tokens": int(tokens), "bytes": int(bytes)}
    for when, nats in (("before", nats_before), ("after", nats_after)):
        mean = nats / tokens if tokens else None
        row[f"nats_{when}"] = mean
        row[f"bits_per_byte_{when}"] = nats / (math.log(2) * bytes) if bytes else None
        row[f"perplexity_{when}"] = math.exp(min(mean, MAX_EXPONENT)) if mean is not None else None
    return row


def _unit(dataset: Dataset, pack: Part, arguments: dict[str, Any]) -> Unit:
    trained, vocabulary = dataset.inputs["trained"], dataset.inputs["vocabulary"]
    files = [_file(trained, CHECKPOINT_FILE), _file(vocabulary, BYTES_FILE)]
    return dataset.unit([*files, pack], source=pack.source, arguments=arguments | {"run": trained.config})


def _sample(dataset: Dataset) -> list[dict[str, str]]:
    trained, vocabulary = dataset.inputs["trained"], dataset.inputs["vocabulary"]
    step = dataset.step("samples", SAMPLE_SCHEMA, inputs={"trained": trained, "vocabulary": vocabulary})
    files = [_file(trained, CHECKPOINT_FILE), _file(vocabulary, TOKENIZER_FILE)]
    arguments = {"run": trained.config, "context": context_of(dataset.storage, trained)}
    unit = step.unit(files, config=dataset.config, arguments=arguments)
    [receipt] = step.compute([unit], sample_part)
    return [row for table in read_part(dataset.storage, receipt.part) for row in table.to_pylist()]


def _file(manifest: Manifest, name: str) -> Part:
    """A file of a dataset as the input of a unit: it lies in `stage`, and its content alone counts in the key."""
    [part] = [part for part in manifest.parts if part.key == name]
    return replace(part, stage=manifest.reference)
