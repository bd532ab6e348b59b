"""The one door to Ray: `map_parts` spreads a function over items, or runs it here when there are no workers.

It joins the cluster in RAY_ADDRESS, else starts one on this machine. Work in flight is bounded, the largest items go
first, each task reserves memory, worker threads are set to 1. Ray is driven from a helper thread, so that a signal
(Prefect's cancel) reaches the main thread at once; cancelling kills running tasks and keeps finished parts.
An item that fails for good does not stop the others: all are tried, then the failures are raised together.
"""

import heapq
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tasks.errors import Cancelled, ConfigError, DataError, PipelineError, RayNotStarted, StorageError, WorkerLost

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

PART_ATTEMPTS = 3  # the storage client and the Prefect stage own their own retries; more here would multiply
RETRY_SECONDS = (1.0, 5.0)
IN_FLIGHT_PER_CPU = 2
OBJECT_STORE_BYTES = 200 << 20  # only small receipts travel through it
MIN_TASK_BYTES = 400 << 20
MEMORY_PER_INPUT_BYTE = 8  # decompressed text, its working copies and the output under construction
POLL_SECONDS = 0.2
WORKER_ENV = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


@dataclass
class Failure:
    """One item that failed for good."""

    index: int
    name: str
    error: BaseException


@dataclass
class Work(Generic[Item, Result]):
    """The function, its items (as index -> item) and how to name and size one."""

    function: Callable[[Item], Result]
    items: dict[int, Item]
    name_of: Callable[[Item], str]
    bytes_of: Callable[[Item], int]
    results: dict[int, Result] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)


def workers_here() -> int:
    """Parts computed at once, from BASEMILL_WORKERS: 0 without Ray, -1 (default) as many as the cluster has CPUs."""
    text = os.environ.get("BASEMILL_WORKERS", "-1")
    try:
        workers = int(text)
    except ValueError as error:
        raise ConfigError(f"BASEMILL_WORKERS {text!r} is no number; use 0, -1 or a number of workers") from error
    return workers


def map_parts(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int,
    name_of: Callable[[Item], str] = str,
    bytes_of: Callable[[Item], int] = lambda _: 0,
    stop: threading.Event | None = None,
    on_done: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """`function(item)` for every item, results in the order of the items.

    workers: 0 runs here, one after another; else at most so many at once on Ray (-1: as many as the cluster holds).
    Raises the first failure's kind (DataError, StorageError, WorkerLost, ...), naming every failed item; Cancelled.
    """
    work: Work[Item, Result] = Work(function, dict(enumerate(items)), name_of, bytes_of)
    stop = stop or threading.Event()
    if not items:
        return []
    if workers == 0:
        _run_here(work, stop, on_done)
    else:
        _run_on_ray(work, workers, stop, on_done)
    if work.failures:
        raise _summary(sorted(work.failures, key=lambda failure: failure.index))
    return [work.results[index] for index in range(len(items))]


def _run_here(work: Work[Item, Result], stop: threading.Event, on_done: Callable[[Result], None]) -> None:
    for index, item in work.items.items():
        while True:
            if stop.is_set():
                raise Cancelled("between two parts")
            try:
                work.results[index] = work.function(item)
                on_done(work.results[index])
            except Exception as error:  # noqa: BLE001 - noted and raised when the other items are done
                if _try_again(work, index, error, stop):
                    continue
            break


def _try_again(work: Work[Item, Result], index: int, error: BaseException, stop: threading.Event) -> bool:
    """Whether a failed item is to be run once more; else the failure is noted."""
    if isinstance(error, Cancelled):
        raise error
    name = work.name_of(work.items[index])
    work.attempts[index] = work.attempts.get(index, 0) + 1
    if isinstance(error, (StorageError, WorkerLost)) and work.attempts[index] < PART_ATTEMPTS:
        logger.warning("%s failed (%s), trying again", name, error)
        stop.wait(RETRY_SECONDS[work.attempts[index] - 1])
        return True
    work.failures.append(Failure(index, name, error))
    return False


def _summary(failures: list[Failure]) -> PipelineError:
    """One error for all failed items, of the first one's kind."""
    lines = [f"{failure.name}: {failure.error}" for failure in failures[:5]]
    if len(failures) > 5:
        lines.append(f"and {len(failures) - 5} more")
    first = failures[0].error
    kind: type[PipelineError] = DataError
    if isinstance(first, (StorageError, WorkerLost)):
        kind = type(first)
    summary = kind(f"{len(failures)} part{'s' * (len(failures) > 1)} failed; " + "; ".join(lines))
    summary.__cause__ = first
    return summary


# --- Ray -------------------------------------------------------------------------------------------------------


def start_ray() -> Any:
    """Join the cluster in RAY_ADDRESS or start one here; keeps the SIGTERM handler that was set. Returns the module.

    Raises ConfigError where RAY_ADDRESS is no address, RayNotStarted where Ray does not start in time.
    """
    import ray  # late: a run that finds everything cached never loads it

    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS") or "local"
        local = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False} if address == "local" else {}
        with _kept_signal_handlers():
            try:
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR,
                    runtime_env={"env_vars": WORKER_ENV}, **local,
                )  # fmt: skip
            except ValueError as error:
                raise ConfigError(f"RAY_ADDRESS {address!r}: {error}; use HOST:PORT, or unset it") from error
            except Exception as error:  # where a node does not start in time, Ray raises no narrower one
                ray.shutdown()  # what did start
                raise RayNotStarted(_no_ray(address, error)) from error
    return ray


