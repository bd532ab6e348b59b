import contextlib
import json
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.architecture import ModelConfig
from model.checkpoint_files import list_steps, step_key
from model.config import PhaseRun
from model.job import EXACT_METRICS, Job, Settings
from model.scratch import new_scratch
from tasks.codedigest import code_digest
from tasks.dataset import Workspace
from tasks.errors import Cancelled, ConfigError, DataError, NotComputed, StorageError, TrainingDiverged, WorkerLost
from tasks.manifest import Manifest
from tasks.pack import PackConfig, PackRequest, PackSettings, pack_schema
from tasks.parallel import stop_ray
from tasks.parts import PartWriter, Unit
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage
from tasks.train import Watch, check_history, check_room, placed, settings_from_environment, train_phase
from tasks.train.ranks import is_asked_to_stop, stop_key
from tasks.verify import verify_run

LENGTH, ROWS, STEPS = 16, 4, 6
MODEL = ModelConfig.of_size("tiny", width=32, num_heads=4, mlp_width=64, vocab_size=256)
SETTINGS = Settings(checkpoint_steps=2, threads=1)


def write_rows(unit: Unit, writer: PartWriter) -> None:
    """Part function: rows of two documents each, made from the part's number."""
    count, first = unit.arguments["count"], unit.arguments["first"]
    ids = (np.arange(LENGTH)[None, :] * 3 + np.arange(first, first + count)[:, None]).astype(np.uint16) % 250
    ids[:, [0, 9]] = 0
    for start in range(0, count, 256):
        rows = ids[start : start + 256]
        table = {
            "input_ids": pa.FixedSizeListArray.from_arrays(
                pa.array(rows.reshape(-1)), type=unit.schema.field("input_ids").type
            ),
            "doc_ids": [["web:a", "web:b"]] * len(rows),
            "document_starts": [[0, 9]] * len(rows),
            "document_offsets": [[0, 0]] * len(rows),
            "num_tokens": [LENGTH] * len(rows),
        }
        writer.write_row_group(pa.table(table, schema=unit.schema))


def make_pack(into: Workspace, source: str, rows: int = 300, length: int = LENGTH) -> Manifest:
    request = PackRequest(source=source, sequence_length=length)
    settings = PackSettings(config=PackConfig(), request=request)
    dataset = into.dataset(
        "pack", settings, inputs={}, module="tasks.pack", schema=pack_schema(length, 256), external={"rows": rows}
    )
    units = [
        dataset.unit(source=source, arguments={"source": source, "count": count, "first": index * 7})
        for index, count in enumerate((rows - 20, 20))
    ]
    return dataset.publish(dataset.compute(units, write_rows), extra={"tokens": rows * LENGTH})


def make_run(**phase: Any) -> PhaseRun:
    values = {"name": "main", "tokens": STEPS * ROWS * LENGTH, "weights": {"web": 1, "code": 1}, "batch": ROWS}
    values |= {"sequence_length": LENGTH, "schedule": {"lr": 1e-2}} | phase
    return PhaseRun.model_validate({"model": MODEL, "phase": values, "precision": "fp32"})


@pytest.fixture
def packs(workspace: Workspace) -> list[Manifest]:
    return [make_pack(workspace, source) for source in ("web", "code")]


def train(packs: list[Manifest], into: Workspace, run: PhaseRun | None = None, **settings: Any) -> Manifest:
    return train_phase(*packs, into=into, config=run or make_run(), settings=SETTINGS.model_copy(update=settings))


