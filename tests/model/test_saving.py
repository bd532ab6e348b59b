"""Saves beside the training, and saves that fail: what is lost is a checkpoint, never a step."""

import errno
import json
import logging
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.checkpoint_files import list_steps, read_manifest
from model.job import Job
from model.ranks import Ranks
from model.saving import SaveFailed, Saver, host_copy
from model.trainer import Trainer, train
from tasks.errors import StorageError
from tasks.storage import S3_CONFIG, Storage
from tests.conftest import LIMIT_SECONDS
from tests.model.test_trainer import STEPS, WORKER, digest_of, exact_metrics, make_job, undisturbed
from tests.s3_proxy import S3Proxy, s3_proxy_to

__all__ = ["make_job", "undisturbed"]


class RefusingStorage(Storage):
    """A storage that fails whenever `refuses` says so of a key that is written."""

    def __init__(self, url: str, refuses: Callable[[str], bool]) -> None:
        super().__init__(url)
        self.refuses = refuses

    def write_bytes(self, key: str, data: bytes) -> None:
        self._check(key)
        super().write_bytes(key, data)

    def publish_file(self, local_path: str | Path, key: str) -> None:
        self._check(key)
        super().publish_file(local_path, key)

    def _check(self, key: str) -> None:
        if self.refuses(key):
            raise StorageError(f"{key}: refused")


def refusing(job: Job, refuses: Callable[[str], bool]) -> Job:
    assert isinstance(job.store, Storage)
    return replace(job, store=RefusingStorage(job.store.url, refuses))


def first(count: int, ending: str) -> Callable[[str], bool]:
    """True for the first `count` keys that end so."""
    seen = 0

    def refuses(key: str) -> bool:
        nonlocal seen
        seen += key.endswith(ending)
        return key.endswith(ending) and seen <= count

    return refuses


def saved_steps(job: Job) -> list[int]:
    """Steps that have a manifest, newest first."""
    return [
        step
        for step in list_steps(job.store, job.checkpoints_folder)
        if not isinstance(read_manifest(job.store, job.checkpoints_folder, step), str)
    ]


def events_of(job: Job) -> list[dict[str, Any]]:
    keys = [file.key for file in job.store.list_files(job.live_prefix or "") if file.key.endswith(".jsonl")]
    lines = [json.loads(line) for key in keys for line in job.store.read_bytes(key).splitlines()]
    return [line for line in lines if "event" in line]


def fail(error: BaseException) -> None:
    raise error


# --- the thread ----------------------------------------------------------------------------------------------------


def test_a_save_runs_beside_its_caller() -> None:
    saver, go_on = Saver(in_background=True), threading.Event()
    saver.start(lambda: None if go_on.wait(LIMIT_SECONDS) else fail(TimeoutError()))
    assert (saver.is_pending, saver.is_written) == (True, False)
    go_on.set()
    assert saver.settle() is None
    assert (saver.is_pending, saver.is_written) == (False, False)
    assert saver.settle() is None  # nothing to settle


@pytest.mark.parametrize("in_background", [False, True])
def test_the_third_failure_in_a_row_is_raised(in_background: bool) -> None:
    saver = Saver(in_background)
    answers: list[str] = []
    for number, works in enumerate([False, False, True, False, False]):
        saver.start(lambda works=works, number=number: None if works else fail(SaveFailed(f"no {number}")))  # type: ignore[misc]
        answers.append(str(saver.settle()))
    assert answers == ["no 0", "no 1", "None", "no 3", "no 4"]
    saver.start(lambda: fail(SaveFailed("no 5")))
    with pytest.raises(SaveFailed, match="3 checkpoints in a row could not be saved: no 5"):
        saver.settle()


def test_an_error_that_is_no_failed_save_is_raised_as_it_is() -> None:
    saver = Saver(in_background=True)
    saver.start(lambda: fail(KeyError("a fault of ours")))
    saver.close()
    assert saver.is_written
    with pytest.raises(KeyError, match="a fault of ours"):
        saver.settle()
    assert not saver.is_pending


