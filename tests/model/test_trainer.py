import json
import math
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook

from model.architecture import ModelConfig
from model.batches import Loader, PackReader
from model.checkpoint import Checkpoints, NoSoundCheckpoint, load_weights
from model.checkpoint_files import list_steps, read_metrics, read_state, step_key
from model.config import PhaseRun
from model.job import EXACT_METRICS, Job, Settings, order_of
from model.ranks import Ranks
from model.schedule import Events, Factor, SkipRange
from model.trainer import Trainer, train
from model.transformer import Transformer
from tasks.storage import Storage
from tests.model.conftest import RankProcesses, write_pack

WORKER = Path(__file__).with_name("train_worker.py")
LENGTH, ROWS, STEPS = 32, 8, 12
MODEL = ModelConfig.of_size("tiny", width=32, num_heads=4, mlp_width=64, vocab_size=256)


def phase_of(steps: int = STEPS, name: str = "main", **fields: Any) -> dict[str, Any]:
    values = {
        "name": name,
        "tokens": steps * ROWS * LENGTH,
        "weights": {"web": 3, "code": 1},
        "sequence_length": LENGTH,
    }
    return values | {"batch": ROWS, "schedule": {"lr": 3e-3, "warmup_tokens": 512}} | fields


@pytest.fixture
def make_job(store: Storage, tmp_path: Path) -> Any:
    """make_job(precision="fp32", attempt="a1", folder="train/x", phase={}, settings={}, **job)"""
    return job_maker(store, tmp_path / "scratch")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Job]:
    """undisturbed("bf16", 2): the training of make_job("bf16") on two ranks to its end, made once."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make, processes = job_maker(Storage(str(folder / "lake")), folder / "scratch"), RankProcesses(folder)

    @cache
    def trained(precision: str = "fp32", ranks: int = 1) -> Job:
        job: Job = make(precision, folder=f"train/{precision}-{ranks}")
        train(job) if ranks == 1 else processes.run(WORKER, ranks, JOB=job)
        return job

    return trained


def job_maker(store: Storage, scratch: Path) -> Callable[..., Job]:
    """The function that `make_job` is, over packs in that store."""
    packs = (write_pack(store, "web", [300, 40]), write_pack(store, "code", [80]))
    scratch.mkdir(exist_ok=True)

    def make(
        precision: str = "fp32",
        attempt: str = "a1",
        folder: str = "train/x",
        phase: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Job:
        run = PhaseRun.model_validate({"model": MODEL, "phase": phase_of(**(phase or {})), "precision": precision})
        defaults = {"checkpoint_steps": 4, "threads": 1, "micro_batch_rows": 4}
        given = Settings.model_validate(defaults | (settings or {}))
        return Job(run, packs, store, folder, attempt, str(scratch), given, **fields)

    return make


def digest_of(job: Job, step: int = STEPS) -> str:
    digest: str = json.loads(job.store.read_bytes(f"{step_key(job.checkpoints_folder, step)}/manifest.json"))["digest"]
    return digest


def exact_metrics(job: Job, step: int = STEPS) -> pa.Table:
    return read_metrics(job.store, step_key(job.checkpoints_folder, step)).select(EXACT_METRICS)


def losses_of(job: Job, step: int = STEPS) -> list[float]:
    losses: list[float] = exact_metrics(job, step)["loss"].to_pylist()
    return losses


def test_training_learns_and_notes_every_step(make_job: Any) -> None:
    job = make_job(live_prefix="runs/r/live")
    outcome = train(job)
    assert (outcome.status, outcome.step) == ("finished", STEPS)
    assert outcome.began == "fresh start: this training has no checkpoint yet"
    metrics = exact_metrics(job)
    assert metrics["step"].to_pylist() == list(range(1, STEPS + 1))
    assert metrics["tokens"].to_pylist() == [step * ROWS * LENGTH for step in range(1, STEPS + 1)]
    assert metrics["position_from"].to_pylist() == [step * ROWS for step in range(STEPS)]
    assert metrics["position_to"].to_pylist()[-1] == STEPS * ROWS  # rows consumed = the plan, nothing skipped
    losses = losses_of(job)
    assert losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256: every id is equally likely at first
    assert losses[-1] < losses[0] - 0.3
    assert set(metrics["action"].to_pylist()) == {"apply"}
    lines = [json.loads(line) for file in job.store.list_files("runs/r/live") if file.key.endswith(".jsonl")
             for line in job.store.read_bytes(file.key).splitlines()]  # fmt: skip
    assert lines[0] == {"event": "begin", "message": outcome.began, "tokens": 0}
    assert [line["loss"] for line in lines[1:]] == losses
    assert {"z_loss", "tokens_per_second", "data_wait_ratio"} <= lines[1].keys()
    assert len([f for f in job.store.list_files("runs/r/live/tensorboard") if "tfevents" in f.key]) >= 3
    state = read_state(job.store, step_key(job.checkpoints_folder, STEPS))
    assert sum(state.ordinals.values()) == state.position == STEPS * ROWS
    assert (state.compute["ranks"], state.applied_steps) == (1, STEPS)


def test_metrics_count_targets_and_measure_the_loss_by_hand(make_job: Any) -> None:
    """torchtitan#2983, OLMo-core#261: from the Parquet rows that step 5 reads, document by document, z-loss apart."""
    job = make_job()
    train(job)
    key = step_key(job.checkpoints_folder, 4)
    model = Transformer(job.run.model)
    model.load_state_dict(load_weights(job.store, key)[0])
    nats: list[float] = []
    squares: list[float] = []
    refs = order_of(job.run, job.packs, {}).rows_of_positions(np.arange(4 * ROWS, 5 * ROWS))
    for ref in refs:
        row = pq.read_table(job.store.path(ref.part_key)).slice(ref.row, 1).to_pylist()[0]
        ends = [*row["document_starts"][1:], row["num_tokens"]]
        for start, stop in zip(row["document_starts"], ends, strict=True):
            ids = torch.tensor([row["input_ids"][start:stop]], dtype=torch.int64)
            with torch.no_grad():
                logits = model(ids)[0, :-1]
            nats += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
            squares += logits.logsumexp(-1).square().tolist()
    found = exact_metrics(job).to_pylist()[4]
    assert (found["targets"], found["rows"]) == (len(nats), ROWS)
    assert found["loss"] == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert found["z_loss"] == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_some_checkpoints_are_made_to_stay(make_job: Any) -> None:
    job = make_job(settings={"checkpoint_steps": 4, "keep_checkpoints": 1, "keep_steps": [3], "keep_every_steps": 5})
    train(job)
    has_manifest = [job.store.exists(f"{step_key(job.checkpoints_folder, step)}/manifest.json") for step in range(13)]
    assert [step for step, is_there in enumerate(has_manifest) if is_there] == [3, 5, 10, 12]
    assert exact_metrics(job)["step"].to_pylist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize("micro_batch_rows", [1, 3, 8])
