"""The loss curve with its marks, and what the model wrote, from a real training and its live view."""

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pyarrow as pa

from model.job import Settings
from tasks.report import _written_page, dashboard_pages
from tasks.runs import DatasetLine, RunRecord
from tasks.train import train_phase
from tasks.train.live import read_curves
from tasks.train.view import SHOWN_SAMPLES, Curve, loss_chart, marks_of, read_written
from tests.tasks.conftest import TrainedRun, phase_run

RUN = "20260104-000000-dddd"


def curve_of(phase: str, actions: list[str], *decisions: dict[str, Any]) -> Curve:
    rows = [
        {"step": step, "tokens": step * 100, "loss": 3.0 - step / 100, "action": action}
        for step, action in enumerate(actions, 1)
    ]
    return Curve.of(phase, pa.Table.from_pylist(rows), decisions)


def labels_of(svg: str) -> list[str]:
    return [unescape(label) for label in re.findall("<title>(.*?)</title>", svg)]


def test_skips_roll_backs_levels_and_phases_are_marked() -> None:
    back = {"kind": "roll back", "step": 9, "to_step": 6, "bad_steps": [7, 8, 9]}
    level = {"kind": "level shift", "step": 10, "to_step": None, "bad_steps": [10]}
    curves = [
        curve_of("main", ["apply"] * 4 + ["skip"] + ["apply"] * 5, back, level),
        curve_of("long", ["apply"] * 3),
    ]
    svg = loss_chart(curves)
    assert labels_of(svg) == [
        "step 5: skipped", "step 9: roll back to step 6", "step 10: level shift", "phase long begins",
    ]  # fmt: skip
    assert [mark.x for mark in marks_of(curves)] == [500, 600, 1000, 1000]
    places = [float(x) for x in re.findall(r'x1="([\d.]+)" x2="\1" y1="28"', svg)]
    assert places == sorted(places)
    assert svg.count("<polyline") == 2
    assert labels_of(loss_chart([curve_of("main", ["apply"] * 3)])) == []
    assert "nothing to draw" in loss_chart([])
    beginning = curve_of("main", ["apply"] * 9, back | {"to_step": 0})
    assert [(mark.x, mark.label) for mark in marks_of([beginning])] == [(0, "step 9: roll back to step 0")]


def test_a_step_that_went_back_voids_what_came_after_it() -> None:
    curve = curve_of("main", ["apply", "apply", "skip", "skip", "apply"])
    curve.add(3, 300, None, "apply")  # a loss that is not finite has no place
    curve.add(4, 400, 1.0, "skip")
    assert curve.points == [(100, 2.99), (200, 2.98), (400, 1.0)]
    assert [mark.label for mark in curve.marks] == ["step 4: skipped"]
    assert curve.tokens == 400


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
    [curve] = read_curves(into.storage, record)
    assert (curve.phase, curve.tokens, len(curve.points), curve.marks) == ("short", 6 * 8 * 64, 6, [])

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