def test_a_host_copy_stays_what_it_was() -> None:
    tensors = {"whole": torch.arange(6.0).view(2, 3), "turned": torch.arange(6.0).view(2, 3).T, "none": torch.zeros(0)}
    copied = host_copy(tensors)
    wanted = {name: tensor.tolist() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.fill_(-1)
    assert {name: tensor.tolist() for name, tensor in copied.items()} == wanted


# --- beside the training -------------------------------------------------------------------------------------------


def test_steps_go_on_while_a_checkpoint_is_written(make_job: Any) -> None:
    """The first checkpoint, of step 4, waits for step 7 to be done: a save that blocks would never end."""
    job = make_job()

    def refuses(key: str) -> bool:
        deadline = time.monotonic() + LIMIT_SECONDS
        while key.endswith(".safetensors") and "step-00000004" in key and trainer.training.step < 7:
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    trainer = Trainer(refusing(job, refuses), Ranks(), lambda: False, lambda: False)
    assert trainer.run().status == "finished"
    assert saved_steps(job) == [12, 8, 4]


@pytest.mark.parametrize(
    ("ranks", "wrapping"),
    [
        (1, {}),
        (2, {}),
        pytest.param(2, {"parallel": "ddp"}, marks=pytest.mark.chaos),
        pytest.param(4, {"shard_ranks": 2, "micro_batch_rows": 2}, marks=pytest.mark.chaos),
    ],
)
def test_a_save_beside_the_training_has_the_same_content(
    make_job: Any, rank_processes: Any, ranks: int, wrapping: dict[str, Any]
) -> None:
    often = {"checkpoint_steps": 2, "keep_checkpoints": 20} | wrapping
    waiting = make_job("bf16", folder="train/waiting", settings=often | {"background_saves": False})
    beside = make_job("bf16", folder="train/beside", settings=often)
    for job in (waiting, beside):
        rank_processes.run(WORKER, ranks, JOB=job) if ranks > 1 else train(job)
    for step in range(2, STEPS + 1, 2):
        assert digest_of(beside, step) == digest_of(waiting, step)  # of names and tensors: file bytes hold more
    assert exact_metrics(beside).equals(exact_metrics(waiting))


def test_sigterm_on_one_rank_while_a_checkpoint_is_written(
    make_job: Any, undisturbed: Any, rank_processes: Any
) -> None:
    """Rank 1 is terminated as it writes its shard of step 4: both finish that one, save again at one step, and stop."""
    straight, job = undisturbed("bf16", 2), make_job("bf16")
    rank_processes.run(WORKER, 2, JOB=job, TERMINATE_AT={1: 1})
    outcomes = [json.loads(Path(job.scratch, f"outcome-a1-{rank}.json").read_text()) for rank in (0, 1)]
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0]["status"], saved_steps(job)) == ("stopped", [outcomes[0]["step"], 4])
    rank_processes.run(WORKER, 2, JOB=replace(job, attempt="a2"))
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.fixture
def straight(undisturbed: Any) -> Job:
    """The undisturbed training in one process."""
    job: Job = undisturbed()
    return job


@pytest.mark.parametrize("ending", [".safetensors", "state.json", "00000004/metrics.parquet", "manifest.json"])
@pytest.mark.parametrize("background_saves", [False, True])
def test_a_failed_save_costs_its_checkpoint_alone(
    make_job: Any, straight: Job, ending: str, background_saves: bool
) -> None:
    """ray#41700, ray#47939: an upload that fails does not end the training; the next checkpoint holds its steps."""
    job = make_job(live_prefix="runs/r/live", settings={"background_saves": background_saves})
    assert train(refusing(job, first(1, ending))).status == "finished"
    assert saved_steps(job) == [12, 8]
    [event] = [event for event in events_of(job) if event["event"] == "save failed"]
    assert event["in_a_row"] == 1
    assert event["tokens"] > 0
    assert event["message"].startswith("step 4: train/x/checkpoints/step-00000004/")
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def test_three_failed_saves_end_the_training_and_it_resumes(make_job: Any, straight: Job) -> None:
    job = make_job(settings={"checkpoint_steps": 2})
    with pytest.raises(SaveFailed, match=r"^3 checkpoints in a row could not be saved: step 8: .*refused"):
        train(refusing(job, lambda key: key.endswith("manifest.json") and "step-00000002" not in key))
    assert saved_steps(job) == [2]
    outcome = train(replace(job, attempt="a2"))
    assert outcome.began.startswith("resumed from step 2; passed over step 8: it has no manifest")
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def test_the_last_save_is_tried_again_at_once(make_job: Any, straight: Job) -> None:
    job = make_job()
    refuses = first(2, "step-00000012/state.json")
    assert train(refusing(job, refuses)).status == "finished"
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def test_the_save_of_a_stop_is_tried_again_at_once(make_job: Any) -> None:
    job = make_job()
    outcome = train(refusing(job, first(1, "state.json")), lambda: True)
    assert (outcome.status, saved_steps(job)) == ("stopped", [outcome.step])
    assert train(replace(job, attempt="a2")).began == f"resumed from step {outcome.step}"


