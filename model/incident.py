"""The report on a roll-back: which documents were unlike the others, and whether the numbers or the data were at fault.

    <dataset>/incidents/step-00000104-1.parquet    every document of the bad steps and of healthy steps before them:
                                                   position, document (its place in the row), source, targets, loss,
                                                   score, is_suspect (of the bad steps)
                                          .json    the decision, and the numerical report on the last bad batch

`loss` is a document's mean loss under the checkpoint gone back to; `score` = (loss - median) / MAD, both of its source
in the healthy steps. The first tokens of a document are the hard ones, so that a short one has a high mean: below the
median length the MAD grows with 1 / length. The numerical report is taken before the roll-back: the largest logit,
largest activations by block, the update by block relative to its weights, and the bad batch computed again in fp32:
healthy there means the precision was at fault.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from model.batches import Batch, PackReader, rank_slice
from model.distribute import build_model, local_tensor
from model.loss import CHUNK_LOGITS, IGNORED, TokenLosses
from model.optimizer import last_update, set_step
from model.order import Ints
from model.schedule import Decision, SkipRange
from model.stability import BadStep, limit_of
from model.training import Training
from model.transformer import Transformer

CHUNK_BATCHES = 4  # micro-batches scored at once
LEAST_MAD = 1e-6  # of equal losses
SCHEMA = pa.schema(
    {
        "position": pa.int64(), "document": pa.int64(), "source": pa.string(), "targets": pa.int64(),
        "loss": pa.float64(), "score": pa.float64(), "is_suspect": pa.bool_(),
    }
)  # fmt: skip


def write_incident(training: Training, decision: Decision, positions: tuple[Ints, Ints], numbers: Any) -> None:
    """Score the documents under the weights as they are now, and write both files on rank 0. Collective."""
    with torch.compiler.set_stance("force_eager"):  # else for each number of rows that are left over
        reference, suspect = (_score(training, chosen) for chosen in positions)
    if not training.ranks.is_first:
        return
    rows = [row | {"is_suspect": False} for row in reference] + [row | {"is_suspect": True} for row in suspect]
    table = pa.Table.from_pylist(with_scores(rows), SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    prefix = incident_prefix(training.job.incidents_folder, decision)
    training.job.store.write_bytes(f"{prefix}.parquet", sink.getvalue().to_pybytes())
    report = {"decision": decision.model_dump(mode="json"), "numerical": numbers}
    training.job.store.write_bytes(f"{prefix}.json", json.dumps(report, indent=2).encode())


def incident_prefix(folder: str, decision: Decision) -> str:
    """Where the files of a decision lie, without their ending."""
    return f"{folder}/step-{decision.step:08d}-{decision.attempt}"


def positions_of(bad: list[BadStep], distance_rows: int, skips: list[SkipRange], ranks: int) -> tuple[Ints, Ints]:
    """The rows of healthy steps before the first bad one, and those from the first to the last bad one."""
    first, last = bad[0].position_from, bad[-1].position_to
    return tuple(
        _unskipped(start, stop, skips, ranks) for start, stop in ((max(0, first - distance_rows), first), (first, last))
    )  # type: ignore[return-value]


def _unskipped(start: int, stop: int, skips: list[SkipRange], ranks: int) -> Ints:
    positions = np.arange(start, stop, dtype=np.int64)
    for skip in skips:
        positions = positions[(positions < skip.start) | (positions >= skip.stop)]
    return positions[len(positions) % ranks :]  # the same number for every rank: a forward pass is collective


def _score(training: Training, positions: Ints) -> list[dict[str, Any]]:
    """One entry per document that has targets, in the order of positions, on every rank."""
    reader = PackReader(training.job.store, training.order)
    own = rank_slice(positions, training.ranks.rank, training.ranks.count)
    size = CHUNK_BATCHES * training.job.settings.micro_batch_rows
    entries: list[dict[str, Any]] = []
    for chunk in (own[start : start + size] for start in range(0, len(own), size)):
        batch = reader.read(chunk)
        sources = [training.order.packs[index].source for index in training.order.locate(chunk).source]
        for row, (nll, position) in enumerate(zip(training.measure(batch), chunk.tolist(), strict=True)):
            facts = {"position": position, "source": sources[row]}
            entries += [facts | entry for entry in _documents(batch, row, nll)]
    return [entry for of_rank in training.ranks.gather(entries) for entry in of_rank]


def _documents(batch: Batch, row: int, nll_T: Tensor) -> list[dict[str, Any]]:
    targets, starts = batch.targets_BT[row] != IGNORED, batch.document_starts[row]
    entries = []
    for document, (start, stop) in enumerate(zip(starts, [*starts[1:], len(nll_T)], strict=True)):
        if count := int(targets[start:stop].sum()):
            loss = float(nll_T[start:stop].sum()) / count
            entries.append({"document": document, "targets": count, "loss": loss})
    return entries


def with_scores(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `score`. A source without healthy documents is compared with those of all sources."""
    healthy = [row for row in rows if not row["is_suspect"]]
    scales = {}
    for source in {row["source"] for row in rows}:
        alike = [row for row in healthy if row["source"] == source] or healthy
        scales[source] = _scale(alike) if alike else (math.nan, math.nan, 0.0)
    return [row | {"score": _score_of(row, *scales[row["source"]])} for row in rows]