def test_a_phase_is_trained_published_and_cached(workspace: Workspace, packs: list[Manifest]) -> None:
    """OLMo-core#229: a finished training that is started again saves nothing anew."""
    abandoned = new_scratch()
    abandoned.mkdir()
    manifest = train(packs, workspace)
    assert not abandoned.exists()  # a killed training left it
    assert manifest.stage == "train"
    assert manifest.totals["rows_in"] == manifest.totals["rows_out"] == STEPS * ROWS
    assert [(line["role"], line["stage"]) for line in manifest.inputs] == [("pack:code", "pack"), ("pack:web", "pack")]
    facts = manifest.extra
    assert facts["checkpoint"] == step_key(f"{manifest.reference}/checkpoints", STEPS)
    assert facts["loss_last"] < facts["loss_first"]
    assert (facts["step"], facts["tokens"], facts["skipped_steps"]) == (STEPS, STEPS * ROWS * LENGTH, [])
    assert sum(source["rows"] for source in facts["sources"].values()) == STEPS * ROWS
    assert facts["sources"]["web"]["epochs"] == pytest.approx(facts["sources"]["web"]["rows"] / 300, abs=1e-3)
    metrics = pq.read_table(pa.BufferReader(manifest.read_file(workspace.storage, "metrics.parquet")))
    assert metrics.column_names == EXACT_METRICS
    assert metrics.num_rows == STEPS
    again = replace(workspace, run_id="second")
    assert train(packs, again).run_id == "test"
    assert train(packs, replace(again, dry=True)).run_id == "test"


def test_same_input_gives_the_same_digest(workspace: Workspace, packs: list[Manifest], tmp_path: Path) -> None:
    first = train(packs, workspace)
    forced = train(packs, replace(workspace, generations={"train": 1}))
    assert forced.fingerprint != first.fingerprint
    assert forced.digest == first.digest


def test_a_phase_continues_another(workspace: Workspace, packs: list[Manifest]) -> None:
    parent = train(packs, workspace)
    child = train([*packs, parent], workspace, make_run(name="anneal", tokens=2 * ROWS * LENGTH))
    assert [line["role"] for line in child.inputs] == ["pack:code", "pack:web", "parent"]
    assert sum(child.extra["ordinals"].values()) == (STEPS + 2) * ROWS
    assert sum(source["rows"] for source in child.extra["sources"].values()) == 2 * ROWS


def test_cancelled_training_keeps_its_steps_and_goes_on(workspace: Workspace, packs: list[Manifest]) -> None:
    undisturbed = train(packs, replace(workspace, generations={"train": 1}))
    stop = threading.Event()
    interrupted = replace(workspace, stop=stop, on_progress=lambda *_: stop.set())
    with pytest.raises(Cancelled, match="what was trained up to the newest checkpoint is kept"):
        train(packs, interrupted, keep_checkpoints=9)
    resumed = train(packs, workspace, keep_checkpoints=9)
    assert resumed.digest == undisturbed.digest
    [stopped_at] = [step for step in list_steps(workspace.storage, f"{resumed.reference}/checkpoints") if step % 2]
    assert stopped_at in (1, 3)  # seen at the first poll; the others stand at every second step


