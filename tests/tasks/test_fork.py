"""Forks: what is taken of a checkpoint, what is fresh, what is refused; trace and why go on through them."""

from dataclasses import replace
from typing import Any

import pytest

from model.architecture import ModelConfig
from model.checkpoint_files import list_steps, read_metrics, read_state, step_key
from model.config import PhaseRun
from model.phases import ForkConfig
from tasks.contamination import training_packs
from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.evaluate import imported_weights
from tasks.fork import check_fork, check_vocabulary, find_checkpoint, take_checkpoint, taken_before
from tasks.manifest import Manifest
from tasks.model_card import _phases
from tasks.report import write_report
from tasks.runs import DatasetLine, RunRecord
from tasks.summary import summarise
from tasks.trace import trace_step
from tasks.train import train_phase
from tasks.why import tell_story
from tests.tasks.conftest import LENGTH as REAL_LENGTH
from tests.tasks.conftest import TrainedRun, phase_run
from tests.tasks.test_train import LENGTH, MODEL, ROWS, SETTINGS, make_pack, make_run

PARENT, CHILD = "20260101-000000-aaaa", "20260102-000000-bbbb"


def record_of(into: Workspace, *manifests: tuple[str, Manifest]) -> RunRecord:
    """The record of the workspace's run, with these datasets by label."""
    record = RunRecord(
        run_id=into.run_id,
        created="2026-01-01",
        recipe={"name": "x", "train": {"phases": [{"name": "main"}, {"name": "tail"}]}},
    )
    for label, manifest in manifests:
        record.set_dataset(
            DatasetLine(
                label=label, stage=manifest.stage, reference=manifest.reference, digest=manifest.digest, code="",
                made_by=into.run_id, cached=False, attempt=1, seconds=0.0,
            )
        )  # fmt: skip
    record.save(into.storage)
    return record


@pytest.fixture
def packs(workspace: Workspace) -> list[Manifest]:
    return [make_pack(workspace, source) for source in ("web", "code")]


@pytest.fixture
def parent(workspace: Workspace, packs: list[Manifest]) -> Manifest:
    """A finished run: checkpoints at steps 2, 4 and 6."""
    into = replace(workspace, run_id=PARENT)
    trained = train_phase(*packs, into=into, config=make_run(), settings=SETTINGS)
    record_of(into, ("train main", trained))
    return trained


def child_run(take: str = "state", **phase: Any) -> PhaseRun:
    fields: dict[str, Any] = {"name": "tail", "tokens": 2 * ROWS * LENGTH, "schedule": {"lr": 5e-3}}
    return make_run(**(fields | phase)).model_copy(update={"take": take})


def fork(into: Workspace, **fields: Any) -> Manifest:
    return take_checkpoint(into=into, config=ForkConfig(run=PARENT, **fields))


def test_a_fork_goes_on_where_the_checkpoint_stood(
    workspace: Workspace, packs: list[Manifest], parent: Manifest
) -> None:
    """pytorch#60265, gpt-neox#1029: hyper-parameters are the recipe's, moments the checkpoint's, and it is said."""
    into = replace(workspace, run_id=CHILD)
    taken = fork(into, step=4)
    trained = train_phase(*packs, taken, into=into, config=child_run(), settings=SETTINGS)
    state = read_state(workspace.storage, trained.extra["checkpoint"])
    assert state.applied_steps == 4 + 2
    assert sum(state.ordinals.values()) == (4 + 2) * ROWS
    assert read_metrics(workspace.storage, trained.extra["checkpoint"])["lr"].to_pylist()[-1] == pytest.approx(5e-4)
    facts = trained.extra["fork"]
    assert (facts["run"], facts["phase"], facts["step"], facts["reference"]) == (PARENT, "main", 4, parent.reference)
    assert facts["settings"] == {"schedule.lr": [1e-2, 5e-3]}
    assert facts["taken"] == ["weights", "moments", "step count of the moments", "order of the data"]
    assert [entry["stage"] for entry in trained.inputs if entry["role"] == "parent"] == ["fork"]
    record = record_of(into, ("train tail", trained))
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert f"Phase tail begins with step 4 of phase main of run {PARENT}." in page
    assert "schedule.lr: 0.01 &rarr; 0.005" in page
    size = child_run().model.num_parameters
    assert f"{size:,} parameters, of which a token meets {size:,}." in page
    assert summarise(workspace.storage, record)["active_parameters"] == size


def test_weights_alone_begin_with_moments_at_zero(
    workspace: Workspace, packs: list[Manifest], parent: Manifest
) -> None:
    """pytorch#91205: never zero moments without saying so."""
    into = replace(workspace, run_id=CHILD)
    taken = fork(into, step=4)
    both = [
        train_phase(*packs, taken, into=into, config=child_run(take), settings=SETTINGS)
        for take in ("state", "weights")
    ]
    states = [read_state(workspace.storage, trained.extra["checkpoint"]) for trained in both]
    assert [state.applied_steps for state in states] == [6, 2]
    assert states[0].ordinals == states[1].ordinals
    assert both[0].extra["loss_first"] == both[1].extra["loss_first"]
    assert both[0].extra["loss_last"] != both[1].extra["loss_last"]
    assert both[1].extra["fork"]["fresh"] == ["clock", "schedule", "stability window", "moments"]


