"""What is watched: updates against the weights, MFU by hand, text, a profile; and that no result knows of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.architecture import ModelConfig
from model.checkpoint import load_weights
from model.checkpoint_files import read_metrics, step_key
from model.config import PhaseRun
from model.cost import flops_per_token
from model.job import METRICS_SCHEMA, Job, Settings
from model.ranks import Ranks
from model.trainer import train
from model.training import Training
from model.watch import PROMPT_TOKENS, SAMPLING, UPDATE_NORM_STEPS, Watch
from tasks.storage import Storage

WORKER = Path(__file__).with_name("train_worker.py")
STEPS = UPDATE_NORM_STEPS + 1


def words(ids: list[int]) -> str:
    """A decoder."""
    return " ".join(map(str, ids))


@pytest.fixture
def job(store: Storage, make_pack: Any, tmp_path: Path) -> Job:
    phase = {
        "name": "main", "tokens": STEPS * 4 * 32, "weights": {"web": 1}, "batch": 4, "sequence_length": 32,
        "schedule": {"lr": 1e-2},
    }  # fmt: skip
    model = ModelConfig.of_size("tiny", width=32, num_heads=4, mlp_width=64, vocab_size=256)
    run = PhaseRun.model_validate({"model": model, "phase": phase, "precision": "fp32"})
    settings = Settings(threads=1, micro_batch_rows=2, checkpoint_steps=1, keep_checkpoints=20)
    return Job(run, (make_pack("web", [90]),), store, "train/x", "a1", str(tmp_path), settings, live_prefix="live/x")


def lines_of(job: Job) -> list[dict[str, Any]]:
    files = [file.key for file in job.store.list_files(str(job.live_prefix)) if file.key.endswith(".jsonl")]
    return [json.loads(line) for key in files for line in job.store.read_bytes(key).splitlines()]


def test_update_norm_is_the_way_that_the_weights_went(job: Job, rank_processes: Any) -> None:
    train(job)
    lines = {line["step"]: line for line in lines_of(job) if "loss" in line}
    assert [step for step, line in lines.items() if "update_norm" in line] == [UPDATE_NORM_STEPS]
    before, after = (
        load_weights(job.store, step_key(job.checkpoints_folder, step))[0]
        for step in (UPDATE_NORM_STEPS - 1, UPDATE_NORM_STEPS)
    )
    way = torch.stack([(after[name] - before[name]).double().square().sum() for name in after]).sum().sqrt()
    norm = lines[UPDATE_NORM_STEPS]["update_norm"]
    assert norm == pytest.approx(float(way), rel=1e-4)
    for parallel in ("fsdp", "ddp"):  # the same on two ranks, whether they share the weights or hold copies
        settings = job.settings.model_copy(update={"parallel": parallel, "checkpoint_steps": None})
        both = replace(job, folder=f"train/{parallel}", live_prefix=f"live/{parallel}", settings=settings)
        rank_processes.run(WORKER, 2, JOB=both)
        [other] = [line["update_norm"] for line in lines_of(both) if "update_norm" in line]
        assert other == pytest.approx(norm, rel=1e-3)


def test_mfu_is_by_hand_where_the_peak_is_known_and_unknown_on_a_cpu(job: Job) -> None:
    training = Training(job, Ranks())
    line = {"rows": 4, "seconds": 0.5, "data_seconds": 0.1, "action": "apply", "step": 1}
    figures = Watch(job, Ranks(), training).of_step(line)
    assert figures == {"tokens_per_second": 256.0, "data_wait_ratio": 0.2}
    training.compute["device"] = "NVIDIA H100 80GB HBM3"
    bf16 = replace(job, run=job.run.model_copy(update={"precision": "bf16"}))
    figures = Watch(bf16, Ranks(), training).of_step(line)
    assert figures["mfu"] == pytest.approx(256 * flops_per_token(job.run.model, 32) / 989e12)
    assert "mfu" not in Watch(job, Ranks(), training).of_step(line)  # the peak is that of bf16


def test_text_is_written_where_held_out_rows_are_measured_and_changes_no_result(
    job: Job, make_pack: Any, rank_processes: Any
) -> None:
    plain = replace(job, folder="train/plain", live_prefix="live/plain")
    held_out = (make_pack("web", [4], file="held-web"), make_pack("code", [4], file="held-code"))
    stability = job.run.stability.model_copy(update={"checkpoint_steps": 5})
    run = job.run.model_copy(update={"stability": stability})
    watched = replace(job, run=run, held_out=held_out, decode=words, live_prefix="live/watched")
    train(replace(plain, run=run))
    train(watched)
    last = [read_metrics(job.store, step_key(f"{folder}/checkpoints", STEPS)) for folder in ("train/plain", "train/x")]
    exact = [name for name in METRICS_SCHEMA.names if not name.endswith("seconds")]
    assert last[0].select(exact).equals(last[1].select(exact))
    samples = [line for line in lines_of(watched) if line.get("event") == "sample"]
    assert [(line["step"], line["source"]) for line in samples] == [(5, "web"), (10, "code"), (STEPS, "code")]
    assert all(len(line["prompt"].split()) == PROMPT_TOKENS for line in samples)
    assert all(len(line["text"].split()) == SAMPLING.max_new_tokens for line in samples)
    assert lines_of(replace(job, live_prefix="live/plain"))
    both = replace(watched, folder="train/both", live_prefix="live/both")
    rank_processes.run(WORKER, 2, JOB=both)
    assert [line["prompt"] for line in lines_of(both) if line.get("event") == "sample"] == [
        line["prompt"] for line in samples
    ]


def test_a_profile_of_the_wanted_steps_is_kept(job: Job) -> None:
    settings = Settings(threads=1, micro_batch_rows=2, profile_steps=(2, 3))
    train(replace(job, settings=settings))
    [file] = job.store.list_files(f"{job.folder}/profiles")
    assert file.key.endswith("/steps-2-3-a1.json")
    names = {event.get("name") for event in json.loads(job.store.read_bytes(file.key))["traceEvents"]}
    assert "aten::mm" in names
    short = replace(job, folder="train/short", settings=settings.model_copy(update={"profile_steps": (STEPS, 99)}))
    train(short)  # asked for longer than there is
    assert [file.key.rpartition("/")[2] for file in job.store.list_files("train/short/profiles")] == [
        f"steps-{STEPS}-{STEPS}-a1.json"
    ]