def test_a_failure_on_one_rank_is_counted_on_both(make_job: Any, undisturbed: Any, rank_processes: Any) -> None:
    straight, job = undisturbed("fp32", 2), make_job()
    rank_processes.run(WORKER, 2, JOB=job, REFUSE_AT={1: [1, 2]})  # rank 1 writes one file per checkpoint
    outcomes = [json.loads(Path(job.scratch, f"outcome-a1-{rank}.json").read_text()) for rank in (0, 1)]
    assert outcomes[0] == outcomes[1]
    assert saved_steps(job) == [12]
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def test_a_store_that_deletes_nothing_keeps_old_checkpoints(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(settings={"checkpoint_steps": 1, "keep_checkpoints": 1})

    def refuse(self: Storage, key: str) -> None:
        if "step-00000001/" in key and self.exists(key):
            raise StorageError(f"{key}: refused")

    monkeypatch.setattr(Storage, "delete", refuse)
    assert train(job).status == "finished"
    assert {1, STEPS} <= set(saved_steps(job))


class RoomAfter(logging.Handler):
    """Gives the process room on the disk again after so many failed saves."""

    def __init__(self, failures: int) -> None:
        super().__init__(logging.WARNING)
        self.left, self.room = failures, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "could not be saved" in record.getMessage():
            self.messages.append(record.getMessage())
            self.left -= 1
            if self.left == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, self.room))


@pytest.fixture
def no_room() -> Iterator[Callable[[int], RoomAfter]]:
    """no_room(n): no file of this process can grow beyond 20 kB until n saves have failed (-1: for ever)."""
    before, logger = resource.getrlimit(resource.RLIMIT_FSIZE), logging.getLogger("model.trainer")
    handlers = []

    def take(failures: int) -> RoomAfter:
        handler = RoomAfter(failures)
        handlers.append(handler)
        logger.addHandler(handler)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, handler.room))
        return handler

    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield take
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)
    for handler in handlers:
        logger.removeHandler(handler)


def test_a_disk_without_room_for_a_while(make_job: Any, straight: Job, no_room: Any) -> None:
    """A file-size limit refuses as a full disk does, and needs no root."""
    job = make_job()
    handler = no_room(2)
    assert train(job).status == "finished"
    assert [message.split(": ")[-1] for message in handler.messages] == [f"[Errno {errno.EFBIG}] File too large"] * 2
    assert saved_steps(job) == [12]
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def test_a_disk_without_room_for_ever(make_job: Any, straight: Job, no_room: Any) -> None:
    job = make_job()
    handler = no_room(-1)
    with pytest.raises(SaveFailed, match=r"3 checkpoints in a row .* step 12: .*File too large"):
        train(job)
    resource.setrlimit(resource.RLIMIT_FSIZE, (handler.room, handler.room))
    assert train(replace(job, attempt="a2")).status == "finished"
    assert digest_of(job) == digest_of(straight)


# --- S3 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3_proxy(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """The S3 server behind a proxy that can refuse; the client gives up after its second request."""
    monkeypatch.setitem(S3_CONFIG, "retries", {"total_max_attempts": 2, "mode": "standard"})
    with s3_proxy_to(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def on_s3(job: Job, root: str) -> Job:
    """The same job with its packs and its dataset in S3."""
    store = Storage(root)
    for pack in job.packs:
        for part in pack.parts:
            store.write_bytes(part.key, job.store.read_bytes(part.key))
    return replace(job, store=store)


def test_503_for_a_while_costs_checkpoints_and_no_step(
    make_job: Any, straight: Job, s3_proxy: S3Proxy, s3_root: str
) -> None:
    """ray#41700: S3 answers 503 while the checkpoints of steps 3 and 6, and the live view, are written."""
    job = on_s3(make_job(live_prefix="runs/r/live", settings={"checkpoint_steps": 3}), s3_root)
    s3_proxy.refuses = lambda method, path: method == "PUT" and not saved_step_9(path)
    assert train(job).status == "finished"
    assert s3_proxy.refused >= 4
    assert saved_steps(job) == [12, 9]
    assert [event["in_a_row"] for event in events_of(job) if event["event"] == "save failed"] == [1, 2]
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))


def saved_step_9(path: str) -> bool:
    return "step-00000009" in path or "step-00000012" in path or "live" in path


def test_503_for_ever_ends_the_training_and_it_resumes(
    make_job: Any, straight: Job, s3_proxy: S3Proxy, s3_root: str
) -> None:
    job = on_s3(make_job(settings={"checkpoint_steps": 2}), s3_root)
    s3_proxy.refuses = lambda method, path: method in ("PUT", "POST") and "step-00000002" not in path
    with pytest.raises(SaveFailed, match=r"3 checkpoints in a row .* step 8: s3://.*"):
        train(job)
    s3_proxy.refuses = lambda method, path: False
    assert train(replace(job, attempt="a2")).began.startswith("resumed from step 2")
    assert digest_of(job) == digest_of(straight)
    assert exact_metrics(job).equals(exact_metrics(straight))
