"""One dataset of a run: computed, found, judged in a plan, looked up before --from; pinned datasets; input files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.codedigest import TRAINER, code_digest
from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.inputs import input_files
from tasks.journal import Journal, Run, read_events
from tasks.manifest import Manifest, load_manifest
from tasks.mixture import MixConfig, split_documents
from tasks.outcome import Outcome, obtain
from tasks.pins import pinned
from tasks.recipe import Recipe
from tasks.runs import RunRecord, load_record
from tasks.storage import Storage

MakeRun = Callable[..., Run]
RATIO = MixConfig(held_out_ratio=0.5)


@pytest.fixture
def make_run(workspace: Workspace, tmp_path: Path) -> MakeRun:
    """make_run(run_id, executed=True, pin={}, **fields): a run on the workspace's root."""

    def make(run_id: str = "20260101-000000-aaaa", executed: bool = True, pin: Any = None, **fields: Any) -> Run:
        (tmp_path / "raw").mkdir(exist_ok=True)
        phase = {
            "name": "main", "tokens": 64, "weights": {"web": 1}, "sequence_length": 8, "batch": 1,
            "schedule": {"lr": 1e-3},
        }  # fmt: skip
        values = {
            "name": "x", "ingest": {"sources": {"web": {"base": str(tmp_path / "raw")}}}, "vocabulary": {"size": 300},
            "model": {"size": "tiny"}, "train": {"phases": [phase]}, "pin": pin or {},
            "prepare": fields.pop("prepare", None),
        }  # fmt: skip
        run = Run(root=workspace.storage.url, run_id=run_id, recipe=Recipe.parse(values), workers=0, **fields)
        if executed:
            record = RunRecord(run_id=run_id, created="2026-01-01", recipe=values)
            run.keep(Journal(workspace.storage, record))
        return run

    return make


@pytest.fixture
def documents(make_documents: Callable[..., Manifest]) -> str:
    return make_documents(["one", "two", "three", "four"]).reference


def mix(run: Run, documents: str | None, config: MixConfig = RATIO) -> Outcome:
    return obtain(run, "mix", split_documents, documents, config=config)


def test_a_dataset_is_computed_once_and_then_found(make_run: MakeRun, documents: str) -> None:
    first = make_run()
    made = mix(first, documents)
    assert not made.is_cached
    assert made.reference
    second = make_run("20260101-000001-bbbb")
    found = mix(second, documents)
    assert found == Outcome(made.reference, True, f"{made.reference}, made by run {first.run_id}")
    [line] = load_record(second.storage, second.run_id).datasets
    manifest = load_manifest(second.storage, made.reference)
    assert (line.reference, line.made_by, line.cached) == (made.reference, first.run_id, True)
    assert (line.digest, line.code) == (manifest.digest, manifest.code["digest"])
    kinds = [event["kind"] for event in read_events(second.storage, second.run_id)]
    assert kinds == ["run started", "stage started", "stage finished"]


