"""Fixtures for the flows: one Prefect server for the session, a recipe over real text that runs in a few seconds."""

import json
import os
import pydoc_data.topics
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flows.prefect_server import quiet_environment, use_server

quiet_environment()  # before prefect is imported, as the command does

from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterParentFlowRunId  # noqa: E402

from flows import cli, launch  # noqa: E402
from tasks.recipe import Recipe  # noqa: E402
from tasks.runs import RunRecord, load_record, new_run_id  # noqa: E402
from tasks.storage import Storage  # noqa: E402
from tests.conftest import LIMIT_SECONDS  # noqa: E402

Execute = Callable[..., Any]
TinyRecipe = Callable[[Path], dict[str, Any]]
SOURCES = {"web": 2, "code": 1}  # files of each source; each file is a part


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A PREFECT_HOME of the session's own."""
    home = tmp_path_factory.mktemp("prefect")
    before = {name: os.environ.get(name) for name in ("PREFECT_HOME", "PREFECT_API_URL")}
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.pop("PREFECT_API_URL", None)
    yield home
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def server_url(prefect_home: Path) -> Iterator[str]:
    """The session's server; runs in this process and commands in others join it."""
    with use_server() as server_url:
        yield server_url()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """command("plan", "recipe.yaml", ...) -> (exit status, stdout, stderr) of the command in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            cli.main(list(arguments))
            status = 0
        except SystemExit as exit:
            status = int(exit.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are computed in this process."""
    monkeypatch.setenv("BASEMILL_WORKERS", "0")


@pytest.fixture(scope="session")
def tiny_recipe() -> TinyRecipe:
    """tiny_recipe(folder) -> values: writes raw files there, and a recipe over them that is tiny in everything else.

    The text is the help of the installed Python: three files, two sources, with an exact and a near copy in each.
    """

    def write(folder: Path) -> dict[str, Any]:
        topics = sorted(pydoc_data.topics.topics.items())
        files = [f"{source}/{number}.jsonl" for source, count in SOURCES.items() for number in range(count)]
        for index, name in enumerate(files):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [
                {"text": text, "url": f"https://docs.example/{topic}"} for topic, text in topics[index :: len(files)]
            ]
            longest = max(rows, key=lambda row: len(row["text"]))
            rows.append({"text": longest["text"]})
            rows.append({"text": longest["text"].replace("expression", "formula", 3) + " One more sentence."})
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {
            "name": "tiny",
            "ingest": {"part_bytes": 200_000, "sources": {s: {"base": str(folder / s)} for s in SOURCES}},
            "mix": {"held_out_ratio": 0.2},
            "vocabulary": {"size": 300},
            "model": {"size": "tiny"},
            "train": {
                "precision": "fp32",
                "phases": [
                    {
                        "name": "main", "tokens": 8192, "weights": {"web": 2, "code": 1}, "sequence_length": 64,
                        "batch": 4, "schedule": {"lr": 3e-3},
                    }
                ],
            },
        }  # fmt: skip

    return write


@pytest.fixture(scope="session")
def raw_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files that no test changes."""
    return tmp_path_factory.mktemp("raw")


@pytest.fixture
def recipe_values(raw_folder: Path, tiny_recipe: TinyRecipe) -> dict[str, Any]:
    """The tiny recipe."""
    return tiny_recipe(raw_folder)


@pytest.fixture
def recipe_path(tmp_path: Path, recipe_values: dict[str, Any]) -> Path:
    """The same recipe as a file (JSON is YAML)."""
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(recipe_values))
    return path


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty storage root."""
    return str(tmp_path / "lake")


def run_recipe(
    server_url: str, root: str, values: dict[str, Any], run_id: str | None, **parameters: Any
) -> tuple[Any, RunRecord]:
    """(final state, record) of a run, made as the command makes it."""
    run_id = run_id or new_run_id()
    wanted = {"root": root, "recipe": Recipe.parse(values).model_dump(mode="json")}
    wanted |= {"from_stage": None, "until_stage": "mix", "force": False} | parameters
    with launch.connected(server_url) as client:
        state = launch.execute(client, launch.create_run(client, run_id, wanted))
    return state, load_record(Storage(root), run_id)


def states_of_tasks(server_url: str, record: RunRecord, wanted: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Name of a stage: name of its task's state, times it ran; of the last attempt, once these have ended.

    Tasks tell the server by events, which it takes in after the run has ended.
    """
    parent, deadline = UUID(record.attempts[-1].flow_run_id), time.monotonic() + LIMIT_SECONDS
    with launch.connected(server_url), get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            children = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
            )
            ids = [parent, *(child.id for child in children)]
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))
            tasks = {task.name.rpartition("-")[0]: task for task in found}
            if set(wanted) <= tasks.keys() and all(task.state and task.state.is_final() for task in found):
                break
            time.sleep(0.1)
    return {stage: (task.state_name or "", task.run_count) for stage, task in tasks.items()}


@pytest.fixture(scope="session")
def curated(server_url: str, raw_folder: Path, tiny_recipe: TinyRecipe, tmp_path_factory: Any) -> RunRecord:
    """A finished run of the tiny recipe up to mix, in `lake` beside its raw files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASEMILL_WORKERS", "0")
        state, record = run_recipe(server_url, str(raw_folder / "lake"), tiny_recipe(raw_folder), None)
    assert state.is_completed(), state.message
    return record


@pytest.fixture(scope="session")
def finished(
    server_url: str, curated: RunRecord, raw_folder: Path, tiny_recipe: TinyRecipe, tmp_path_factory: Any
) -> tuple[str, RunRecord]:
    """Root and record of a run of the whole tiny recipe that nothing disturbed, in this process."""
    root = str(tmp_path_factory.mktemp("finished") / "lake")
    shutil.copytree(raw_folder / "lake", root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASEMILL_WORKERS", "0")
        state, record = run_recipe(server_url, root, tiny_recipe(raw_folder), None, until_stage=None)
    assert state.is_completed(), state.message
    return root, record


@pytest.fixture
def first(curated: RunRecord, raw_folder: Path, root: str) -> RunRecord:
    """The record of a finished run up to mix, which lies in the test's root."""
    shutil.copytree(raw_folder / "lake", root)
    return curated


@pytest.fixture
def execute(server_url: str, root: str, recipe_values: dict[str, Any]) -> Execute:
    """execute(run_id="...", recipe=..., until_stage="mix", ...) -> (final state, record), in the test's root."""

    def run(run_id: str | None = None, recipe: dict[str, Any] | None = None, **parameters: Any) -> Any:
        return run_recipe(server_url, root, recipe or recipe_values, run_id, **parameters)

    return run
