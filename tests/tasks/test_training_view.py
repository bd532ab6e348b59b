"""The loss curve with its marks, and what the model wrote, from a real training and its live view."""

import json
import re
from dataclasses import replace
from html import unescape

import pyarrow as pa

from model.job import Settings
from tasks.report import _written_page, dashboard_pages
from tasks.runs import DatasetLine, RunRecord
from tasks.train import train_phase
from tasks.training_view import SHOWN_SAMPLES, loss_chart, read_decisions, read_training, read_written
from tests.tasks.conftest import TrainedRun, phase_run

RUN = "20260104-000000-dddd"


def metrics_of(*phases: tuple[str, list[str]]) -> pa.Table:
    rows = [
        {"phase": phase, "step": step, "tokens": step * 100, "loss": 3.0 - step / 100, "action": action}
        for phase, actions in phases
        for step, action in enumerate(actions, 1)
    ]
    return pa.Table.from_pylist(rows)


def labels_of(svg: str) -> list[str]:
    return [unescape(label) for label in re.findall("<title>(.*?)</title>", svg)]


def test_skips_roll_backs_levels_and_phases_are_marked() -> None:
    metrics = metrics_of(("main", ["apply"] * 4 + ["skip"] + ["apply"] * 5), ("long", ["apply"] * 3))
    decisions = {
        "main": [
            {"kind": "roll back", "step": 9, "to_step": 6, "bad_steps": [7, 8, 9]},
            {"kind": "level shift", "step": 10, "to_step": None, "bad_steps": [10]},
        ]
    }
    svg = loss_chart(metrics, decisions)
    assert labels_of(svg) == [
        "step 5: skipped", "step 9: roll back to step 6", "step 10: level shift", "phase long begins",
    ]  # fmt: skip
    places = [float(x) for x in re.findall(r'x1="([\d.]+)" x2="\1" y1="28"', svg)]
    assert places == sorted(places)
    assert svg.count("<polyline") == 2
    assert labels_of(loss_chart(metrics_of(("main", ["apply"] * 3)), {"main": []})) == []
    assert "nothing to draw" in loss_chart(None, {})
    beginning = loss_chart(metrics, {"main": [decisions["main"][0] | {"to_step": 0}]})
    assert "step 9: roll back to step 0" in labels_of(beginning)


def test_what_the_model_wrote_is_read_from_the_live_view(trained_run: TrainedRun) -> None:
    into = replace(trained_run.into, run_id=RUN)
    packs = [into.load(f"{entry['stage']}/{entry['fingerprint']}") for entry in trained_run.trained.inputs]
    run = phase_run()
    phase = run.phase.model_copy(update={"name": "short", "tokens": 6 * 8 * 64})
    stability = run.stability.model_copy(update={"checkpoint_steps": 2})
    run = run.model_copy(update={"phase": phase, "stability": stability})
    trained = train_phase(*packs, *trained_run.held_out.values(), into=into, config=run, settings=Settings(threads=1))
    record = RunRecord(run_id=RUN, created="2026-01-01", recipe={"name": "x"})
    record.set_dataset(
        DatasetLine(
            label="train short", stage="train", reference=trained.reference, digest=trained.digest, code="",
            made_by=RUN, cached=False, attempt=1, seconds=0.0,
        )
    )  # fmt: skip
    written = read_written(into.storage, record)
    assert [(event["step"], event["source"]) for event in written] == [(2, "web"), (4, "code"), (6, "web")]
    assert all(isinstance(event["prompt"], str) and event["prompt"] for event in written)
    assert read_decisions(into.storage, record) == {"short": []}
    metrics = read_training(into.storage, record)
    assert metrics is not None
    assert metrics.num_rows == 6

    key = f"runs/{RUN}/live/train-short/zzz-00001.jsonl"  # a later attempt wrote at these steps again
    again = [
        written[0] | {"step": step, "text": "``` mail me: ann@example.org"} for step in range(6, 6 + SHOWN_SAMPLES)
    ]
    into.storage.write_bytes(key, "\n".join(json.dumps(event) for event in again).encode())
    steps = [event["step"] for event in read_written(into.storage, record)]
    assert steps == [*range(6, 6 + SHOWN_SAMPLES)]
    pages = {name: text for name, _, text in dashboard_pages(into.storage, record, picture_bytes=200_000)}
    assert "**phase short, step 6**" in pages["writing"]
    assert "ann@example.org" not in pages["writing"]
    assert "````text" in _written_page(again)
