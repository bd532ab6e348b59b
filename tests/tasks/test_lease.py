"""Leases: one holder, take-over of the dead and the silent only, loss noticed."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import orjson
import pytest

from tasks import lease
from tasks.errors import Cancelled, LeaseLost, StorageError
from tasks.lease import hold_lease
from tasks.storage import Storage
from tests.conftest import LIMIT_SECONDS

FOLDER = "select/abc"


@pytest.fixture(params=["disk", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path) if request.param == "disk" else request.getfixturevalue("s3_root"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)


def leases_of(storage: Storage) -> list[str]:
    return [info.key.rpartition("/")[2] for info in storage.list_files(FOLDER) if "lease" in info.key]


def write_lease(storage: Storage, number: int, **content: object) -> None:
    storage.write_bytes(f"{FOLDER}/lease-{number:05d}", orjson.dumps({"run_id": "r", "released": False} | content))


def test_a_released_lease_is_followed_by_the_next_number(storage: Storage) -> None:
    for _ in range(2):
        with hold_lease(storage, FOLDER, "run"):
            pass
    assert leases_of(storage) == ["lease-00001", "lease-00002"]
    assert storage.read_json(f"{FOLDER}/lease-00001")["released"] is True


def test_contenders_hold_it_one_after_another(storage: Storage) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with hold_lease(storage, FOLDER, "run"):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.05)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(leases_of(storage)) == 3


def test_a_live_holder_is_waited_for_and_named(tmp_path: Path) -> None:
    storage, stop, messages = Storage(str(tmp_path)), threading.Event(), []
    write_lease(storage, 1, host="elsewhere", pid=1, process="x")

    def note(message: str) -> None:
        messages.append(message)
        stop.set()

    with pytest.raises(Cancelled), hold_lease(storage, FOLDER, "run", stop=stop, on_wait=note):
        pass
    assert "held by run r on elsewhere" in messages[0]
    assert leases_of(storage) == ["lease-00001"]


def test_a_silent_holder_elsewhere_is_replaced_after_expiry(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 1.0)
    write_lease(storage, 7, host="elsewhere", pid=1, process="x")
    with hold_lease(storage, FOLDER, "run"):
        assert leases_of(storage)[-1] == "lease-00008"


def test_a_dead_process_of_this_machine_is_replaced_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tasks.storage import Storage; from tasks.lease import hold_lease\n"
        f"with hold_lease(Storage(sys.argv[1]), {FOLDER!r}, 'killed'): os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False)
    storage = Storage(str(tmp_path))
    assert storage.read_json(f"{FOLDER}/lease-00001")["released"] is False
    with hold_lease(storage, FOLDER, "run"):
        assert leases_of(storage)[-1] == "lease-00002"


def test_the_loss_of_a_lease_is_told_and_raised(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))

    def hold() -> None:
        with hold_lease(storage, FOLDER, "run") as lost:
            write_lease(storage, 2, host="elsewhere", pid=1, process="x")
            assert lost.wait(LIMIT_SECONDS)

    with pytest.raises(LeaseLost, match="another run"):
        hold()


def test_the_holder_rewrites_only_its_own_file(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with hold_lease(storage, FOLDER, "run"):
        first = storage.read_json(f"{FOLDER}/lease-00001")
        deadline = time.monotonic() + LIMIT_SECONDS
        while storage.read_json(f"{FOLDER}/lease-00001")["beat"] == first["beat"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert first["pid"] == os.getpid()


def test_a_beat_that_fails_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that answers 503 for a while does not end the heartbeat: the lease would expire unnoticed."""
    storage, beats = Storage(str(tmp_path)), list[str]()
    write = Storage.write_bytes

    def refuse_once(self: Storage, key: str, data: bytes) -> None:
        beats.append(key)
        if len(beats) == 1:
            raise StorageError("503")
        write(self, key, data)

    with hold_lease(storage, FOLDER, "run") as lost:
        monkeypatch.setattr(Storage, "write_bytes", refuse_once)
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(beats) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(beats) >= 3
    assert not lost.is_set()