def test_code_that_changed_is_told_and_changes_no_key(
    workspace: Workspace, packs: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    with pytest.raises(Cancelled):
        train(packs, replace(workspace, run_id="old", stop=stop, on_progress=lambda *_: stop.set()))
    monkeypatch.setattr("tasks.train.TRAINER", "model.order")  # as if other code trained now
    resumed = train(packs, replace(workspace, run_id="new"))
    [begun, *_] = workspace.storage.list_files("runs/new/live/train-main")
    old, new = (code_digest(module).digest for module in ("model.trainer", "model.order"))
    told = f"; its code changed since: {old[:12]} -> {new[:12]}"
    assert told in workspace.storage.read_bytes(begun.key).decode()
    assert resumed.extra["code"] == new


@contextlib.contextmanager
def handling_sigterm(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Ended(BaseException):
    """What the handler of this process raises, as Prefect's does."""


def end(number: int, frame: Any) -> None:
    raise Ended


def test_sigterm_saves_and_then_ends_what_runs_in_this_process(workspace: Workspace, packs: list[Manifest]) -> None:
    """Not a lost worker, which would be trained again in the process that was to end."""
    undisturbed = train(packs, replace(workspace, generations={"train": 1}))
    ended = replace(workspace, run_id="ended", on_progress=lambda *_: signal.raise_signal(signal.SIGTERM))
    with handling_sigterm(end), pytest.raises(Ended):
        train(packs, ended, checkpoint_steps=100)
    resumed = train(packs, replace(workspace, run_id="resumed"))
    assert resumed.digest == undisturbed.digest
    [begun, *_] = workspace.storage.list_files("runs/resumed/live/train-main")
    assert b"resumed from step" in workspace.storage.read_bytes(begun.key)


def test_verification_reads_the_checkpoints(workspace: Workspace, packs: list[Manifest]) -> None:
    trained = train(packs, workspace)
    values: dict[str, Any] = {
        "label": "train main",
        "stage": "train",
        "reference": trained.reference,
        "digest": trained.digest,
    }
    values |= {"code": "", "made_by": "r", "cached": False, "attempt": 1, "seconds": 0.0}
    record = RunRecord(run_id="r", created="", recipe={}, datasets=[DatasetLine.model_validate(values)])
    assert [finding.is_ok for finding in verify_run(workspace.storage, record)] == [True]
    [shard] = Path(workspace.storage.path(trained.extra["checkpoint"])).glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    [fault] = verify_run(workspace.storage, record)
    assert fault.detail.endswith(f"/{shard.name} has another sha256 than the file that was written")
    (shard.parent / "manifest.json").unlink()
    [fault] = verify_run(workspace.storage, record)
    assert fault.detail == f"{trained.extra['checkpoint']}: it has no manifest: its writing was not finished"


def test_training_on_s3_is_stopped_and_gives_what_a_disk_gives(
    workspace: Workspace, packs: list[Manifest], s3_root: str
) -> None:
    on_disk, stop = train(packs, workspace), threading.Event()
    on_s3 = Workspace(Storage(s3_root), run_id="s3")
    packs_there = [make_pack(on_s3, source) for source in ("web", "code")]
    with pytest.raises(Cancelled):
        train(packs_there, replace(on_s3, stop=stop, on_progress=lambda *_: stop.set()))
    resumed = train(packs_there, on_s3)
    assert (resumed.reference, resumed.digest) == (on_disk.reference, on_disk.digest)
    assert train(packs_there, replace(on_s3, dry=True)).run_id == "s3"
    begun = [
        json.loads(line)["message"]
        for file in on_s3.storage.list_files("runs/s3/live/train-main")
        if file.key.endswith("-00001.jsonl")
        for line in on_s3.storage.read_bytes(file.key).splitlines()[:1]
    ]
    assert sorted(message[:12] for message in begun) == ["fresh start:", "resumed from"]


def test_a_store_that_fails_is_asked_again_whether_to_stop(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(make_run(), (), workspace.storage, "train/x", "a1", "")
    assert not is_asked_to_stop(job)
    workspace.storage.write_bytes(stop_key(job), b"")
    assert is_asked_to_stop(job)

    def refuse(self: Storage, *_: object) -> None:
        raise StorageError("503")

    monkeypatch.setattr(Storage, "exists", refuse)
    monkeypatch.setattr(Storage, "read_bytes", refuse)
    assert not is_asked_to_stop(job)
    assert not Watch(job, workspace, threading.Event()).should_stop()


def test_finished_steps_without_a_manifest_are_published_untrained(workspace: Workspace, packs: list[Manifest]) -> None:
    first = train(packs, workspace)
    workspace.storage.delete(f"{first.reference}/manifest.json")
    shard = next(Path(workspace.storage.path(first.extra["checkpoint"])).glob("*.safetensors"))
    changed = shard.stat().st_mtime_ns
    again = train(packs, workspace)
    assert again.digest == first.digest
    assert shard.stat().st_mtime_ns == changed


def test_damage_is_survived_or_named(workspace: Workspace, packs: list[Manifest]) -> None:
    first = train(packs, workspace)
    storage, folder = workspace.storage, f"{first.reference}/checkpoints"
    storage.delete(f"{first.reference}/manifest.json")
    storage.delete(f"{first.extra['checkpoint']}/manifest.json")
    assert train(packs, workspace).digest == first.digest  # two steps again, from the older one
    storage.delete(f"{first.reference}/manifest.json")
    for step in list_steps(storage, folder):
        storage.write_bytes(f"{step_key(folder, step)}/manifest.json", b"{}")
    with pytest.raises(DataError, match=r"no sound checkpoint among 3: step 6: its format is None"):
        train(packs, workspace)


def test_an_event_at_the_end_of_the_live_view_does_not_set_progress_back(workspace: Workspace) -> None:
    told: list[tuple[object, ...]] = []
    prefix = "runs/r/live/train-main"
    job = Job(make_run(), (), workspace.storage, "train/x", "a1", "", live_prefix=prefix)
    lines = [{"event": "begin", "message": "fresh start"}, {"tokens": 64}, {"tokens": 128}, {"event": "held-out loss"}]
    workspace.storage.write_bytes(f"{prefix}/a1-00001.jsonl", "\n".join(map(json.dumps, lines)).encode())
    watch = Watch(job, replace(workspace, on_progress=lambda *values: told.append(values)), threading.Event())
    watch.should_stop()
    workspace.storage.write_bytes(f"{prefix}/a1-00002.jsonl", json.dumps(lines[-1]).encode())
    watch.next_look = 0.0
    watch.should_stop()
    assert told == [("train", 128, STEPS * ROWS * LENGTH)] * 2


def test_what_ranks_elsewhere_skip_undo_or_fail_to_save_is_told(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = "runs/r/live/train-main"
    job = Job(make_run(), (), workspace.storage, "train/x", "a1", "", live_prefix=prefix)
    lines: list[dict[str, Any]] = [
        {"event": "begin", "message": "fresh start"},
        {"tokens": 64, "action": "skip", "message": "step 1 skipped: loss nan, gradient norm nan"},
        {"event": "roll back", "message": "step 9: went back to step 0"},
        {"event": "save failed", "message": "step 8: no room"},
        {"event": "halted", "message": "why"},
    ]
    workspace.storage.write_bytes(f"{prefix}/a1-00001.jsonl", "\n".join(map(json.dumps, lines)).encode())
    here, elsewhere = (Watch(job, workspace, threading.Event()) for _ in range(2))
    here.look()
    assert caplog.messages == []  # the trainer's own warnings are heard
    elsewhere.is_elsewhere = True
    elsewhere.look()
    assert [text.removeprefix("phase main: ") for text in caplog.messages] == [
        "step 1 skipped: loss nan, gradient norm nan",
        "step 9: went back to step 0",
        "save failed: step 8: no room",
    ]


def test_a_rerun_is_told_where_training_goes_on(workspace: Workspace, packs: list[Manifest]) -> None:
    told: list[str] = []
    into, stop = replace(workspace, on_message=told.append), threading.Event()
    with pytest.raises(Cancelled):
        train(packs, replace(into, stop=stop, on_progress=lambda *_: stop.set()))
    train(packs, into)
    assert told[0] == "train main: fresh start: this training has no checkpoint yet"
    assert told[1].startswith("train main: resumed from step ")
    assert len(told) == 2


def test_progress_is_told_in_tokens(workspace: Workspace, packs: list[Manifest]) -> None:
    told: list[tuple[str, int, int]] = []
    train(packs, replace(workspace, on_progress=lambda *values: told.append(values)))
    assert told[-1][0] == "train"
    assert 0 <= told[-1][1] <= told[-1][2] == STEPS * ROWS * LENGTH


def test_a_disk_that_refuses_is_a_storage_failure(
    workspace: Workspace, packs: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"train: .*file"):
        train(packs, workspace)
    monkeypatch.undo()
    assert train(packs, workspace).extra["step"] == STEPS


def test_a_missing_pack_file_is_wrong_data(workspace: Workspace, packs: list[Manifest]) -> None:
    for pack in packs:
        workspace.storage.delete(pack.parts[0].path)
    with pytest.raises(DataError, match=r"train: .*parquet"):
        train(packs, workspace)


def test_a_halted_training_is_not_tried_again(workspace: Workspace, packs: list[Manifest]) -> None:
    run = make_run()
    dataset = workspace.dataset(
        "train", run, inputs={f"pack:{s}": p for s, p in zip(("web", "code"), packs, strict=True)},
        module="tasks.train", with_code=False,
    )  # fmt: skip
    report = {"step": 5, "reason": "more than 3 bad steps within 10", "bad_steps": [2, 3, 4, 5], "metrics": []}
    workspace.storage.write_json(f"{dataset.reference}/halted.json", report)
    with pytest.raises(TrainingDiverged, match="phase main halted itself: more than 3 bad steps within 10"):
        train(packs, workspace, run)
    assert train(packs, replace(workspace, generations={"train": 1}), run).extra["step"] == STEPS


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"weights": {"web": 1, "books": 1}}, r"train: phase main: no pack for the weighted sources \['books'\]"),
        ({"tokens": 4000 * LENGTH}, r"would read source code 6\.68 times .* max_epochs is 4: lower its weight"),
        ({"sequence_length": 32, "tokens": 3200}, "phase main reads rows of 32, code's hold 16"),
    ],
)
def test_what_the_data_cannot_carry_is_refused_before_work(
    workspace: Workspace, packs: list[Manifest], phase: dict[str, Any], message: str
) -> None:
    run = make_run(**phase)
    with pytest.raises(ConfigError, match=message):
        train(packs, workspace, run)
    assert list(workspace.storage.list_files("train")) == []
    with pytest.raises(NotComputed if "tokens" in phase and len(phase) == 1 else ConfigError):
        train(packs, replace(workspace, dry=True), run)  # of tokens, `plan` says more: see check_repeats


