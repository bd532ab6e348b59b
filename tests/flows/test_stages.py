"""The page of stages: what is tried again, what a cancelled stage becomes, how packs are named."""

from collections.abc import Callable
from typing import Any

import pytest
from prefect import Task
from prefect.states import Failed

from flows import stages
from model.config import TrainConfig
from model.phases import PhaseConfig
from tasks.dataset import Workspace
from tasks.errors import Cancelled, ConfigError, DataError, LeaseLost, StorageError, TrainingDiverged, WorkerLost
from tasks.manifest import Manifest, load_manifest
from tasks.mixture import split_documents
from tasks.runs import RUN_STAGES, RunRecord
from tasks.storage import Storage

Execute = Callable[..., tuple[Any, RunRecord]]


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (StorageError("503"), True),
        (WorkerLost("killed"), True),
        (ConfigError("wrong"), False),
        (DataError("wrong"), False),
        (Cancelled("stop"), False),
        (LeaseLost("other run"), False),
        (TrainingDiverged("nan"), False),
        (KeyError("a bug"), False),
    ],
)
def test_only_what_another_try_can_mend_is_tried_again(error: Exception, is_retried: bool) -> None:
    assert stages.is_worth_retrying(stages.mix, None, Failed(data=error)) is is_retried  # type: ignore[arg-type]


def test_every_stage_is_a_task_that_prefect_neither_caches_nor_pickles() -> None:
    tasks = {value.name: value for value in vars(stages).values() if isinstance(value, Task)}
    assert set(RUN_STAGES) == set(tasks) - {"prepare", "report"}
    for task in tasks.values():
        assert task.persist_result is False
        assert task.retries == 2
        assert task.retry_condition_fn is stages.is_worth_retrying
        assert not task.tags  # a tag costs a question about its concurrency limit, 0.2 s a stage


class Flaky:
    """Fails so often with an error when it is to compute, then does the work."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self, *args: Any, into: Workspace, **kwargs: Any) -> Manifest:
        self.calls += not into.dry
        if self.calls <= self.times and not into.dry:
            raise self.error
        return split_documents(*args, into=into, **kwargs)


@pytest.mark.parametrize(
    ("error", "times", "calls", "state"),
    [
        (StorageError("503"), 1, 2, "completed"),
        (StorageError("503"), 9, 3, "failed"),
        (DataError("part 7 lost a row"), 9, 1, "failed"),
    ],
)
def test_a_run_with_a_stage_that_fails(
    execute: Execute, first: RunRecord, recipe_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    error: Exception, times: int, calls: int, state: str,
) -> None:  # fmt: skip
    flaky = Flaky(error, times)
    monkeypatch.setattr(stages, "split_documents", flaky)
    monkeypatch.setattr(stages, "mix", stages.mix.with_options(retry_delay_seconds=0))
    _, record = execute(recipe=recipe_values | {"mix": {"held_out_ratio": 0.3}})
    assert (flaky.calls, record.state) == (calls, state)
    if state == "failed":
        assert record.attempts[-1].message == f"{type(error).__name__}: {error}"
        assert [line.label for line in record.datasets][-1] == "decontaminate"


def test_packs_of_a_phase_are_named_and_ordered() -> None:
    phase = PhaseConfig.model_validate(
        {
            "name": "long", "tokens": 4096, "weights": {"web": 1, "code": 2, "none": 0}, "sequence_length": 64,
            "min_document_tokens": 32, "batch": 4, "schedule": {"lr": 1e-3},
        }
    )  # fmt: skip
    labels = [stages.pack_label(request) for request in stages.pack_requests(phase, "held_out")]
    assert labels == ["pack code held_out 64 min 32", "pack web held_out 64 min 32"]


def test_a_model_is_judged_by_every_source_that_it_has_read() -> None:
    """What annealing makes it forget shows: sources of the phases before count, each as it was read last."""
    values = {"tokens": 8192, "sequence_length": 64, "batch": 4, "schedule": {"lr": 3e-3}}
    phases = [
        values | {"name": "main", "weights": {"web": 2, "code": 1}},
        values | {"name": "side", "weights": {"books": 1}, "after": "main"},
        values | {"name": "anneal", "weights": {"web": 1}, "after": "main", "sequence_length": 128},
    ]
    train = TrainConfig.model_validate({"phases": phases})
    labels = [stages.pack_label(request) for request in stages.held_out_requests(train)]
    assert labels == ["pack code held_out 64", "pack web held_out 128"]


def test_a_source_is_divided_by_the_size_of_its_clusters(
    execute: Execute, first: RunRecord, recipe_values: dict[str, Any], root: str
) -> None:
    """Near dedup's output reaches mix past the stages between; nothing but mix is computed again."""
    buckets = {"signal": "cluster_size", "edges": [2]}
    phase = recipe_values["train"]["phases"][0] | {"weights": {"web/0": 1, "web/1": 3, "code": 1}}
    mix = {"held_out_ratio": 0.2, "by_source": {"web": {"buckets": buckets}}}
    train = recipe_values["train"] | {"phases": [phase]}
    state, record = execute(recipe=recipe_values | {"mix": mix, "train": train})
    assert state.is_completed(), state.message
    assert [line.reference for line in record.datasets[:-1]] == [line.reference for line in first.datasets[:-1]]
    made = {line.label: load_manifest(Storage(root), line.reference) for line in record.datasets}
    documents = {
        name: sum(split["documents"] for split in sizes.values()) for name, sizes in made["mix"].extra["sizes"].items()
    }
    assert documents["web/1"] > 0
    assert sum(documents.values()) == made["decontaminate"].totals["rows_out"]
