"""Runs from the command line: registered as runs of a deployment, executed in this process, cancelled from anywhere.

The flow run is created from the deployment in state Pending, since workers take Scheduled ones only. So the dashboard
can cancel it, and Retry or Copy hand it to a worker of the pool. This process asks for the run's state each second: on
Cancelling it tells the stage to stop, and the flow ends as Cancelled.
"""

import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectAlreadyExists, PrefectException, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Pending
from prefect.utilities.callables import parameter_schema

from flows.attempt import RUN_LABEL
from flows.pipeline import basemill
from tasks.config import key_schema
from tasks.journal import STOP
from tasks.recipe import Recipe
from tasks.runs import RunRecord

POOL = "basemill"
DEPLOYMENT = "basemill"
ENTRYPOINT = "flows.pipeline.basemill"
POLL_SECONDS = 1.0
DRAIN_SECONDS = 10.0


@contextlib.contextmanager
def connected(api_url: str) -> Iterator[SyncPrefectClient]:
    """A client of this server, which the flow uses too."""
    with temporary_settings({PREFECT_API_URL: api_url}), get_client(sync_client=True) as client:
        yield client


def register(client: SyncPrefectClient) -> UUID:
    """Create or refresh the work pool and the deployment; returns the deployment's id."""
    with contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    return client.create_deployment(
        flow_id=client.create_flow(basemill),
        name=DEPLOYMENT,
        entrypoint=ENTRYPOINT,
        work_pool_name=POOL,
        pull_steps=[],  # the code is the installed package, on every machine
        parameter_openapi_schema=form_schema(),
        enforce_parameter_schema=True,
        description=basemill.description,
    )


def form_schema() -> dict[str, Any]:
    """The parameters of a run; a misspelt one, or a misspelt key of its recipe, is refused when it is submitted."""
    schema: dict[str, Any] = parameter_schema(basemill.fn).model_dump(exclude_unset=True)
    schema["properties"]["recipe"] |= key_schema(Recipe)
    return schema | {"additionalProperties": False}


def create_run(client: SyncPrefectClient, run_id: str, parameters: dict[str, Any]) -> FlowRun:
    """A Pending run of the deployment, labelled with our run id."""
    return client.create_flow_run_from_deployment(
        register(client), parameters=parameters, state=Pending(), name=run_id, labels={RUN_LABEL: run_id}
    )


def execute(client: SyncPrefectClient, flow_run: FlowRun) -> State[Any]:
    """Run it here to the end; returns its final state. Ctrl-C once cancels it, SIGTERM ends it where it is."""
    STOP.clear()
    done = threading.Event()
    watch = threading.Thread(
        target=contextvars.copy_context().run, args=(_watch, flow_run.id, done), name="state-poll", daemon=True
    )
    watch.start()
    try:
        with _signals_end_the_run():
            state: Any = run_flow(basemill, flow_run, flow_run.parameters, return_type="state")
    except TerminationSignal:  # Prefect has noted it, and has sent the signal again to the handler it found
        state = client.read_flow_run(flow_run.id).state
    finally:
        done.set()
        watch.join(2 * POLL_SECONDS)
        APILogWorker.drain_all(timeout=DRAIN_SECONDS)  # the server may go with us: first what it has not heard yet
        EventsWorker.drain_all(timeout=DRAIN_SECONDS)
    return cast(State[Any], state)


def bury(client: SyncPrefectClient, record: RunRecord) -> None:
    """Runs of earlier attempts that Prefect still takes for running, though their process was killed: Crashed."""
    for attempt in record.attempts:
        if attempt.flow_run_id and attempt.ended is None:
            with contextlib.suppress(PrefectException, httpx.HTTPStatusError):  # Prefect has forgotten it
                known = client.read_flow_run(UUID(attempt.flow_run_id))
                if known.state and not known.state.is_final():
                    client.set_flow_run_state(known.id, Crashed(message="its process was killed"), force=True)


def work(api_url: str) -> int:
    """A worker of the pool, in a process of its own, until it ends or a signal ends us; returns its exit status."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a script's background ignores SIGINT, and Prefect's worker needs it
        signal.signal(number, signal.default_int_handler)
    worker = subprocess.Popen(command, env=os.environ | {"PREFECT_API_URL": api_url})
    try:
        return worker.wait()
    except KeyboardInterrupt:
        worker.terminate()  # Ctrl-C reaches it by itself, SIGTERM does not
        worker.wait()
        return 0


def _watch(flow_run_id: UUID, done: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not done.wait(POLL_SECONDS):
            with contextlib.suppress(httpx.HTTPError):  # the server may be busy; ask again
                state = client.read_flow_run(flow_run_id).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    STOP.set()


@contextlib.contextmanager
def _signals_end_the_run() -> Iterator[None]:
    """The first Ctrl-C cancels and keeps finished parts, the second ends the process; SIGTERM does not kill it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if STOP.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        STOP.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
