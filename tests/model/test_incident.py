"""Trouble planted in real packs: found, rolled back, told, and decided the same again."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch._dynamo.utils import counters

from model.architecture import ModelConfig
from model.attention import lay_out
from model.batches import Batch, PackReader
from model.checkpoint import load_weights
from model.checkpoint_files import read_metrics, read_state, step_key
from model.config import PhaseRun
from model.incident import LEAST_MAD, SCHEMA, numerical_report, with_scores, write_incident
from model.job import EXACT_METRICS, Job, Settings, order_of
from model.order import GROUP_ROWS
from model.ranks import Ranks
from model.schedule import Decision
from model.stability import Memory
from model.trainer import train
from model.training import Training
from model.transformer import Transformer
from tasks.storage import Storage

WORKER = Path(__file__).with_name("train_worker.py")
LENGTH, ROWS, STEPS = 64, 8, 112
JUDGED_TARGETS = 4  # a piece of a document shorter than that says nothing by its mean
FIRST, RARE = 64, 255  # the first poisoned step; an id that no other row holds
KILL = 32  # the write of rank 0 at which it is killed: in a checkpoint after it went back
MODEL = ModelConfig.of_size("tiny", num_layers=1, width=32, num_heads=2, num_kv_heads=1, mlp_width=64, vocab_size=256)
STABILITY = {
    "window_steps": 32, "min_window_steps": 16, "distance_steps": 8, "calm_steps": 20, "checkpoint_steps": 10,
}  # fmt: skip


@pytest.fixture
def make_job(store: Storage, make_pack: Any, tmp_path: Path) -> Any:
    packs = (
        make_pack("web", [1100, 1300], length=LENGTH, shortest=20),
        make_pack("code", [800], length=LENGTH, shortest=20),
    )  # no row is read twice
    held_out = tuple(
        make_pack(name, [24], file=f"{name}-held-out", length=LENGTH, shortest=20) for name in ("web", "code")
    )
    (tmp_path / "scratch").mkdir()

    def make(
        folder: str = "train/x",
        attempt: str = "a1",
        stability: dict[str, Any] | None = None,
        steps: int = STEPS,
        **job: Any,
    ) -> Job:
        phase = {
            "name": "main", "tokens": steps * ROWS * LENGTH, "weights": {"web": 3, "code": 1}, "batch": ROWS,
            "sequence_length": LENGTH, "schedule": {"lr": 1e-2, "warmup_tokens": 1024},
        }  # fmt: skip
        run = PhaseRun.model_validate(
            {
                "model": MODEL,
                "phase": phase,
                "precision": "fp32",
                "stability": STABILITY if stability is None else stability,
            }
        )
        settings = Settings(checkpoint_steps=1000, threads=1, micro_batch_rows=8)
        scratch = str(tmp_path / "scratch")
        return Job(run, packs, store, folder, attempt, scratch, settings, held_out=held_out, **job)

    return make


def poison(job: Job, steps: range, rows_of_step: slice = slice(0, ROWS // 2)) -> set[tuple[str, int]]:
    """Write one rare id all over rows that these steps (counted from 1) read; returns them as (pack part, row).

    Random ids would raise the loss, but not the gradient norm: their gradients cancel.
    """
    positions = np.concatenate([np.arange((s - 1) * ROWS, s * ROWS)[rows_of_step] for s in steps])
    refs = order_of(job.run, job.packs, {}).rows_of_positions(positions)
    for key in {ref.part_key for ref in refs}:
        path = job.store.path(key)  # type: ignore[attr-defined]
        table = pq.read_table(path)
        ids = table["input_ids"].combine_chunks().flatten().to_numpy().reshape(-1, LENGTH).copy()
        for ref in refs:
            if ref.part_key == key:
                ids[ref.row] = RARE
        column = pa.FixedSizeListArray.from_arrays(pa.array(ids.reshape(-1)), LENGTH)
        table = table.set_column(table.column_names.index("input_ids"), "input_ids", column)
        pq.write_table(table, path, row_group_size=GROUP_ROWS, write_page_checksum=True)
    return {(ref.part_key, ref.row) for ref in refs}


def last_key(job: Job) -> str:
    return step_key(job.checkpoints_folder, job.run.phase.tokens // (ROWS * LENGTH))


def decisions_of(job: Job) -> list[tuple[Any, ...]]:
    state = read_state(job.store, last_key(job))
    return [(d.kind, d.step, d.attempt) for d in state.events.decisions]


def metrics_of(job: Job) -> pa.Table:
    return read_metrics(job.store, last_key(job)).select(EXACT_METRICS)


def test_poison_is_passed_over_and_named(make_job: Any) -> None:
    check_poison(make_job(steps=140), 90, 0.1)  # late enough for what is lost to be made up for


@pytest.mark.chaos
def test_poison_with_the_usual_settings_costs_less_than_two_percent(make_job: Any, make_pack: Any) -> None:
    job = make_job(steps=1500, stability={"checkpoint_steps": 50})
    packs = (
        make_pack("web", [11_000], file="long-web", length=LENGTH, shortest=20),
        make_pack("code", [4_000], file="long-code", length=LENGTH, shortest=20),
    )
    check_poison(replace(job, packs=packs), 600, 0.02)


def check_poison(job: Job, first: int, tolerance: float) -> None:
    """30 steps in which half the rows are poison: found at once, passed over, named, and the run ends as well."""
    clean = replace(job, folder="train/clean")
    train(clean)
    wanted = np.mean(metrics_of(clean)["loss"].to_pylist()[-50:])
    poisoned = poison(job, range(first, first + 30))
    assert train(job).status == "finished"
    decisions = decisions_of(job)
    assert [(kind, attempt) for kind, _, attempt in decisions] == [("roll back", 1), ("roll back", 2), ("roll back", 3)]
    assert decisions[0][1] <= first + 4  # found within five steps
    config = job.run.stability
    for decision in read_state(job.store, last_key(job)).events.decisions:
        latest = decision.bad_steps[0] - config.distance_steps
        assert decision.to_step == latest // config.checkpoint_steps * config.checkpoint_steps
    metrics = metrics_of(job)
    assert np.mean(metrics["loss"].to_pylist()[-50:]) <= wanted * (1 + tolerance)
    assert sum(metrics["rows"].to_pylist()) == metrics.num_rows * ROWS

    order, tables = order_of(job.run, job.packs, {}), []
    for _, step, attempt in decisions:
        prefix = f"{job.incidents_folder}/step-{step:08d}-{attempt}"
        table = pq.read_table(pa.BufferReader(job.store.read_bytes(f"{prefix}.parquet")))
        assert table.schema == SCHEMA
        tables.append(table)
        report = json.loads(job.store.read_bytes(f"{prefix}.json"))
        assert report["decision"]["step"] == step
        assert report["numerical"]["verdict"] == "data or model"
        assert set(report["numerical"]["update_to_weight"]) == {"blocks.0"}
        assert 1 < report["numerical"]["largest_logit"] < 100
    rows = pa.concat_tables(tables)
    rows = [row for row in rows.filter(rows["is_suspect"]).to_pylist() if row["targets"] >= JUDGED_TARGETS]
    refs = order.rows_of_positions(np.array([row["position"] for row in rows]))
    truth = [(ref.part_key, ref.row) in poisoned for ref in refs]
    named = [row["score"] > 6 for row in rows]
    hits = sum(a and b for a, b in zip(truth, named, strict=True))
    assert hits / sum(truth) >= 0.95
    assert hits / sum(named) >= 0.95


def test_a_kill_after_a_roll_back_decides_the_same_again(make_job: Any, rank_processes: Any) -> None:
    job = make_job()
    poison(job, range(FIRST, FIRST + 12))
    straight = replace(job, folder="train/straight")
    rank_processes.run(WORKER, 2, JOB=straight)
    assert len(decisions_of(straight)) >= 1
    rank_processes.run_until_killed(WORKER, 2, JOB=replace(job, attempt="a2"), KILL_AT={0: KILL})
    assert job.store.list_files(job.incidents_folder)  # it had gone back
    rank_processes.run(WORKER, 2, JOB=replace(job, attempt="a3"))
    assert decisions_of(job) == decisions_of(straight)
    assert metrics_of(job).equals(metrics_of(straight))


def test_a_new_level_inside_a_phase_is_accepted_after_the_last_attempt(make_job: Any) -> None:
    job = make_job(stability=STABILITY | {"margin_steps": (1, 1, 1, 1)})
    poison(job, range(FIRST, STEPS + 60), slice(0, ROWS))
    assert train(job).status == "finished"
    kinds = [(kind, attempt) for kind, _, attempt in decisions_of(job)]
    assert kinds == [*(("roll back", attempt) for attempt in (1, 2, 3, 4)), ("level shift", 0)]


def test_a_new_level_at_a_phase_boundary_is_no_trouble(make_job: Any) -> None:
    parent = make_job(steps=FIRST)
    poison(parent, range(FIRST + 1, 2 * FIRST + 40), slice(0, ROWS))  # what the next phase reads
    train(parent)
    child = make_job(folder="train/child", parent=last_key(parent), steps=FIRST)
    assert train(child).status == "finished"
    assert decisions_of(parent) == decisions_of(child) == []
    assert set(metrics_of(child)["action"].to_pylist()) == {"apply"}


def test_trouble_without_attempts_halts_with_a_report(make_job: Any) -> None:
    job = make_job(stability=STABILITY | {"margin_steps": ()})
    poison(job, range(FIRST, FIRST + 30))
    assert train(job).status == "halted"
    report = json.loads(job.store.read_bytes(job.halted_key))
    assert report["step"] <= FIRST + 4
    assert report["reason"].startswith("more than 3 bad steps within 10 after 0 roll-backs; the last one, step 6")
    assert report["bad_steps"] == list(range(FIRST, report["step"] + 1))


def test_trouble_in_the_first_steps_goes_back_to_the_beginning(make_job: Any, rank_processes: Any) -> None:
    job = make_job()
    rank_processes.run(WORKER, 1, JOB=job, POISON={0: dict.fromkeys((2, 3, 4, 5), math.inf)})
    [(kind, step, attempt)] = decisions_of(job)
    assert (kind, step, attempt) == ("roll back", 5, 1)
    state = read_state(job.store, step_key(job.checkpoints_folder, STEPS))
    assert state.events.decisions[0].to_step == 0
    assert metrics_of(job)["position_to"].to_pylist()[:2] == [8, 5 * 8 + 5 * 8 + 8]


def test_numbers_of_a_batch_are_those_of_the_model(make_job: Any) -> None:
    """In chunks, since whole logits of long rows would not fit; the update is the way that the weights went."""
    job = make_job(steps=2)
    model = job.run.model.model_copy(update={"vocab_size": 250, "num_layers": 2})
    job = replace(job, run=job.run.model_copy(update={"model": model}))
    settings = job.settings.model_copy(update={"checkpoint_steps": 1})
    train(replace(job, settings=settings))
    before = load_weights(job.store, step_key(job.checkpoints_folder, 1))[0]
    exact_lr = read_metrics(job.store, step_key(job.checkpoints_folder, 2))["lr"][1].as_py()
    training = Training(job, Ranks())
    batch = training.held_out.batches["web"]
    report = numerical_report(training, batch, exact_lr)
    with torch.no_grad():
        assert report["largest_logit"] == pytest.approx(float(training.model(*batch_of(batch)).abs().max()), rel=1e-5)
    assert report["loss"] == pytest.approx(float(training.measure(batch).sum()) / batch.num_targets, rel=1e-6)
    assert report["loss_in_fp32"] == pytest.approx(report["loss"], rel=1e-6)
    outputs = outputs_of(training.model, batch)
    assert list(report["largest_activation"].values()) == [pytest.approx(float(x.abs().max())) for x in outputs]
    for layer, block in enumerate(training.model.blocks):
        ways, sizes = 0.0, 0.0
        for name, weight in block.named_parameters():
            ways += float((weight.detach() - before[f"blocks.{layer}.{name}"]).double().square().sum())
            sizes += float(weight.detach().double().square().sum())
        assert report["update_to_weight"][f"blocks.{layer}"] == pytest.approx(math.sqrt(ways / sizes), rel=1e-4)


def test_a_batch_that_is_healthy_in_fp32_was_numerical_trouble(make_job: Any) -> None:
    """Large weights, so that bf16 rounds the loss of some row up; a limit between the two losses tells them apart."""
    job = make_job()
    training = Training(replace(job, run=job.run.model_copy(update={"precision": "bf16"})), Ranks())
    with torch.no_grad():
        for weight in training.parameters:
            weight.mul_(10)
    reader = PackReader(job.store, training.order)
    reports = ((row, numerical_report(training, reader.read(np.array([row])), 0.0)) for row in range(50))
    row, found = next((row, report) for row, report in reports if report["loss"] > report["loss_in_fp32"] + 1e-3)
    assert found["verdict"] == "data or model"  # nothing to compare with yet
    between, below = (found["loss"] + found["loss_in_fp32"]) / 2, found["loss_in_fp32"] - 5e-4
    for limit, verdict in ((between, "numerical"), (below, "data or model")):
        mean = limit / (1 + 6 * 0.02)  # equal losses: their deviation counts as 2 %
        training.memory = Memory(losses=(mean,) * 64)
        assert numerical_report(training, reader.read(np.array([row])), 0.0)["verdict"] == verdict


def test_nothing_is_compiled_for_a_report(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block with its hook, and each number of rows, would be another graph: minutes amid a training."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    job = make_job()
    job = replace(job, settings=job.settings.model_copy(update={"compile_blocks": True}))
    training = Training(job, Ranks())
    training.measure(training.probe)
    counters.clear()
    batch = PackReader(job.store, training.order).read(np.arange(ROWS))
    numbers = numerical_report(training, batch, 1e-3)
    decision = Decision(kind="roll back", step=9, bad_steps=(9,), to_step=0, attempt=1)
    write_incident(training, decision, (np.arange(5), np.arange(5, 8)), numbers)
    assert counters["stats"]["unique_graphs"] == 0
    assert json.loads(job.store.read_bytes(f"{job.incidents_folder}/step-00000009-1.json"))["numerical"] == numbers
    training.measure(batch)
    assert counters["stats"]["unique_graphs"] == 1  # as it would have been


def outputs_of(model: Transformer, batch: Batch) -> list[torch.Tensor]:
    """Of each block."""
    layout = lay_out(batch.document_starts, batch.ids_BT, torch.float32)
    outputs = []
    with torch.no_grad():
        x_BTD, turns = model._embed(batch.ids_BT, layout.positions_BT)
        for block in model.blocks:
            x_BTD, _ = block(x_BTD, turns, layout)
            outputs.append(x_BTD)
    return outputs


def batch_of(batch: Batch) -> tuple[torch.Tensor, list[list[int]]]:
    return batch.ids_BT, batch.document_starts


def row(source: str, targets: int, loss: float, suspect: bool = False) -> dict[str, Any]:
    return {"source": source, "targets": targets, "loss": loss, "is_suspect": suspect}


def test_scores_are_deviations_from_the_healthy_median_of_the_source() -> None:
    rows = [row("web", 9, 2.0), row("web", 9, 3.0), row("web", 9, 5.0), row("web", 9, 9.0, True)]
    rows += [row("code", 9, 4.0, True), row("web", 9, 3.0, True)]
    assert [scored["score"] for scored in with_scores(rows)] == [-1.0, 0.0, 2.0, 6.0, 1.0, 0.0]


def test_short_documents_may_differ_more() -> None:
    healthy = [row("web", 30, 2.0), row("web", 30, 3.0), row("web", 30, 4.0)]
    scored = with_scores([*healthy, row("web", 30, 9.0, True), row("web", 60, 9.0, True), row("web", 3, 9.0, True)])
    assert [entry["score"] for entry in scored[3:]] == [6.0, 6.0, pytest.approx(0.6)]


def test_equal_losses_have_a_least_deviation() -> None:
    scored = with_scores([row("web", 9, 2.0), row("web", 9, 2.0), row("web", 9, 3.0, True)])
    assert scored[2]["score"] == pytest.approx(1 / LEAST_MAD)