def test_a_fork_at_the_end_is_as_the_next_phase_of_the_same_run(
    workspace: Workspace, packs: list[Manifest], parent: Manifest
) -> None:
    followed = train_phase(*packs, parent, into=workspace, config=child_run(), settings=SETTINGS)
    forked = train_phase(*packs, fork(workspace), into=workspace, config=child_run(), settings=SETTINGS)
    one, other = (read_metrics(workspace.storage, manifest.extra["checkpoint"]) for manifest in (followed, forked))
    assert one["loss"].to_pylist() == other["loss"].to_pylist()
    assert one["position_from"].to_pylist() == other["position_from"].to_pylist()


def test_the_copy_outlives_what_it_was_taken_from(
    workspace: Workspace, packs: list[Manifest], parent: Manifest
) -> None:
    taken = fork(workspace, step=2)
    for file in workspace.storage.list_files(f"{parent.reference}/checkpoints/step-00000002"):
        if not file.key.endswith("metrics.parquet"):
            workspace.storage.delete(file.key)
    with pytest.raises(ConfigError, match=r"phase main of run .* has no checkpoint of step 2; steps with one: 4, 6"):
        fork(workspace, step=2)
    record_of(replace(workspace, run_id=CHILD), ("fork tail", taken))
    assert taken_before(workspace.storage, CHILD, "fork tail") == taken.reference  # a rerun keeps what it took
    assert taken_before(workspace.storage, CHILD, "fork main") is None
    assert taken_before(workspace.storage, "20260103-000000-cccc", "fork tail") is None
    trained = train_phase(*packs, taken, into=workspace, config=child_run(), settings=SETTINGS)
    assert trained.extra["fork"]["step"] == 2


def test_a_training_that_is_not_finished_can_be_forked(workspace: Workspace, packs: list[Manifest]) -> None:
    into = replace(workspace, run_id=PARENT)
    whole = train_phase(*packs, into=into, config=make_run(), settings=SETTINGS)
    record_of(into)  # a run that never got to note its phase
    workspace.storage.delete(f"{whole.reference}/manifest.json")
    with pytest.raises(NotComputed):
        fork(replace(workspace, dry=True), step=4)
    taken = fork(workspace, step=4)
    assert [entry["role"] for entry in taken.inputs] == ["pack:code", "pack:web"]
    assert fork(replace(workspace, dry=True), step=4).run_id == "test"
    sources = [source for source, _ in training_packs(workspace.storage, taken)]
    assert sources == ["code", "web"]


def test_what_is_not_there_or_does_not_fit_is_refused(
    workspace: Workspace, packs: list[Manifest], parent: Manifest
) -> None:
    """torchtitan#3732: a step that does not exist, or another model's checkpoint, never means a start from scratch."""
    storage = workspace.storage
    with pytest.raises(ConfigError, match="no such run"):
        find_checkpoint(storage, ForkConfig(run="20250101"))
    with pytest.raises(ConfigError, match="has trained no phase 'anneal'; it has main"):
        fork(workspace, phase="anneal")
    with pytest.raises(ConfigError, match="no checkpoint of step 5; steps with one: 2, 4, 6"):
        check_fork(storage, ForkConfig(run=PARENT, step=5), child_run())
    wider = ModelConfig.of_size("tiny", width=64, num_heads=4, mlp_width=64, vocab_size=256)
    with pytest.raises(ConfigError, match=r"another model: model\.width 64, there 32, model\.head_width 16, there 8"):
        check_fork(storage, ForkConfig(run=PARENT), child_run().model_copy(update={"model": wider}))
    other = child_run().model_copy(update={"model": MODEL.model_copy(update={"dropout": 0.1, "rope_base": 5e5})})
    with pytest.raises(ConfigError, match="its weights know rope_base 10000, the model has 500000: give the phase"):
        check_fork(storage, ForkConfig(run=PARENT), other)
    check_fork(storage, ForkConfig(run=PARENT), child_run(rope_base=5e5))
    check_fork(storage, ForkConfig(run=PARENT), child_run())
    record_of(replace(workspace, run_id=CHILD))
    with pytest.raises(ConfigError, match="has trained no phase; it has none"):
        find_checkpoint(storage, ForkConfig(run=CHILD))


