"""The graph as runs and plans: cached states, causes, --from, --until, --force."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows import launch
from flows.pipeline import plan
from tasks.errors import ConfigError
from tasks.journal import read_events
from tasks.manifest import load_manifest
from tasks.parts import read_part
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.select.drop_list import write_drop_list
from tasks.storage import Storage
from tasks.why import tell_story
from tests.flows.conftest import states_of_tasks

Execute = Callable[..., tuple[Any, RunRecord]]
CURATION = ["ingest", "dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate", "mix"]


def planned(root: str, recipe: dict[str, Any], *, until: str | None = "mix", force: bool = False) -> dict[str, str]:
    values = Recipe.parse(recipe).model_dump(mode="json")
    return {line.label: str(line) for line in plan(root, values, None, until, force)}


def test_a_plan_of_an_empty_root_says_what_would_run(root: str, recipe_values: dict[str, Any]) -> None:
    verdicts = planned(root, recipe_values)
    assert verdicts == {"ingest": "run (never computed here)"} | dict.fromkeys(CURATION[1:], "if changed")
    assert list(verdicts) == CURATION


def test_a_drop_list_costs_what_comes_after_it_and_the_plan_says_why(
    execute: Execute, first: RunRecord, root: str, recipe_values: dict[str, Any]
) -> None:
    storage = Storage(root)
    kept = load_manifest(storage, first.datasets[-2].reference)
    [doc_id, *_] = [d for part in kept.parts for table in read_part(storage, part) for d in table["doc_id"].to_pylist()]
    made = write_drop_list(storage, {doc_id: {"score": 7.5}})
    values = recipe_values | {"select": {"drop_lists": [made.model_dump()]}}
    assert planned(root, values)["select"] == "run (drop_lists changed)"
    assert all(planned(root, values)[stage].startswith("cached") for stage in CURATION[:3])
    state, record = execute(recipe=values)
    assert state.is_completed()
    assert [line.label for line in record.datasets if line.cached] == CURATION[:3]
    story = tell_story(storage, record, doc_id)
    assert (story.facts[-1].stage, story.facts[-1].reason, story.facts[-1].detail) == (
        "select",
        "drop_list",
        {"score": 7.5},
    )
    before, after = (load_manifest(storage, run.datasets[-2].reference) for run in (first, record))
    changed = [one.source for one, other in zip(before.parts, after.parts, strict=True) if one.digest != other.digest]
    assert changed == [doc_id.rpartition(":")[0]]  # one part


def test_a_second_run_is_cached_and_says_so_everywhere(
    execute: Execute, first: RunRecord, server_url: str, root: str, recipe_values: dict[str, Any]
) -> None:
    assert [line.label for line in first.datasets] == CURATION
    assert not any(line.cached for line in first.datasets)
    states = states_of_tasks(server_url, first, CURATION)
    assert {states[stage] for stage in CURATION} == {("Completed", 1)}

    assert planned(root, recipe_values) == dict.fromkeys(CURATION, f"cached (run {first.run_id})")
    state, second = execute()
    assert state.name == "Completed"
    assert [(line.label, line.reference, line.made_by, line.cached) for line in second.datasets] == [
        (line.label, line.reference, first.run_id, True) for line in first.datasets
    ]
    states = states_of_tasks(server_url, second, CURATION)
    assert {states[stage][0] for stage in CURATION} == {"Cached"}

    events = read_events(Storage(root), second.run_id)
    assert [event["label"] for event in events if event["kind"] == "stage finished"] == CURATION
    assert (events[-1]["kind"], events[-1]["state"]) == ("run ended", "completed")
    for name in ("report.html", "inputs.json"):
        assert Storage(root).exists(f"runs/{second.run_id}/{name}")


def test_the_dashboard_shows_funnel_samples_and_graph(first: RunRecord, server_url: str) -> None:
    with launch.connected(server_url), get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["funnel", "samples", "graph"]))
        )
    pages = {artifact.key: str(artifact.data) for artifact in found}
    assert "data:image/svg+xml" in pages["funnel"]
    assert "(data:image/svg+xml" in pages["graph"]
    assert "samples" in pages


def test_a_changed_setting_names_itself_and_leaves_what_comes_before(
    execute: Execute, first: RunRecord, root: str, recipe_values: dict[str, Any]
) -> None:
    changed = recipe_values | {"select": {"max_drop_ratio": 0.8}}
    verdicts = planned(root, changed)
    assert [verdicts[stage] for stage in CURATION[:3]] == [f"cached (run {first.run_id})"] * 3
    assert verdicts["select"] == "run (max_drop_ratio: 0.9 -> 0.8)"
    assert {verdicts[stage] for stage in CURATION[4:]} == {"if changed"}

    _, second = execute(recipe=changed)
    # select gave the same documents, so nothing after it ran again
    assert [line.label for line in second.datasets if not line.cached] == ["select"]


def test_stages_before_from_are_only_looked_up(
    execute: Execute, first: RunRecord, root: str, recipe_values: dict[str, Any]
) -> None:
    changed = recipe_values | {"select": {"max_drop_ratio": 0.8}}
    state, record = execute(recipe=changed, from_stage="dedup-near")
    assert state.is_failed()
    assert [line.label for line in record.datasets] == CURATION[:3]
    assert "select is not computed yet (max_drop_ratio: 0.9 -> 0.8)" in record.attempts[-1].message
    assert record.state == "failed"

    state, record = execute(recipe=changed, from_stage="select", until_stage="select")
    assert state.is_completed()
    assert [line.label for line in record.datasets if not line.cached] == ["select"]
    assert "dedup-near" not in planned(root, recipe_values, until="select")


def test_force_computes_again_and_gets_the_same(
    execute: Execute, first: RunRecord, root: str, recipe_values: dict[str, Any]
) -> None:
    assert planned(root, recipe_values, until="dedup-exact", force=True)["ingest"] == "run (forced, generation 1)"
    _, second = execute(until_stage="dedup-exact", force=True)
    assert second.generations == {"ingest": 1, "dedup-exact": 1}
    assert not any(line.cached for line in second.datasets)
    for old, new in zip(first.datasets, second.datasets, strict=False):
        assert old.reference != new.reference
        assert old.digest == new.digest
        assert load_manifest(Storage(root), new.reference).generation == 1
    _, third = execute(run_id=second.run_id, until_stage="dedup-exact", force=True)  # the same run, forced again
    assert third.generations == {"ingest": 2, "dedup-exact": 2}
    assert not any(line.cached for line in third.datasets)
    _, fourth = execute(run_id=second.run_id, until_stage="dedup-exact")  # its next attempt goes on with what it forced
    assert [line.reference for line in fourth.datasets] == [line.reference for line in third.datasets]


@pytest.mark.parametrize(
    ("stages", "message"), [(("nonsense", None), "'nonsense' does not exist"), (("mix", "ingest"), "comes after")]
)
def test_wrong_stages_are_refused_before_anything_runs(
    root: str, recipe_values: dict[str, Any], stages: tuple[str | None, str | None], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(root, Recipe.parse(recipe_values).model_dump(mode="json"), *stages, False)


def test_a_plan_loads_neither_ray_nor_torch(
    root: str, first: RunRecord, recipe_values: dict[str, Any], prefect_home: Any
) -> None:
    script = (
        "import sys, json; from flows.pipeline import plan; plan(*json.loads(sys.argv[1]));"
        "print([name for name in ('ray', 'torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    values = Recipe.parse(recipe_values).model_dump(mode="json")
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([root, values, None, None, False])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