def test_another_attempt_of_the_same_run_finds_its_own_dataset(
    make_run: MakeRun, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    made = mix(run, documents)
    manifest = load_manifest(run.storage, made.reference or "")
    before = {**vars(manifest), "created": "2026-01-01T00:00:00+00:00"}
    found = obtain(run, "mix", lambda *_, **__: Manifest(**before), documents)
    assert found.is_cached


def test_a_plan_judges_and_computes_nothing(make_run: MakeRun, documents: str) -> None:
    plan = make_run(executed=False, is_dry=True)
    assert mix(plan, documents).reference is None
    assert mix(plan, None).reference is None
    made = mix(make_run(), documents)
    assert mix(plan, documents).reference == made.reference
    mix(plan, documents, MixConfig(held_out_ratio=0.25))
    assert [str(line) for line in plan.plan] == [
        "run (never computed here)",
        "if changed",
        "cached (run 20260101-000000-aaaa)",
        "run (held_out_ratio: 0.5 -> 0.25)",
    ]


def test_what_lies_before_from_must_exist(make_run: MakeRun, documents: str) -> None:
    run = make_run(from_stage="vocabulary")
    with pytest.raises(ConfigError, match=r"mix is not computed yet .never computed here.*--from vocabulary"):
        mix(run, documents)
    mix(make_run("20260101-000001-bbbb"), documents)
    assert mix(run, documents).is_cached


def test_a_failed_stage_is_noted(make_run: MakeRun, documents: str) -> None:
    def broken(*_: Any, **__: Any) -> Manifest:
        raise DataError("part 7")

    run = make_run()
    with pytest.raises(DataError):
        obtain(run, "mix", broken, documents, label="mix again")
    last = read_events(run.storage, run.run_id)[-1]
    assert (last["kind"], last["label"], last["error"]) == ("stage failed", "mix again", "DataError: part 7")


def test_a_pin_takes_datasets_of_a_run_or_by_fingerprint(make_run: MakeRun, documents: str) -> None:
    made = make_run()
    reference = obtain(made, "vocabulary", split_documents, documents, config=RATIO).reference or ""  # any dataset
    assert pinned(made, "vocabulary", "vocabulary") is None
    for name in (made.run_id, made.run_id[:12], "latest"):
        run = make_run("20260101-000000-0000", pin={"vocabulary": name}, executed=False, is_dry=True)
        assert pinned(run, "vocabulary", "vocabulary") == {"vocabulary": reference}
        assert str(run.plan[0]) == f"cached (run {made.run_id})"
    fingerprint = reference.partition("/")[2][:12]
    run = make_run("20260101-000000-0001", pin={"train": fingerprint})
    run.storage.write_bytes(f"train/{fingerprint}{'0' * 52}/manifest.json", _renamed(run.storage, reference, "train"))
    assert pinned(run, "train", "main") == {"main": f"train/{fingerprint}{'0' * 52}"}
    assert load_record(run.storage, run.run_id).datasets[0].cached


def _renamed(storage: Storage, reference: str, stage: str) -> bytes:
    """The manifest of a dataset as one of another stage."""
    data = storage.read_bytes(f"{reference}/manifest.json")
    name = reference.partition("/")[2]
    return data.replace(name.encode(), (name[:12] + "0" * 52).encode()).replace(b'"stage": "mix"', b'"stage": "train"')


@pytest.mark.parametrize(
    ("name", "message"),
    [("20260101-000000", "has no dataset of stage pack"), ("0123456789", "0 datasets"), ("01", "at least 8 digits")],
)
def test_a_pin_that_names_nothing_is_refused(make_run: MakeRun, name: str, message: str) -> None:
    make_run()
    run = make_run("20270101-000000-bbbb", pin={"pack": name}, executed=False, is_dry=True)
    with pytest.raises(ConfigError, match=f"pin.pack: .*{message}"):
        pinned(run, "pack", "pack")


def test_input_files_are_listed_once_per_run(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(ConfigError, match=r"ingest\.sources\.web\.base"):
        input_files(run)
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "one"}\n')
    assert not run.storage.exists(f"runs/{run.run_id}/inputs.json")
    plan = make_run("plan", executed=False, is_dry=True)
    assert [file.key for file in input_files(plan).sources["web"]] == ["a.jsonl"]
    assert not run.storage.exists("runs/plan/inputs.json")
    first = input_files(run)
    (tmp_path / "raw" / "b.jsonl").write_text('{"text": "two"}\n')
    assert input_files(run) == first
    assert len(input_files(make_run("20260101-000001-bbbb")).sources["web"]) == 2


def test_a_plan_of_a_corpus_that_is_still_to_be_written_says_so(make_run: MakeRun) -> None:
    plan = make_run("plan", executed=False, is_dry=True, prepare="python-corpus")
    with pytest.raises(NotComputed, match="python-corpus writes its input first"):
        input_files(plan)


def test_a_plan_says_when_the_code_of_a_training_changed(make_run: MakeRun, workspace: Workspace) -> None:
    """Code is no part of a training's key: it is cached all the same."""
    run = make_run(executed=False, is_dry=True)
    for code, told in ((code_digest(TRAINER).digest, ""), ("other", "; its code changed since"), (None, "")):
        dataset = workspace.dataset("train", None, inputs={}, module="tasks.train", external={"code": str(code)})
        manifest = dataset.publish_files({"checkpoint.json": b"{}"}, extra={} if code is None else {"code": code})

        def find(into: Workspace, made: Manifest = manifest) -> Manifest:
            return made

        obtain(run, "train", find)
        assert str(run.plan[-1]) == f"cached (run test{told})"
