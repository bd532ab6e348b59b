"""Runs of the deployment: cancelled through the API, retried by a worker, buried when their process was killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import task_engine
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import AwaitingRetry, Cancelling, Running

from flows import launch, stages
from flows.attempt import RUN_LABEL
from tasks.dataset import Workspace
from tasks.errors import Cancelled, DataError, NotComputed
from tasks.journal import STOP
from tasks.manifest import Manifest
from tasks.recipe import Recipe
from tasks.runs import RunRecord, load_record, new_run_id
from tasks.storage import Storage
from tests.conftest import LIMIT_SECONDS

Execute = Callable[..., tuple[Any, RunRecord]]
PROJECT = Path(__file__).parents[2]


def request_cancel(server_url: str, run_id: str) -> None:
    """What the dashboard's Cancel does."""
    with launch.connected(server_url) as client:
        [flow_run] = [run for run in client.read_flow_runs() if run.name == run_id]
        client.set_flow_run_state(flow_run.id, Cancelling())


def test_cancelling_stops_the_stage_keeps_what_is_finished_and_a_rerun_goes_on(
    execute: Execute, first: RunRecord, recipe_values: dict[str, Any], server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_values | {"mix": {"held_out_ratio": 0.3}}
    run_id, calls = new_run_id(), []

    def endless(*_: Any, into: Workspace, **__: Any) -> Manifest:
        if into.dry:
            raise NotComputed("mix", "for this test")
        calls.append(threading.Thread(target=request_cancel, args=(server_url, run_id), daemon=True))
        calls[-1].start()
        if STOP.wait(LIMIT_SECONDS):
            raise Cancelled("cancelled between two parts; finished parts are kept")
        raise DataError("was not cancelled")

    with monkeypatch.context() as patched:
        patched.setattr(stages, "split_documents", endless)
        state, record = execute(run_id=run_id, recipe=recipe)
    assert state.type == StateType.CANCELLED
    assert record.state == "cancelled"
    assert len(calls) == 1  # not tried again
    assert [line.label for line in record.datasets][-1] == "decontaminate"

    state, record = execute(run_id=run_id, recipe=recipe)
    assert state.is_completed()
    assert [(attempt.number, attempt.state) for attempt in record.attempts] == [(1, "cancelled"), (2, "completed")]
    assert [line.label for line in record.datasets if not line.cached] == ["mix"]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class TerminatesAtItsEnd:
    def __del__(self) -> None:
        terminate()


@pytest.mark.parametrize(
    "unlucky",
    [
        pytest.param(terminate, id="while Prefect makes the run of a stage, and says ValueError"),
        pytest.param(TerminatesAtItsEnd, id="in a destructor, where Python drops exceptions"),
    ],
)
def test_a_sigterm_at_an_unlucky_moment_is_a_sigterm_too(
    execute: Execute, monkeypatch: pytest.MonkeyPatch, unlucky: Callable[[], object]
) -> None:
    make = task_engine._create_task_run_locally

    def interrupted(*, task: Any, **details: Any) -> Any:
        if task.name == "signals":
            unlucky()
        return make(task=task, **details)

    monkeypatch.setattr(task_engine, "_create_task_run_locally", interrupted)
    state, record = execute()
    assert state.type == StateType.CRASHED
    assert (record.state, record.attempts[-1].message) == ("cancelled", "ended by SIGTERM")
    assert [line.label for line in record.datasets] == ["ingest", "dedup-exact"]


def test_retry_in_the_dashboard_hands_the_run_to_a_worker(
    execute: Execute, server_url: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Manifest:
        raise DataError("only in this process")

    with monkeypatch.context() as patched:
        patched.setattr(stages, "drop_exact_duplicates", broken)
        _, record = execute(until_stage="dedup-exact")
    assert record.state == "failed"
    flow_run_id = UUID(record.attempts[0].flow_run_id)
    with launch.connected(server_url) as client:
        assert client.read_flow_run(flow_run_id).labels[RUN_LABEL] == record.run_id
        client.set_flow_run_state(flow_run_id, AwaitingRetry(), force=True)
        subprocess.run(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", launch.POOL, "--run-once"],
            env=os.environ | {"PREFECT_API_URL": server_url, "PYTHONPATH": str(PROJECT)},
            cwd="/", check=True, capture_output=True,
        )  # fmt: skip
        flow_run = client.read_flow_run(flow_run_id)
    assert flow_run.state_name == "Completed"
    assert flow_run.run_count == 2
    record = load_record(Storage(root), record.run_id)
    assert [(attempt.state, attempt.flow_run_id) for attempt in record.attempts] == [
        ("failed", str(flow_run_id)),
        ("completed", str(flow_run_id)),
    ]
    assert [(line.label, line.cached) for line in record.datasets] == [("ingest", True), ("dedup-exact", False)]


def test_up_serves_and_works_until_it_is_told_to_stop(server_url: str) -> None:
    command = "trap '' INT; exec \"$0\" -m flows.cli up"  # as in the background of a script
    process = subprocess.Popen(
        ["sh", "-c", command, sys.executable], env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "started" in line:
            break
    assert lines[0] == f"dashboard: {server_url.removesuffix('/api')}\n"
    assert "Worker" in lines[-1]
    with launch.connected(server_url) as client:
        assert launch.POOL in {pool.name for pool in client.read_work_pools()}
    process.terminate()
    process.communicate()  # its output ends when the worker has ended too
    assert process.returncode == 0


def test_a_killed_attempt_does_not_stay_running(server_url: str, root: str, recipe_values: dict[str, Any]) -> None:
    record = RunRecord(run_id=new_run_id(), created="2026-01-01T00:00:00+00:00", recipe=recipe_values)
    with launch.connected(server_url) as client:
        parameters = {"root": root, "recipe": recipe_values, "from_stage": None, "until_stage": None, "force": False}
        flow_run = launch.create_run(client, record.run_id, parameters)
        assert flow_run.state_name == "Pending"  # no worker takes it
        assert flow_run.deployment_id is not None  # so that the dashboard offers Retry and Cancel
        client.set_flow_run_state(flow_run.id, Running(), force=True)
        record.begin_attempt(str(flow_run.id))
        record.begin_attempt("00000000-0000-0000-0000-000000000000")  # forgotten by Prefect
        launch.bury(client, record)
        assert client.read_flow_run(flow_run.id).state_name == "Crashed"


def test_registering_twice_gives_one_deployment(server_url: str) -> None:
    with launch.connected(server_url) as client, get_client(sync_client=True):
        assert launch.register(client) == launch.register(client)


def test_a_form_that_is_submitted_changes_what_was_changed_and_nothing_else(
    server_url: str, root: str, recipe_values: dict[str, Any]
) -> None:
    """prefect#7816, #18084, #12066: a nested value was lost on the way from the form, or came back as its default.

    The form sends the parameters of the run that it was opened from, recipe included, with the change: as here.
    """
    given = {"root": root, "recipe": Recipe.parse(recipe_values).model_dump(mode="json"), "until_stage": "ingest"}
    with launch.connected(server_url) as client:
        shown = launch.create_run(client, new_run_id(), given).parameters
        assert shown == given
        changed = json.loads(json.dumps(shown))
        changed["recipe"]["train"]["phases"][0]["weights"]["web"] = 3.5
        submitted = client.create_flow_run_from_deployment(launch.register(client), parameters=changed)
        kept = client.read_flow_run(submitted.id).parameters
        assert kept == changed != shown
        recipe = Recipe.parse(kept["recipe"]).model_dump(mode="json")
        assert recipe == changed["recipe"]  # no default took the place of a value, and none was lost
        client.delete_flow_run(submitted.id)


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        ({"until_stage": "mxi"}, {}, "until_stage"),
        ({"force": "perhaps"}, {}, "force"),
        ({"recipe": "demo"}, {}, "recipe"),
        ({"form_stage": "mix"}, {}, "form_stage"),
        ({}, {"dedup_nere": {}}, "recipe'. Failure reason: 'dedup_nere' is not one of"),
        ({}, {"model": {"size": "tiny", "widht": 64}}, "recipe.model'. Failure reason: 'widht' is not one of"),
        ({}, {"train": {"phases": [{"weigths": {}}]}}, "train.phases[0]'. Failure reason: 'weigths' is not one of"),
        ({}, {"select": {"by_source": {"web": {"c5": {}}}}}, "by_source.web'. Failure reason: 'c5' is not one of"),
    ],
    ids=["stage", "flag", "recipe", "parameter", "section", "key", "nested key", "override"],
)
def test_a_form_with_a_wrong_field_is_refused_with_its_name(
    server_url: str, root: str, recipe_values: dict[str, Any], change: dict[str, Any], keys: dict[str, Any], said: str
) -> None:
    """prefect#12024: what is misspelt is named when the form is submitted, not when its run has failed."""
    parameters = {"root": root, "recipe": recipe_values | keys} | change
    with launch.connected(server_url) as client, pytest.raises(PrefectHTTPStatusError) as refused:
        launch.create_run(client, new_run_id(), parameters)
    assert refused.value.response.status_code in (409, 422)
    assert said in refused.value.response.text


def test_an_override_with_a_wrong_value_fails_before_anything_runs(
    server_url: str, root: str, recipe_values: dict[str, Any]
) -> None:
    wrong = recipe_values | {"select": {"by_source": {"web": {"max_drop_ratio": 5}}}}
    with launch.connected(server_url) as client:
        state = launch.execute(client, launch.create_run(client, new_run_id(), {"root": root, "recipe": wrong}))
    assert state.is_failed()
    assert "select.by_source.web.max_drop_ratio: Input should be less than or equal to 1" in str(state.message)
    assert not list(Path(root).glob("ingest/*"))