def test_ranks_that_cannot_share_a_batch_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="batch of 5 rows is not divisible by 2 ranks; use 4 or 6 rows, or ranks 1, 5"
    ):
        placed(Settings(ranks=2), make_run(batch=5), cpus=2, gpus=0)


@pytest.mark.parametrize(
    ("wish", "batch", "cpus", "gpus", "ranks", "threads", "device"),
    [
        ({}, 16, 2, 0, 2, 1, "cpu"),
        ({}, 16, 64, 0, 2, 32, "cpu"),
        ({}, 7, 2, 0, 1, 2, "cpu"),
        ({}, 16, 1, 0, 1, 1, "cpu"),
        ({}, {0: 12, 100: 16}, 64, 8, 4, None, "cuda"),
        ({"ranks": 4, "threads": 3}, 16, 2, 0, 4, 3, "cpu"),
    ],
)
def test_ranks_fit_the_machine_and_the_batch(
    wish: dict[str, Any], batch: Any, cpus: int, gpus: int, ranks: int, threads: int | None, device: str
) -> None:
    chosen = placed(Settings.model_validate(wish), make_run(batch=batch), cpus, gpus)
    assert (chosen.ranks, chosen.threads, chosen.device) == (ranks, threads, device)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"ranks": 3}, "asks for 3 ranks on cpu, Ray has 2 CPUs; ask for fewer ranks"),
        ({"device": "cuda"}, "asks for 2 ranks on cuda, Ray has 0 GPUs"),
    ],
)
def test_ranks_that_ray_has_no_room_for_are_refused(
    wish: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray would wait for ever; a cluster that was joined may grow, so that it is only told there."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    chosen = placed(Settings.model_validate(wish), make_run(batch=6), cpus=2, gpus=0)
    with pytest.raises(ConfigError, match=message):
        check_room(chosen, 2, 0)
    check_room(chosen, 3, 2)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_room(chosen, 2, 0)
    assert "waiting for the cluster to grow" in caplog.text


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"ranks": 4, "shard_ranks": 3}, "shard_ranks 3 does not divide 4 ranks; use 1, 2, 4"),
        ({"ranks": 2, "shard_ranks": 4}, "shard_ranks 4 does not divide 2 ranks; use 1, 2"),
        ({"parallel": "ddp", "shard_ranks": 2}, "shard_ranks 2 with parallel ddp, where each rank holds all"),
    ],
)
def test_copies_that_do_not_fit_are_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.model_validate(wish)
    if "ranks" in wish:  # known only once the machine is
        later = Settings(shard_ranks=wish["shard_ranks"])
        with pytest.raises(ConfigError, match=message):
            placed(later, make_run(batch=4), cpus=4, gpus=wish["ranks"])


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BASEMILL_TRAIN", raising=False)
    assert settings_from_environment() == Settings()
    monkeypatch.setenv("BASEMILL_TRAIN", "{ranks: 4, micro_batch_rows: 2}")
    assert settings_from_environment() == Settings(ranks=4, micro_batch_rows=2)
    wrong = {"{rankz: 4}": "rankz: unknown key; did you mean 'ranks'.*allowed.*threads", "[1": "expected ',' or ']'"}
    for text, told in (wrong | {"3": "Input should be a mapping"}).items():
        monkeypatch.setenv("BASEMILL_TRAIN", text)
        with pytest.raises(ConfigError, match=rf"(?s)BASEMILL_TRAIN=.*{told}"):
            settings_from_environment()
    monkeypatch.setenv("BASEMILL_TRAIN", "{ranks: 0}")
    with pytest.raises(ConfigError, match=r"'\{ranks: 0\}': ranks: Input should be .* equal to 1 \(got 0\)$"):
        settings_from_environment()