def test_micro_batches_do_not_change_the_loss(make_job: Any, micro_batch_rows: int) -> None:
    whole, split = make_job(), make_job(folder="train/y", settings={"micro_batch_rows": micro_batch_rows})
    train(whole)
    train(split)
    assert losses_of(split)[:10] == pytest.approx(losses_of(whole)[:10], abs=1e-5)
    assert exact_metrics(split)["grad_norm"][0].as_py() == pytest.approx(
        exact_metrics(whole)["grad_norm"][0].as_py(), rel=1e-6
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resume_after_sigkill_equals_no_interruption(
    make_job: Any, undisturbed: Any, rank_processes: Any, precision: str
) -> None:
    """Writes of a checkpoint: shard, state, metrics, manifest. Killed in the second one, resumed, killed, resumed."""
    straight = undisturbed(precision)
    for attempt, kill_at in (("k1", 5 + precision.count("b")), ("k2", 4)):
        rank_processes.run_until_killed(WORKER, 1, JOB=make_job(precision, attempt), KILL_AT={0: kill_at})
    last = make_job(precision, "a3")
    rank_processes.run(WORKER, 1, JOB=last)
    began = json.loads(Path(last.scratch, "outcome-a3-0.json").read_text())["began"]
    assert began == "resumed from step 4; passed over step 8: it has no manifest: its writing was not finished"
    assert digest_of(last) == digest_of(straight)
    assert exact_metrics(last).equals(exact_metrics(straight))


def test_two_ranks_agree_with_one_and_resume_exactly(make_job: Any, rank_processes: Any) -> None:
    every_step = {"settings": {"checkpoint_steps": 1, "keep_checkpoints": 20}}
    one, two = make_job(folder="train/one", **every_step), make_job(folder="train/two", **every_step)
    train(one)
    rank_processes.run(WORKER, 2, JOB=two)
    assert losses_of(two)[:10] == pytest.approx(losses_of(one)[:10], abs=1e-5)
    same = ["step", "tokens", "position_from", "position_to", "rows", "targets", "lr"]
    assert exact_metrics(two).select(same).equals(exact_metrics(one).select(same))
    for name, mine in tensors_of(one, 1).items():  # after one step the first moment is 0.1 x the gradient
        if name.startswith("optimizer.exp_avg."):
            largest = max(float(tensor.abs().max()) for tensor in (mine, tensors_of(two, 1)[name]))
            assert (tensors_of(two, 1)[name] - mine).abs().max() <= 1e-6 * largest, name


def tensors_of(job: Job, step: int) -> dict[str, torch.Tensor]:
    """Whole tensors of a checkpoint, rows of the ranks' shards put together."""
    pieces: dict[str, list[torch.Tensor]] = {}
    for path in sorted(Path(job.store.path(step_key(job.checkpoints_folder, step))).glob("*.safetensors")):  # type: ignore[attr-defined]
        for name, tensor in load_file(path).items():
            pieces.setdefault(name, []).append(tensor)
    return {name: torch.cat(parts) for name, parts in pieces.items()}


def test_two_ranks_killed_while_saving_resume_exactly(make_job: Any, undisturbed: Any, rank_processes: Any) -> None:
    straight, broken = undisturbed("bf16", 2), make_job("bf16")
    rank_processes.run_until_killed(WORKER, 2, 1, JOB=broken, KILL_AT={1: 2})  # it writes one file per checkpoint
    assert list_steps(broken.store, broken.checkpoints_folder)[-1] == 4
    rank_processes.run(WORKER, 2, JOB=replace(broken, attempt="a2"))
    assert digest_of(broken) == digest_of(straight)
    assert exact_metrics(broken).equals(exact_metrics(straight))
    one = replace(broken, attempt="a3")  # the finished training, looked at by one rank: resharded, nothing left to do
    assert train(one).began.startswith("resumed from step 12; computed otherwise than before (ranks 2 -> 1)")


def test_a_bad_batch_is_skipped_on_both_ranks(make_job: Any, rank_processes: Any) -> None:
    """torchtitan#3863, pytorch#46849: the gradient of rank 1 alone is infinite; both leave weights and moments be."""
    job = make_job(settings={"checkpoint_steps": 1, "keep_checkpoints": 20, "micro_batch_rows": 4})
    # Forward passes of a rank: one per step and one for each probe; the fourth step is the seventh pass
    rank_processes.run(WORKER, 2, JOB=job, POISON={1: {7: math.inf}})
    actions = exact_metrics(job)["action"].to_pylist()
    assert actions == ["apply"] * 3 + ["skip"] + ["apply"] * 8
    assert digest_of(job, 4) == digest_of(job, 3) != digest_of(job, 5)
    state = read_state(job.store, step_key(job.checkpoints_folder, 12))
    assert ([bad.step for bad in state.memory.bad_steps], state.applied_steps, state.position) == (
        [4],
        11,
        STEPS * ROWS,
    )
    outcomes = [json.loads(Path(job.scratch, f"outcome-a1-{rank}.json").read_text()) for rank in (0, 1)]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_stop_is_saved_at_a_step_and_resumed_exactly(make_job: Any, undisturbed: Any, by_signal: bool) -> None:
    straight, job = undisturbed(), make_job()
    before = signal.getsignal(signal.SIGTERM)

    def ask() -> bool:
        if by_signal:
            signal.raise_signal(signal.SIGTERM)
        return not by_signal

    outcome = train(job, ask)
    assert outcome.status == "stopped"
    assert outcome.step in (1, 2)  # the signal may be seen one step later
    assert signal.getsignal(signal.SIGTERM) is before
    resumed = train(replace(job, attempt="a2"))
    assert (resumed.status, resumed.began) == ("finished", f"resumed from step {outcome.step}")
    assert digest_of(job) == digest_of(straight)


def test_a_damaged_checkpoint_costs_steps_not_the_result(make_job: Any) -> None:
    job = make_job()
    train(job)
    wanted = digest_of(job)
    for path in Path(job.store.path(step_key(job.checkpoints_folder, STEPS))).glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 64
        path.write_bytes(data)
    outcome = train(replace(job, attempt="a2"))
    assert outcome.began.startswith("resumed from step 8; passed over step 12: a1-shard-00001")
    assert digest_of(job) == wanted
    for step in (4, 8, 12):
        job.store.write_bytes(f"{step_key(job.checkpoints_folder, step)}/manifest.json", b"{}")
    with pytest.raises(NoSoundCheckpoint, match="no sound checkpoint among 3"):
        train(replace(job, attempt="a3"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"seed": 2}, "seed 1 -> 2"),
        ({"optimizer": {"betas": [0.9, 0.99]}}, "optimizer.betas [0.9, 0.95] -> [0.9, 0.99]"),
        ({"phase": phase_of(weights={"web": 1, "code": 1})}, "weights.web 3.0 -> 1.0"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(make_job: Any, fields: dict[str, Any], reason: str) -> None:
    """torchtitan#3732: a folder that holds something else is no place to go on from."""
    job = make_job()
    train(job, lambda: True)
    run = PhaseRun.model_validate(job.run.model_dump() | fields)
    with pytest.raises(NoSoundCheckpoint, match=re.escape(f"it is of another training: {reason}")):
        train(replace(job, run=run, attempt="a2"))


def test_memory_that_runs_out_is_no_silent_end(make_job: Any, undisturbed: Any) -> None:
    """torchtitan#2374: the error comes out; what was saved is there and the training goes on from it."""
    straight, job = undisturbed(), make_job()
    passes = 0

    def run_out(module: torch.nn.Module, *given: Any) -> None:
        nonlocal passes
        passes += isinstance(module, Transformer)
        if passes == 16:  # two in each of seven steps, one for the probe of step 4
            raise MemoryError("out of memory")

    hook = register_module_forward_hook(run_out)
    with pytest.raises(MemoryError, match="out of memory"):
        train(job)
    hook.remove()
    assert train(replace(job, attempt="a2")).began == "resumed from step 4"
    assert digest_of(job) == digest_of(straight)


def test_a_load_that_changes_the_loss_is_refused(make_job: Any, tmp_path: Path) -> None:
    job = make_job()
    train(job)
    state = read_state(job.store, step_key(job.checkpoints_folder, STEPS))
    wrong = state.model_copy(update={"probe_loss": 1.0, "step": 13})
    checkpoints = Checkpoints(job.store, job.checkpoints_folder, tmp_path / "scratch", "forged", Ranks())
    tensors = tensors_of(job, STEPS)
    checkpoints.save(tensors, wrong, read_metrics(job.store, step_key(job.checkpoints_folder, 4)), healthy=True)
    outcome = train(replace(job, attempt="a2"))
    assert "passed over step 13: the loss of its probe row is" in outcome.began


def test_skip_list_and_factors_come_from_the_checkpoint(make_job: Any, tmp_path: Path) -> None:
    """Events saved at step 4: the next rows pass over positions 40 to 50, and the rate is halved for two steps."""
    plain, job = make_job(folder="train/plain"), make_job()
    train(plain)
    train(job, lambda: True)
    stopped = list_steps(job.store, job.checkpoints_folder)[0]
    state = read_state(job.store, step_key(job.checkpoints_folder, stopped))
    tokens = ROWS * LENGTH
    factor = Factor(kind="lr", factor=0.5, from_tokens=4 * tokens, to_tokens=6 * tokens)
    events = Events(skips=(SkipRange(phase="main", start=40, stop=50),), factors=(factor,))
    checkpoints = Checkpoints(job.store, job.checkpoints_folder, tmp_path / "scratch", "rolled", Ranks())
    checkpoints.save(
        tensors_of(job, stopped),
        state.model_copy(update={"events": events}),
        read_metrics(job.store, step_key(job.checkpoints_folder, stopped)),
        healthy=True,
    )
    train(replace(job, attempt="a2"))
    metrics, before = exact_metrics(job), exact_metrics(plain)
    assert list(zip(metrics["position_from"].to_pylist(), metrics["position_to"].to_pylist(), strict=True))[4:8] == [
        (32, 40), (40, 58), (58, 66), (66, 74)
    ]  # fmt: skip
    rates = [now / then for now, then in zip(metrics["lr"].to_pylist(), before["lr"].to_pylist(), strict=True)]
    assert rates == [1.0] * 4 + [0.5] * 2 + [1.0] * 6
    assert metrics["loss"].to_pylist()[:5] == before["loss"].to_pylist()[:5]
    assert sum(metrics["rows"].to_pylist()) == STEPS * ROWS  # rows consumed = the plan; the skipped ones are on top
    saved = read_state(job.store, step_key(job.checkpoints_folder, STEPS))
    assert (saved.events, saved.position, sum(saved.ordinals.values())) == (
        events,
        STEPS * ROWS + 10,
        STEPS * ROWS + 10,
    )


def test_the_clip_of_the_events_bounds_the_step(make_job: Any, tmp_path: Path) -> None:
    """Of the first moment, 0.9 is the old one's and 0.1 the clipped gradient's, whose norm is then the clip."""
    job = make_job(settings={"checkpoint_steps": 1, "keep_checkpoints": 20})
    train(job, lambda: True)
    stopped = list_steps(job.store, job.checkpoints_folder)[0]
    state, tokens = read_state(job.store, step_key(job.checkpoints_folder, stopped)), ROWS * LENGTH
    factor = Factor(kind="clip", factor=1e-3, from_tokens=stopped * tokens, to_tokens=(stopped + 1) * tokens)
    checkpoints = Checkpoints(job.store, job.checkpoints_folder, tmp_path / "scratch", "calm", Ranks())
    checkpoints.save(
        tensors_of(job, stopped), state.model_copy(update={"events": Events(factors=(factor,))}),
        read_metrics(job.store, step_key(job.checkpoints_folder, stopped)), healthy=True,
    )  # fmt: skip
    train(replace(job, attempt="a2"))
    steps = (tensors_of(job, step) for step in range(stopped, stopped + 3))
    moments = [{name: own for name, own in held.items() if "exp_avg." in name} for held in steps]
    norms = [
        math.sqrt(sum(float((now[name] - 0.9 * before[name]).double().square().sum()) for name in now)) / 0.1
        for before, now in pairwise(moments)
    ]
    assert norms == pytest.approx([1e-3, 1.0], rel=1e-3)


def test_ranks_and_steps_draw_masks_of_their_own(make_job: Any) -> None:
    """nanoGPT#467: a number drawn after the seed of a step, on each of two ranks."""
    job, drawn = make_job(), {}
    loader = Loader(PackReader(job.store, order_of(job.run, job.packs, {})), job.run)
    for step, item in zip(range(3), loader, strict=False):
        for rank in (0, 1):
            Trainer._seed(SimpleNamespace(job=job, ranks=Ranks(rank, 2)), item)  # type: ignore[arg-type]
            drawn[step, rank] = float(torch.rand(()))
    loader.close()
    assert len(set(drawn.values())) == 6


def test_ramp_is_the_same_through_a_stop(make_job: Any) -> None:
    ramp = {"batch": {0: 4, 4 * 4 * LENGTH: 8}, "schedule": {"lr": 3e-3, "lr_batch_rule": "sqrt"}}
    straight, job = make_job(folder="train/straight", phase=ramp), make_job(phase=ramp)
    train(straight)
    train(job, lambda: True)
    train(replace(job, attempt="a2"))
    last = list_steps(straight.store, straight.checkpoints_folder)[0]
    assert exact_metrics(job, last).equals(exact_metrics(straight, last))
    assert exact_metrics(job, last)["rows"].to_pylist() == [4] * 4 + [8] * 10
    assert digest_of(job, last) == digest_of(straight, last)


def test_fewer_ranks_go_on_with_the_same_rows_and_losses(make_job: Any, undisturbed: Any, rank_processes: Any) -> None:
    straight, job = undisturbed(), make_job()
    rank_processes.run_until_killed(WORKER, 2, JOB=job, KILL_AT={0: 6})  # in the second checkpoint
    outcome = train(replace(job, attempt="a2"))
    assert outcome.began.startswith("resumed from step 4; passed over step 8: it has no manifest")
    assert "computed otherwise than before (ranks 2 -> 1" in outcome.began
    assert losses_of(job) == pytest.approx(losses_of(straight), abs=1e-5)
    places = ["position_from", "position_to", "targets"]
    assert exact_metrics(job).select(places).equals(exact_metrics(straight).select(places))


@pytest.mark.chaos
@pytest.mark.parametrize("kill_at", range(1, 13))
def test_a_kill_at_any_write_changes_nothing(
    make_job: Any, undisturbed: Any, rank_processes: Any, kill_at: int
) -> None:
    """Three checkpoints of four writes each: shard, state, metrics, manifest."""
    straight = undisturbed()
    rank_processes.run_until_killed(WORKER, 1, JOB=make_job(), KILL_AT={0: kill_at})
    resumed = make_job(attempt="a2")
    train(resumed)
    assert digest_of(resumed) == digest_of(straight)
    assert exact_metrics(resumed).equals(exact_metrics(straight))


def test_the_machine_is_left_as_it_was(make_job: Any) -> None:
    threads = torch.get_num_threads()
    job = make_job(settings={"threads": threads + 1})
    train(job)
    assert torch.get_num_threads() == threads
    state = read_state(job.store, step_key(job.checkpoints_folder, STEPS))
    assert state.compute["device"] == f"cpu, {threads + 1} threads"
    assert state.config["phase"]["name"] == "main"  # type: ignore[index,call-overload]
    assert not list(Path(job.scratch).iterdir())


def test_a_phase_continues_its_parent(make_job: Any) -> None:
    parent = make_job()
    train(parent)
    key = step_key(parent.checkpoints_folder, STEPS)
    child = make_job(folder="train/child", parent=key, phase={"name": "anneal", "steps": 4, "rope_base": 50_000})
    outcome = train(child)
    told = "weights and moments are its own, the rest is the recipe's (rope_base 10000.0 -> 50000.0)"
    assert outcome.began == f"fresh start from {key}: {told}"
    state, before = read_state(child.store, step_key(child.checkpoints_folder, 4)), read_state(parent.store, key)
    assert (state.step, state.applied_steps, state.position) == (4, STEPS + 4, 4 * ROWS)
    assert sum(state.ordinals.values()) == (STEPS + 4) * ROWS
    assert all(count >= before.ordinals[pack] for pack, count in state.ordinals.items())
    assert losses_of_phase(child)[0] < losses_of(parent)[0]
    for path in Path(parent.store.path(key)).glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ValueError, match=r"of the phase before can't be continued: .* is missing"):
        train(replace(child, folder="train/other", attempt="a2"))


def test_what_changed_since_the_phase_before_is_told(make_job: Any) -> None:
    """Settings, data, compute and code; of a fork the same."""
    parent = make_job(code="a" * 64)
    train(parent)
    phase = {"name": "tail", "steps": 2, "weights": {"web": 1}, "batch": {0: 4, 128: 8}, "schedule": {"lr": 1e-3}}
    child = make_job(
        folder="train/child", parent=step_key(parent.checkpoints_folder, STEPS), phase=phase, code="b" * 64,
        settings={"micro_batch_rows": 2},
    )  # fmt: skip
    told = train(child).began.partition("the rest is the recipe's ")[2]
    assert told == (
        "(schedule.lr 0.003 -> 0.001, schedule.warmup_tokens 512 -> 0, weights {'code': 1.0, 'web': 3.0} -> "
        "{'web': 1.0}, batch 8 -> {0: 4, 128: 8}); computed otherwise than before (micro_batch_rows 4 -> 2), so losses "
        f"agree within rounding; its code changed since: {'a' * 12} -> {'b' * 12}"
    )


def losses_of_phase(job: Job) -> list[float]:
    losses: list[float] = exact_metrics(job, 4)["loss"].to_pylist()
    return losses


def test_seed_decides_weights_and_order(make_job: Any) -> None:
    job = make_job()
    train(job)
    other = replace(job, run=job.run.model_copy(update={"seed": 2}), folder="train/other")
    train(other)
    assert losses_of(other) != losses_of(job)
    again = replace(job, folder="train/again")
    train(again)
    assert digest_of(again) == digest_of(job)
