"""What a recipe names beyond itself: inputs, evaluation sets, pins, ranks and workers of this machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ConfigError
from tasks.inputs import inputs_key
from tasks.journal import Run
from tasks.recipe import Recipe
from tasks.start_check import check_start

Change = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source with one file, and a set of questions."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.jsonl").write_text('{"text": "a text"}\n')
    (tmp_path / "quiz.jsonl").write_text('{"q": "who?", "a": "nobody"}\n')
    return tmp_path


def run_of(folder: Path, until_stage: str | None = None, **sections: Any) -> Run:
    """A run that only looks, of a small recipe with these sections."""
    source = {"base": str(folder / "raw")} | sections.pop("source", {})
    phase = {
        "name": "main", "tokens": 512, "weights": {"web": 1}, "sequence_length": 16, "batch": {0: 4, 256: 8},
        "schedule": {"lr": 1e-3},
    }  # fmt: skip
    values = {
        "name": "small", "ingest": {"sources": {"web": source}}, "vocabulary": {"size": 300},
        "model": {"size": "tiny"}, "train": {"phases": [phase]},
    }  # fmt: skip
    recipe = Recipe.parse(values | sections)
    return Run(root=str(folder / "lake"), run_id="check", recipe=recipe, until_stage=until_stage, is_dry=True)


def quiz(folder: Path, **change: Any) -> Change:
    """A decontaminate section with the set of questions."""
    return {"evaluation_sets": {"quiz": {"path": str(folder / "quiz.jsonl"), "question": "q", "answer": "a"} | change}}


def refusal(run: Run) -> str:
    with pytest.raises(ConfigError) as raised:
        check_start(run)
    assert not Path(run.root).exists()
    return str(raised.value)


def test_a_sound_recipe_passes_and_nothing_is_written(folder: Path) -> None:
    check_start(run_of(folder, decontaminate=quiz(folder)))
    assert not (folder / "lake").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"base": "/no/such/folder"}, "ingest.sources.web.base: nothing is at '/no/such/folder'"),
        ({"base": "{root}/raw"}, "ingest.sources.web.base: nothing is at '{root}/raw'"),
        ({"base": "gs://bucket"}, "ingest.sources.web.base: 'gs://bucket': use a folder or s3://"),
        ({"include": ["*.parquet"]}, "ingest.sources.web.include: none of the 1 files"),
        ({"exclude": ["**"]}, "exclude ['**']; the first is 'a.jsonl'"),
    ],
)
def test_a_source_without_files_is_named(folder: Path, source: Change, message: str) -> None:
    assert message in refusal(run_of(folder, source=source))


def test_a_source_that_is_a_file_is_named(folder: Path) -> None:
    assert "ingest.sources.web.base" in refusal(run_of(folder, source={"base": f"{folder}/raw/a.jsonl"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/no/such.jsonl"}, ".path: /no/such.jsonl: no such file"),
        ({"path": "recipe:nothing.jsonl"}, ".path: recipe:nothing.jsonl: no such file"),
        ({"path": "{root}/sets/none.jsonl"}, ".path: {root}/sets/none.jsonl: no such file"),
        ({"path": "/tmp"}, ".format: /tmp: name jsonl, csv, parquet or text"),
        ({"question": "qestion"}, "row 0 has no column 'qestion'; it has: a, q"),
        ({"format": "parquet"}, "no valid parquet"),
    ],
)
def test_an_evaluation_set_that_is_not_there_or_not_as_described(folder: Path, change: Change, message: str) -> None:
    said = refusal(run_of(folder, decontaminate=quiz(folder, **change)))
    assert "decontaminate.evaluation_sets.quiz" in said
    assert message in said


def test_an_empty_evaluation_set_is_refused(folder: Path) -> None:
    (folder / "quiz.jsonl").write_text("\n")
    assert "quiz.path" in refusal(run_of(folder, decontaminate=quiz(folder)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/no/such.csv"}, "toxicity.labelled.path: /no/such.csv: no such file"),
        ({"label": "lable"}, "toxicity.labelled: row 0 has no column 'lable'; it has: kind, text"),
        (
            {"positive": ["rude"]},
            "toxicity.labelled.positive: all rows are of one class with ['rude']; labels: 'bad' 1",
        ),
        ({"format": "parquet"}, "toxicity.labelled: the file is no valid parquet"),
    ],
)
def test_a_labelled_set_that_is_not_there_or_not_as_described(folder: Path, change: Change, message: str) -> None:
    (folder / "set.csv").write_text("text,kind\na,bad\nb,good\n")
    labelled = {"path": str(folder / "set.csv"), "label": "kind", "positive": ["bad"]}
    check_start(run_of(folder, classifiers={"toxicity": {"labelled": labelled}}))
    wrong = {"toxicity": {"labelled": labelled | change}}
    assert f"classifiers.{message}" in refusal(run_of(folder, classifiers=wrong))
    check_start(run_of(folder, until_stage="dedup-exact", classifiers=wrong))


@pytest.mark.parametrize(
    ("content", "facts", "message"),
    [
        (None, {}, ".path: {path}: no such file"),
        ("a.example", {"sha256": "0" * 64}, ".sha256: {path} has "),
        ("a b", {}, ".path: {path}: line 1: 'a b' is no domain"),
        ("# none", {}, ".path: {path}: holds no domain"),
    ],
)
def test_a_domain_list_that_is_not_there_or_not_as_described(
    folder: Path, content: str | None, facts: Change, message: str
) -> None:
    path = folder / "list.txt"
    if content is not None:
        path.write_text(content)
    signals = {"by_source": {"web": {"url": {"domain_lists": [{"path": str(path)} | facts]}}}}
    said = refusal(run_of(folder, signals=signals))
    assert "signals.by_source.web.url.domain_lists[0]" + message.format(path=path) in said
    check_start(run_of(folder, until_stage="dedup-exact", signals=signals))
    path.write_text("a.example")
    check_start(run_of(folder, signals={"url": {"domain_lists": [{"path": str(path)}]}}))


def test_a_trained_classifier_must_be_the_named_one(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"another")
    taken = {"path": str(folder / "model.safetensors"), "sha256": "0" * 64}
    assert "classifiers.quality.sha256: " in refusal(run_of(folder, classifiers={"quality": taken}))
    lists = {"word_lists": [{"path": str(folder / "none.txt")}]}
    said = refusal(run_of(folder, classifiers={"toxicity": lists}))
    assert f"classifiers.toxicity.word_lists[0].path: {folder}/none.txt: no such file" in said


def test_what_the_run_will_not_read_need_not_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = quiz(folder, path="/no/such.jsonl")
    check_start(run_of(folder, decontaminate=missing | {"enabled": False}))
    check_start(run_of(folder, until_stage="redact", decontaminate=missing))
    monkeypatch.setenv("BASEMILL_TRAIN", "{ranks: 3}")
    check_start(run_of(folder, until_stage="pack"))
    check_start(run_of(folder, until_stage="pack", source={"base": "{root}/raw"}, prepare="python-corpus"))


def test_a_run_that_has_listed_its_inputs_does_not_look_again(folder: Path) -> None:
    """A rerun may go on where its raw files are gone: what it needs of them may be finished."""
    run = run_of(folder, source={"base": "/no/such/folder"})
    run.storage.write_json(inputs_key(run.run_id), {"sources": {}})
    check_start(run)


@pytest.mark.parametrize("stage", ["vocabulary", "pack", "train"])
def test_a_pin_must_be_there(folder: Path, stage: str) -> None:
    assert f"pin.{stage}: 'nothing' is no run" in refusal(run_of(folder, pin={stage: "nothing"}))


def test_what_a_phase_is_forked_from_must_be_there(folder: Path) -> None:
    run = run_of(folder)
    phases = [phase.model_dump() | {"after": {"run": "20260101"}} for phase in run.recipe.train.phases]
    said = refusal(run_of(folder, train={"phases": phases}))
    assert "train.phases[0].after: run '20260101': no such run" in said


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BASEMILL_TRAIN", "{ranks: 3}", "phase main: batch of 4 rows is not divisible by 3 ranks; use 3 or 6 rows"),
        ("BASEMILL_TRAIN", "{ranks: 8}", "batch of 4 rows is not divisible by 8 ranks"),
        ("BASEMILL_TRAIN", json.dumps({"rnks": 2}), "rnks"),
        ("BASEMILL_TRAIN", "{profile_steps: [5, 3]}", "profile_steps [5, 3]: give the first and the last step"),
        ("BASEMILL_TRAIN", "nonsense", "nonsense"),
        ("BASEMILL_WORKERS", "many", "'many' is no number; use 0, -1"),
    ],
)
def test_wishes_of_this_machine_that_do_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    said = refusal(run_of(folder))
    assert name in said
    assert message in said


def test_a_task_whose_file_is_not_there_or_not_as_published(folder: Path) -> None:
    (folder / "piqa.jsonl").write_text('{"goal": "x", "sol1": "a", "sol2": "b"}')
    for path, message in ((folder / "none.jsonl", "no such file"), (folder / "piqa.jsonl", "has no column 'label'")):
        said = refusal(run_of(folder, evaluate={"tasks": {"piqa": {"path": str(path)}}}))
        assert said.startswith("evaluate.tasks.piqa.path: ")
        assert message in said


def test_a_drop_list_that_is_not_there(folder: Path) -> None:
    said = refusal(run_of(folder, select={"drop_lists": [{"path": str(folder / "none.jsonl")}]}))
    assert said.startswith("select.drop_lists[0].path: ")