def test_lost_or_double_steps_are_found() -> None:
    good = {"step": [1, 2], "position_from": [0, 4], "position_to": [4, 8], "rows": [4, 4]}
    check_history(pa.table(good), 8)
    for column, values in (("step", [1, 3]), ("position_from", [0, 5])):
        with pytest.raises(DataError, match="do not join"):
            check_history(pa.table(good | {column: values}), 8)
    with pytest.raises(DataError, match="8 rows were consumed, 12 were planned"):
        check_history(pa.table(good), 12)


@pytest.fixture
def ray_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield replace(workspace, workers=2, generations={"train": 1})
    stop_ray()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_killed_ranks_cost_attempts_not_the_result(ray_workspace: Workspace, packs: list[Manifest]) -> None:
    """Two kills and a SIGTERM at random points; the ramp and dropout of the model are in play."""
    run = make_run(tokens=400 * ROWS * LENGTH, batch={0: ROWS, 20 * ROWS * LENGTH: 2 * ROWS})
    run = run.model_copy(update={"model": MODEL.model_copy(update={"dropout": 0.1})})
    undisturbed = train(packs, ray_workspace, run)
    again = replace(ray_workspace, generations={"train": 2})
    moments = [2 * random.Random(seed).randint(*steps) for seed, steps in ((1, (1, 20)), (2, (25, 60)), (3, (65, 90)))]
    stopped = "training was stopped from outside before its end"
    for step, number in zip(moments, (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM), strict=True):
        arguments = (again, undisturbed.reference, step, number)
        killer = threading.Thread(target=kill_a_rank, args=arguments, daemon=True)
        killer.start()
        with pytest.raises(WorkerLost, match=stopped if number == signal.SIGTERM else "training workers died"):
            train(packs, again, run)
        killer.join()
    resumed = train(packs, again, run)
    assert resumed.digest == undisturbed.digest
    files = [each.read_file(again.storage, "metrics.parquet") for each in (resumed, undisturbed)]
    assert files[0] == files[1]


def kill_a_rank(into: Workspace, other: str, step: int, number: int) -> None:
    """Signal a Ray Train worker below this process, never one of another Ray, once such a late checkpoint is there."""
    while not any(
        int(found.group(1)) >= step and not file.key.startswith(other)
        for file in into.storage.list_files("train")
        if (found := re.search(r"step-(\d+)/manifest.json$", file.key))
    ):
        time.sleep(0.02)
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ray::RayTrainWorker" in status.read_bytes() and is_ours(int(status.parent.name)):
                os.kill(int(status.parent.name), number)
                return


def is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