def _scale(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Median and median absolute deviation of the losses, median number of targets."""
    losses, targets = (np.array([row[name] for row in rows]) for name in ("loss", "targets"))
    median = float(np.median(losses))
    return median, max(float(np.median(np.abs(losses - median))), LEAST_MAD), float(np.median(targets))


def _score_of(row: dict[str, Any], median: float, mad: float, targets: float) -> float:
    return float((row["loss"] - median) / (mad * max(1.0, targets / row["targets"])))


# --- numbers -------------------------------------------------------------------------------------------------------


def numerical_report(training: Training, batch: Batch, lr: float) -> dict[str, Any]:
    """What the weights as they are now make of a bad batch. Collective."""
    with torch.compiler.set_stance("force_eager"):  # else each block would be compiled anew with its hook
        logit, largest, losses = _watched(training.model, lambda: training.measure(batch))
    targets = max(1.0, training.ranks.sum([batch.num_targets], training.device)[0])
    loss = training.ranks.sum([float(losses.sum())], training.device)[0] / targets
    replayed = _fp32_loss(training, batch, targets)
    window = training.memory.losses
    limit = limit_of(window, training.job.run.stability) if window else math.inf
    return {
        "loss": _finite(loss),
        "loss_in_fp32": _finite(replayed),
        "verdict": "numerical" if not loss <= limit and replayed <= limit else "data or model",
        "largest_logit": _finite(max(training.ranks.gather(logit))),
        "largest_activation": _by_block([max(values) for values in zip(*training.ranks.gather(largest), strict=True)]),
        "update_to_weight": _by_block(_update_ratios(training, lr)),
    }


def _watched(model: Transformer, run: Callable[[], Tensor]) -> tuple[float, list[float], Tensor]:
    """The largest |logit| and the largest |output| of each block while `run` is computed, and its result."""
    logit, outputs = [0.0], [0.0] * len(model.blocks)

    def watch(index: int) -> Any:
        def note(module: nn.Module, given: Any, output: tuple[Tensor, Any]) -> None:
            outputs[index] = max(outputs[index], _largest(output[0]))  # beside it, what a router did

        return note

    def note_logits(module: nn.Module, given: Any, x_BTD: Tensor) -> None:
        weight_VD = model.output_matrix[: model.config.vocab_size].to(x_BTD.dtype)
        for x_CD in x_BTD.flatten(0, 1).split(max(1, CHUNK_LOGITS[x_BTD.device.type] // len(weight_VD))):
            logit[0] = max(logit[0], _largest(x_CD @ weight_VD.T))

    handles = [block.register_forward_hook(watch(index)) for index, block in enumerate(model.blocks)]
    handles.append(model.norm.register_forward_hook(note_logits))  # inside the forward pass, where weights are whole
    try:
        result = run()
    finally:
        for handle in handles:
            handle.remove()
    return logit[0], outputs, result


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max().nan_to_num(nan=math.inf))


def _fp32_loss(training: Training, batch: Batch, targets: float) -> float:
    """The loss of the batch under the same weights, computed in fp32 throughout."""
    settings = training.job.settings.model_copy(update={"compile_blocks": False})
    model = build_model(training.job.run.model, "fp32", training.device, settings).eval()
    model.rope_base = training.model.rope_base
    with torch.no_grad():
        for copies, weights in ((model.parameters(), training.parameters), (model.buffers(), training.model.buffers())):
            for copy, weight in zip(copies, weights, strict=True):
                local_tensor(copy).copy_(local_tensor(weight))
        total = 0.0
        for piece in batch.micro_batches(training.job.settings.micro_batch_rows):
            ids_BT, targets_BT = piece.ids_BT.to(training.device), piece.targets_BT.to(training.device)
            losses = model(ids_BT, piece.document_starts, targets_BT, 0.0)
            assert isinstance(losses, TokenLosses)
            total += float(losses.nll_BT.sum())
    return training.ranks.sum([total], training.device)[0] / targets


def _update_ratios(training: Training, lr: float) -> list[float]:
    """|last AdamW update| / |weights| of each block; 0 before the first. `lr`: there is none yet after a load."""
    optimizer, config, ratios = training.optimizer, training.job.run.optimizer, []
    set_step(optimizer, config, lr, config.weight_decay)
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for block in training.model.blocks if training.applied else ():
        sums = [0.0, 0.0]
        for parameter in block.parameters():
            update = local_tensor(last_update(optimizer, groups[parameter], parameter))
            sums[0] += float(update.double().square().sum())
            sums[1] += float(local_tensor(parameter).detach().double().square().sum())
        updates, weights = training.ranks.sum(sums, training.device)
        ratios.append(math.sqrt(updates / weights))
    return ratios or [0.0] * len(training.model.blocks)


def _by_block(values: list[float]) -> dict[str, float | str]:
    return {f"blocks.{index}": _finite(value) for index, value in enumerate(values)}


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)