def _no_ray(address: str, error: Exception) -> str:
    """What went wrong, and what to do."""
    if address == "local":
        hint = "is this machine short of memory or very busy? BASEMILL_WORKERS=0 works without Ray"
    else:
        hint = f"does the cluster at RAY_ADDRESS={address} run, with the same versions of Ray and Python?"
    return f"Ray did not start: {error} ({hint})"


def stop_ray() -> None:
    """Leave the cluster, and end it if it was started here."""
    import sys

    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Ray replaces the SIGTERM handler, which would make Prefect's cancel a crash."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_on_ray(
    work: Work[Item, Result], workers: int, stop: threading.Event, on_done: Callable[[Result], None]
) -> None:
    start_ray()
    done: queue.SimpleQueue[Result] = queue.SimpleQueue()
    halt = threading.Event()
    driver = _Driver(work, workers, halt, done)
    thread = threading.Thread(target=driver.run, name="ray-driver", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            while not done.empty():
                on_done(done.get())
            if stop.is_set():
                raise Cancelled("running parts were stopped")
    finally:
        halt.set()
        thread.join()
    while not done.empty():
        on_done(done.get())
    if driver.error is not None:
        raise driver.error


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    """What Ray runs: `function` may be any callable that can be pickled, Ray itself takes plain functions only."""
    return function(item)


class _Driver(Generic[Item, Result]):
    """Submits, waits and retries, on its own thread."""

    def __init__(self, work: Work[Item, Result], workers: int, halt: threading.Event, done: Any) -> None:
        self.work, self.halt, self.done = work, halt, done
        self.error: BaseException | None = None
        self.ray = start_ray()
        cpus = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.window = workers if workers > 0 else cpus * IN_FLIGHT_PER_CPU
        self.memory_limit = int(self.ray.cluster_resources().get("memory", 4 << 30)) // cpus
        self.remote = self.ray.remote(_call)
        self.waiting = [(-work.bytes_of(item), index) for index, item in work.items.items()]
        heapq.heapify(self.waiting)  # largest first
        self.later: list[tuple[float, int]] = []
        self.running: dict[Any, int] = {}

    def run(self) -> None:
        """Until every item has a result or a failure, or the run is halted."""
        try:
            while (self.waiting or self.running or self.later) and not self.halt.is_set():
                self._submit()
                self._collect()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = error
        finally:
            for reference in self.running:
                self.ray.cancel(reference, force=True)

    def _submit(self) -> None:
        now = time.monotonic()
        while self.later and self.later[0][0] <= now:
            index = heapq.heappop(self.later)[1]
            heapq.heappush(self.waiting, (-self.work.bytes_of(self.work.items[index]), index))
        while self.waiting and len(self.running) < self.window:
            index = heapq.heappop(self.waiting)[1]
            item = self.work.items[index]
            wanted = MIN_TASK_BYTES + MEMORY_PER_INPUT_BYTE * self.work.bytes_of(item)
            wanted <<= self.work.attempts.get(index, 0)  # a task killed for memory gets twice as much
            task = self.remote.options(
                memory=min(wanted, self.memory_limit), max_retries=0, name=self.work.name_of(item)
            )
            self.running[task.remote(self.work.function, item)] = index

    def _collect(self) -> None:
        if not self.running:
            time.sleep(POLL_SECONDS)
            return
        finished, _ = self.ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
        for reference in finished:
            index = self.running.pop(reference)
            try:
                self.work.results[index] = self.ray.get(reference)
                self.done.put(self.work.results[index])
            except self.ray.exceptions.RayTaskError as error:
                self._failed(index, error.cause if isinstance(error.cause, BaseException) else error)
            except self.ray.exceptions.RayError as error:
                self._failed(index, WorkerLost(f"its worker died: {str(error).strip().splitlines()[0]}"))

    def _failed(self, index: int, error: BaseException) -> None:
        never = threading.Event()
        never.set()  # no waiting here: the delay is kept in `later`
        if _try_again(self.work, index, error, never):
            delay = RETRY_SECONDS[self.work.attempts[index] - 1]
            heapq.heappush(self.later, (time.monotonic() + delay, index))
