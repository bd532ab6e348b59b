"""Scores of evaluation tasks, equal to lm-evaluation-harness 0.4.13 on the exported model (0-shot).

Reads a checkpoint, its tokenizer and the items of each task; a part holds 512 items, a row per choice:

  item, choice             places of the item in its task, and of the choice in the item
  chars, is_gold           length of the choice; whether it is the right one
  tokens                   of the continuation " " + choice
  log_likelihood           nats, the sum over them; null where the continuation is empty or longer than the context
  is_greedy                whether each of them was the likeliest one

acc: the choice of the highest log-likelihood is the right one; acc_norm: the same per character. LAMBADA: acc is the
share of last words that are greedy, perplexity is exp(-mean log-likelihood). Standard errors: sample deviation /
sqrt(items), of the perplexity by the delta method (the harness draws samples). Context and continuation are encoded
together and cut where the context's own ids end; spaces at its end go to the continuation. Items with a choice that
cannot be scored are left out and counted (the harness stops there).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from model.config import PhaseRun
from tasks.contamination import DECONTAMINATED
from tasks.dataset import Dataset
from tasks.errors import ConfigError, DataError
from tasks.evaluate.task_items import TaskConfig, TaskName, as_lines, read_task, read_task_files
from tasks.parts import Part, PartWriter, Unit, read_part
from tasks.storage import Storage
from tasks.trained_model import MAX_EXPONENT, TOKENIZER_FILE, context_of, load_weights, one_thread

if TYPE_CHECKING:
    from model.transformer import Transformer

ITEMS_PER_PART = 512
METRICS = ("acc", "acc_norm", "perplexity")
PASSAGES = ("lambada_openai", "lambada_standard")  # tasks of one continuation

SCHEMA = pa.schema(
    [
        pa.field("item", pa.int64(), nullable=False),
        pa.field("choice", pa.int32(), nullable=False),
        pa.field("chars", pa.int32(), nullable=False),
        pa.field("is_gold", pa.bool_(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("log_likelihood", pa.float64()),
        pa.field("is_greedy", pa.bool_()),
    ]
)
Files = dict[TaskName, list[bytes]]
Pair = tuple[list[int], list[int]]  # ids of context and continuation


def read_all(storage: Storage, tasks: Mapping[TaskName, TaskConfig]) -> Files:
    """The files of every task. Raises ConfigError with the key's path when one is missing."""
    return {name: read_task_files(storage, name, config) for name, config in tasks.items()}


def digests_of(files: Files) -> dict[str, list[str]]:
    """sha256 of the files of every task, that of the items first."""
    return {name: [hashlib.sha256(data).hexdigest() for data in own] for name, own in files.items()}


def check_tasks(storage: Storage, tasks: Mapping[TaskName, TaskConfig]) -> None:
    """Every file is there and can be read. Raises ConfigError with the key's path."""
    for name, files in read_all(storage, tasks).items():
        try:
            read_task(files, name, tasks[name])
        except DataError as error:
            raise ConfigError(str(error)) from error


def score_tasks(
    dataset: Dataset,
    tasks: Mapping[TaskName, TaskConfig],
    files: Files,
    status: Mapping[str, str],
    inputs: Sequence[Part],
) -> list[dict[str, Any]]:
    """A row per task, by name: task, status and, where that is "decontaminated", items, unscored and the scores.

    `inputs`: checkpoint and tokenizer, as files of the datasets that `dataset` has as inputs.
    """
    wanted = {
        name: read_task(files[name], name, tasks[name]) for name in sorted(tasks) if status[name] == DECONTAMINATED
    }
    trained, vocabulary = dataset.inputs["trained"], dataset.inputs["vocabulary"]
    step = dataset.step("tasks", SCHEMA, inputs={"trained": trained, "vocabulary": vocabulary})
    shared = {
        "run": trained.config,
        "context": context_of(dataset.storage, trained),
        "prefix": vocabulary.extra["special_tokens"]["bos"],
        "vocabulary": vocabulary.extra["size"],
    }
    units = [
        step.unit(
            inputs, source=name, arguments=shared | {"first": first, "items": items[first : first + ITEMS_PER_PART]}
        )
        for name, items in ((name, list(as_lines(items))) for name, items in wanted.items())
        for first in range(0, len(items), ITEMS_PER_PART)
    ]
    tables: dict[str, list[pa.Table]] = {name: [] for name in tasks}
    for receipt in step.compute(units, score_part):
        tables[receipt.part.source or ""] += read_part(dataset.storage, receipt.part)
    return [
        {"task": name, "status": status[name]}
        | (scores_of(pa.concat_tables(tables[name]), is_choice=name not in PASSAGES) if tables[name] else {})
        for name in sorted(tasks)
    ]