def test_a_run_is_never_a_fork_of_itself(workspace: Workspace, parent: Manifest) -> None:
    """An id given in part was that of the parent alone when the recipe was planned; then the run itself began so."""
    common = "2026010"  # both begin so
    into = replace(workspace, run_id=CHILD)
    record_of(into)
    check_fork(workspace.storage, ForkConfig(run=common), child_run(), CHILD)
    assert take_checkpoint(into=into, config=ForkConfig(run=common)).extra["run"] == PARENT
    with pytest.raises(ConfigError, match="no such run"):
        take_checkpoint(into=into, config=ForkConfig(run=CHILD))


def test_a_flipped_bit_is_not_taken(workspace: Workspace, parent: Manifest) -> None:
    folder = step_key(f"{parent.reference}/checkpoints", 4)
    [shard] = [file.key for file in workspace.storage.list_files(folder) if file.key.endswith(".safetensors")]
    data = bytearray(workspace.storage.read_bytes(shard))
    data[-1] ^= 1
    workspace.storage.write_bytes(shard, bytes(data))
    with pytest.raises(DataError, match="has sha256"):
        fork(workspace, step=4)
    assert list_steps(workspace.storage, "fork") == []


def test_packs_of_another_tokenizer_are_refused(workspace: Workspace, parent: Manifest) -> None:
    taken = fork(workspace, step=4)
    vocabulary = {"role": "vocabulary", "stage": "vocabulary", "fingerprint": "f", "digest": "d1"}
    packs = [replace(make_pack(workspace, source), inputs=[vocabulary]) for source in ("web", "code")]
    check_vocabulary(workspace.storage, packs, taken)  # the packs of the fork name no tokenizer: made by a test
    seen = make_pack(workspace, "web", rows=301)
    workspace.storage.delete(f"{seen.reference}/manifest.json")
    replace(seen, inputs=[vocabulary | {"digest": "d2"}]).publish(workspace.storage)
    entry = {"role": "pack:web", "stage": "pack", "fingerprint": seen.fingerprint, "digest": seen.digest}
    with pytest.raises(ConfigError, match=f"another tokenizer .* pin: {{vocabulary: {PARENT}}}"):
        check_vocabulary(workspace.storage, packs, replace(taken, inputs=[entry]))


def test_lineage_goes_on_through_the_fork(workspace: Workspace, packs: list[Manifest], parent: Manifest) -> None:
    into = replace(workspace, run_id=CHILD)
    taken = fork(into, step=4)
    more = make_pack(workspace, "web", rows=340)
    trained = train_phase(packs[1], more, taken, into=into, config=child_run(), settings=SETTINGS)
    storage = workspace.storage
    assert {pack.digest for _, pack in training_packs(storage, trained)} == {
        manifest.digest for manifest in (*packs, more)
    }
    assert imported_weights(storage, trained) == {"imported": taken.reference}
    assert [row[0] for row in _phases(storage, trained)] == [f"main, to step 4 (run {PARENT})", "tail"]


def test_trace_and_why_go_on_through_the_fork(trained_run: TrainedRun) -> None:
    into, storage = replace(trained_run.into, run_id=PARENT), trained_run.into.storage
    ingested, *packs = (
        into.load(f"{entry['stage']}/{entry['fingerprint']}")
        for entry in (trained_run.documents.inputs[0], *trained_run.trained.inputs)
    )
    parent = record_of(into, ("ingest", ingested), ("train main", trained_run.trained))
    into = replace(into, run_id=CHILD)
    taken = fork(into)
    values = phase_run().model_dump(mode="json", exclude={"max_epochs"})
    values["phase"] |= {"name": "tail", "tokens": 2 * 8 * REAL_LENGTH}
    values["phase"]["schedule"] |= {"warmup_tokens": 0}
    run = PhaseRun.model_validate(values).model_copy(update={"max_epochs": 1000.0})
    trained = train_phase(*packs, taken, into=into, config=run, settings=SETTINGS)
    child = record_of(into, ("fork tail", taken), ("train tail", trained))

    own = trace_step(storage, child, 2)
    assert (own.phase, own.step, len(own.rows)) == ("tail", 2, 8)
    before, there = trace_step(storage, child, 3, "main"), trace_step(storage, parent, 3)
    assert before.rows == there.rows
    assert before.metrics == there.metrics
    with pytest.raises(ConfigError, match="no trained phase 'anneal'; phases: main, tail"):
        trace_step(storage, child, 3, "anneal")
    with pytest.raises(
        ConfigError, match=r"step 41: phase main has steps 1 to 40, phase tail has steps 1 to \d+; --phase chooses one"
    ):
        trace_step(storage, child, 41, "main")

    document = there.rows[0].spans[0].doc_id
    assert tell_story(storage, child, document) == tell_story(storage, parent, document)
    both = record_of(into, ("ingest", ingested), ("fork tail", taken))
    placed = [fact for fact in tell_story(storage, both, document).facts if fact.stage == "pack"]
    assert [fact.reason for fact in placed] == [f"pack:{there.rows[0].source} of run {PARENT}"]
    with pytest.raises(ConfigError, match="not in this run"):
        tell_story(storage, child, "web:nothing")
