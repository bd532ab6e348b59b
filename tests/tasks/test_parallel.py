"""map_parts: order, retries by kind, failures named, cancel, the same without and with Ray."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import parallel
from tasks.errors import Cancelled, ConfigError, DataError, RayNotStarted, StorageError, WorkerLost
from tasks.parallel import map_parts, start_ray
from tests.conftest import LIMIT_SECONDS


@pytest.fixture(scope="module", autouse=True)
def _short_delays() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "RETRY_SECONDS", (0.01, 0.02))
        yield


@pytest.fixture(params=[0, 2], ids=["here", "ray"])
def workers(request: pytest.FixtureRequest) -> int:
    if request.param:
        request.getfixturevalue("ray_cluster")
    return int(request.param)


def square(number: int) -> int:
    return number * number


def fail_on_odd(number: int) -> int:
    if number % 2:
        raise DataError(f"document web:{number} is odd")
    return number


def fail_twice(place: str) -> str:
    """Fails with a storage error at the first two attempts, which are counted in a file."""
    with open(place, "a") as file:
        file.write("x")
    if os.path.getsize(place) < 3:
        raise StorageError("503 for a moment")
    return place


def fail_always(place: str) -> str:
    with open(place, "a") as file:
        file.write("x")
    raise StorageError("503 for ever")


def die_once(place: str) -> int:
    if not os.path.exists(place):
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def crash(number: int) -> int:
    return 1 // number


def sleep_long(place: str) -> None:
    with open(place, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(2 * LIMIT_SECONDS)


def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    done: list[int] = []
    assert map_parts(square, [3, 1, 2], workers=workers, on_done=done.append) == [9, 1, 4]
    assert sorted(done) == [1, 4, 9]
    assert map_parts(square, [], workers=workers) == []


def test_the_largest_items_go_first(ray_cluster: None, tmp_path: Path) -> None:
    done: list[int] = []
    map_parts(square, [1, 4, 3], workers=1, bytes_of=lambda n: n, on_done=done.append)
    assert done == [16, 9, 1]


def test_a_failing_item_is_named_and_the_others_finish(workers: int) -> None:
    done: list[int] = []
    with pytest.raises(DataError, match=r"2 parts failed; part 1: document web:1 is odd; part 3"):
        map_parts(fail_on_odd, [0, 1, 2, 3, 4], workers=workers, name_of=lambda n: f"part {n}", on_done=done.append)
    assert sorted(done) == [0, 2, 4]


def test_a_storage_error_is_tried_again(workers: int, tmp_path: Path) -> None:
    place = str(tmp_path / "attempts")
    assert map_parts(fail_twice, [place], workers=workers) == [place]


def test_but_not_for_ever(workers: int, tmp_path: Path) -> None:
    place = str(tmp_path / "attempts")
    with pytest.raises(StorageError, match="503 for ever"):
        map_parts(fail_always, [place], workers=workers)
    assert os.path.getsize(place) == parallel.PART_ATTEMPTS


def test_an_unforeseen_error_fails_too(workers: int) -> None:
    with pytest.raises(DataError, match=r"part 0: .*division"):
        map_parts(crash, [1, 0], workers=workers, name_of=lambda n: f"part {n}")


def test_a_lost_worker_is_replaced(ray_cluster: None, tmp_path: Path) -> None:
    assert map_parts(die_once, [str(tmp_path / "died")], workers=1)[0] != os.getpid()


def test_a_worker_that_always_dies_is_reported(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PART_ATTEMPTS", 1)
    with pytest.raises(WorkerLost, match="its worker died"):
        map_parts(die_once, [str(tmp_path / "died")], workers=1)


def test_cancel_stops_running_work(ray_cluster: None, tmp_path: Path) -> None:
    place, stop = tmp_path / "pid", threading.Event()

    def cancel_when_running() -> None:
        while not place.exists() or not place.read_text():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=cancel_when_running, daemon=True).start()
    with pytest.raises(Cancelled):
        map_parts(sleep_long, [str(place)], workers=2, stop=stop)
    deadline = time.monotonic() + LIMIT_SECONDS
    while Path(f"/proc/{place.read_text()}").exists():
        assert time.monotonic() < deadline, "the worker still runs"
        time.sleep(0.1)


def test_cancel_before_the_first_item_runs_nothing(workers: int) -> None:
    stop = threading.Event()
    stop.set()
    done: list[int] = []
    with pytest.raises(Cancelled):
        map_parts(square, list(range(50)), workers=workers, stop=stop, on_done=done.append)
    assert len(done) < 50


def test_starting_ray_keeps_the_signal_handlers(ray_cluster: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    start_ray()
    assert signal.getsignal(signal.SIGTERM) is before


def test_worker_threads_are_one(ray_cluster: None) -> None:
    assert map_parts(threads_of_worker, [0], workers=1) == [("1", "1", "false")]


def threads_of_worker(_: int) -> tuple[str | None, str | None, str | None]:
    return tuple(os.environ.get(k) for k in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "TOKENIZERS_PARALLELISM"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("", "BASEMILL_WORKERS=0 works without Ray"),
        ("10.0.0.7:6379", "does the cluster at RAY_ADDRESS=10.0.0.7:6379 run"),
    ],
)
def test_a_ray_that_does_not_start_in_time_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch, address: str, hint: str
) -> None:
    """Ray raises a bare Exception then, which no rule of retries can name."""

    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_ADDRESS", address)
    for name, fake in (("init", init), ("is_initialized", lambda: False), ("shutdown", lambda: None)):
        monkeypatch.setattr(f"ray.{name}", fake)
    with pytest.raises(RayNotStarted, match=f"Ray did not start: The current node timed out .*{hint}") as caught:
        start_ray()
    assert isinstance(caught.value, WorkerLost)  # what a stage retries


def test_an_address_that_is_none_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ConfigError, match="RAY_ADDRESS 'nonsense': Invalid address format"):
        start_ray()