def score_part(unit: Unit, writer: PartWriter) -> None:
    """Log-likelihoods of all choices of some items."""
    checkpoint, tokenizer = unit.inputs
    run = PhaseRun.model_validate(unit.arguments["run"])
    encoder = PairEncoder(unit.storage.read_bytes(f"{tokenizer.stage}/{TOKENIZER_FILE}"), unit.arguments["prefix"])
    rows, pairs = [], []
    for number, item in enumerate(unit.arguments["items"], unit.arguments["first"]):
        for place, choice in enumerate(item["choices"]):
            pairs.append(encoder.encode(item["context"], f" {choice}"))
            rows.append((number, place, len(choice), place == item["gold"], len(pairs[-1][1])))
    model = load_weights(unit.storage, checkpoint.stage, run)
    scored = _likelihoods(model, pairs, unit.arguments["context"], unit.arguments["vocabulary"])
    columns = zip(*((*row, *score) for row, score in zip(rows, scored, strict=True)), strict=True)
    writer.rows_in = len(rows)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    writer.write(pa.Table.from_arrays(arrays, schema=SCHEMA))


def _likelihoods(
    model: "Transformer", pairs: list[Pair], context: int, vocabulary: int
) -> list[tuple[float, bool] | tuple[None, None]]:
    """(log-likelihood, is greedy) of each pair; two None where it cannot be scored."""
    from model.likelihood import Request, log_likelihoods  # late: torch

    fits = [0 < len(continuation) <= context for _, continuation in pairs]
    requests = [Request(*pair) for pair in compress(pairs, fits)]
    with one_thread():
        found = iter(log_likelihoods(model, requests, context=context, vocabulary=vocabulary))
    return [next(found) if is_fitting else (None, None) for is_fitting in fits]


class PairEncoder:
    """Context and continuation as ids, as the harness encodes them for a causal model."""

    def __init__(self, tokenizer_json: bytes, prefix: int) -> None:
        self.tokenizer, self.prefix = Tokenizer.from_str(tokenizer_json.decode()), prefix
        self.prefix_text = self.tokenizer.decode([prefix], skip_special_tokens=False)

    def encode(self, context: str, continuation: str) -> Pair:
        """(ids of the context, those of the continuation). Encoded as one text, and cut where the context ends."""
        spaces = context[len(context.rstrip()) :]
        context, continuation = context[: len(context) - len(spaces)], spaces + continuation
        if not context:
            ids = self._ids(continuation, with_special=False)
            return ([self.prefix], ids) if ids[:1] != [self.prefix] else (ids[:1], ids[1:])
        head = self._ids(context)
        return head, self._ids(context + continuation)[len(head) :]

    def _ids(self, text: str, with_special: bool = True) -> list[int]:
        with_special = with_special and not text.startswith(self.prefix_text)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=with_special).ids
        return ids


def scores_of(rows: pa.Table, *, is_choice: bool) -> dict[str, Any]:
    """The scores of one task from the rows of SCHEMA, in order of items. `is_choice`: False for LAMBADA."""
    numbers, likelihoods = rows["item"].to_numpy(), rows["log_likelihood"].to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    chars, is_gold = rows["chars"].to_numpy().astype(np.float64), rows["is_gold"].to_numpy()
    is_greedy = rows["is_greedy"].fill_null(False).to_numpy()
    hits: dict[str, list[float]] = {"acc": [], "acc_norm": []} if is_choice else {"acc": [], "perplexity": []}
    unscored = 0
    for item in (slice(*ends) for ends in pairwise([*begins, len(numbers)])):
        own, gold = likelihoods[item], int(np.argmax(is_gold[item]))
        if np.isnan(own).any():
            unscored += 1
        elif is_choice:
            hits["acc"].append(float(np.argmax(own) == gold))
            with np.errstate(divide="ignore", invalid="ignore"):  # an empty choice: as in the harness
                hits["acc_norm"].append(float(np.argmax(own / chars[item]) == gold))
        else:
            hits["acc"].append(float(is_greedy[item][0]))
            hits["perplexity"].append(own[0])
    scores: dict[str, Any] = {"items": len(hits["acc"]), "unscored": unscored}
    for name, values in hits.items():
        mean, error = mean_of(values)
        if name == "perplexity" and mean is not None:
            mean = math.exp(min(-mean, MAX_EXPONENT))
            error = None if error is None else error * mean  # delta method
        scores |= {name: mean, f"{name}_stderr": error}
    return scores


def mean_of(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and its standard error; None where there are too few values."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def score_text(line: Mapping[str, Any]) -> str:
    """A row of `score_tasks` for readers: `acc 0.2512 ± 0.0089, acc_norm 0.2604 ± 0.0090`, or why there is no score."""
    if line["status"] != DECONTAMINATED:
        return str(line["status"])
    texts = []
    for name in (name for name in METRICS if line.get(name) is not None):
        error = line[f"{name}_stderr"]
        texts.append(f"{name} {line[name]:.4f}" + ("" if error is None else f" ± {error:.4f}"))
    unscored = [f"{line['unscored']} items not scored: a choice is empty or longer than the context"]
    return ", ".join(texts + (unscored if line["unscored"] else []))
