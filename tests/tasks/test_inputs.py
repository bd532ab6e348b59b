"""The input files of a run: listed once, the same for all its attempts; a plan writes nothing."""

from pathlib import Path

import pytest

from tasks.errors import ConfigError, NotComputed
from tasks.inputs import earlier_listing, input_files
from tasks.journal import Journal, Run
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.storage import Storage


def run_of(storage: Storage, base: str, **facts: object) -> Run:
    phase = {"name": "main", "tokens": 64, "weights": {"web": 1}, "sequence_length": 16, "batch": 1}
    recipe = {
        "name": "inputs",
        "ingest": {"sources": {"web": {"base": base}}},
        "vocabulary": {"size": 300},
        "model": {"size": "tiny"},
        "train": {"phases": [phase | {"schedule": {"lr": 1e-3}}]},
    }
    return Run(root=storage.url, run_id="r1", recipe=Recipe.parse(recipe | facts), is_dry=True)


def test_a_run_lists_once_and_a_plan_writes_nothing(tmp_path: Path) -> None:
    storage, raw = Storage(str(tmp_path / "lake")), tmp_path / "raw"
    raw.mkdir()
    (raw / "a.jsonl").write_text('{"text": "one"}\n')
    planned = run_of(storage, str(raw))
    assert [file.key for file in input_files(planned).sources["web"]] == ["a.jsonl"]
    assert not storage.exists("runs/r1/inputs.json")

    run = planned.model_copy(update={"is_dry": False})
    run.keep(Journal(storage, RunRecord(run_id="r1", created="now", recipe={})))
    first = input_files(run)
    (raw / "b.jsonl").write_text('{"text": "two"}\n')
    assert input_files(run) == first
    assert storage.exists("runs/r1/inputs.json")


def test_missing_input_is_an_error_unless_the_run_prepares_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    with pytest.raises(ConfigError, match=r"ingest\.sources\.web"):
        input_files(run_of(storage, str(tmp_path / "absent")))
    with pytest.raises(NotComputed, match="python-corpus writes its input first"):
        input_files(run_of(storage, "{root}/raw/web", prepare="python-corpus"))


def test_the_next_run_takes_hashes_from_the_last_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.ingest.sources.SETTLED_SECONDS", 0.0)
    storage, raw = Storage(str(tmp_path / "lake")), tmp_path / "raw"
    raw.mkdir()
    (raw / "a.jsonl").write_text('{"text": "one"}\n')
    record = RunRecord(run_id="r0", created="now", recipe={})
    record.save(storage)
    earlier = run_of(storage, str(raw)).model_copy(update={"is_dry": False, "run_id": "r0"})
    earlier.keep(Journal(storage, record))
    listed = input_files(earlier)
    run = run_of(storage, str(raw))
    assert earlier_listing(run) == listed
    assert earlier_listing(earlier) is None
    monkeypatch.setattr("tasks.ingest.sources.sha256_of", None)  # reading the file would fail
    assert input_files(run) == listed
