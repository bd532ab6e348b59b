"""The command and a wrong recipe: status 2, no server, nothing written, no traceback, the key with its path.

The words for each fault are checked in tests/tasks/test_recipe.py and test_start_check.py; here, that they arrive.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from flows import cli

LANGUAGE = "select.language.keep=[xx]"
STRANGER = "classifiers.quality={positive: [wiki], negative: [web]}"
BOTH_CLASSES = "classifiers.quality={positive: [web], negative: [code, web]}"
MISSING_LABELS = "classifiers.toxicity.labelled={path: /no/set.jsonl, positive: [toxic]}"
MISSING_MODEL = f"classifiers.quality={{path: /no/model.safetensors, sha256: '{0:064}'}}"
MISSING_SET = "decontaminate.evaluation_sets={quiz: {path: /no/quiz.jsonl, question: q}}"

WRONG = {  # what is wrong -> (options of the command, environment, words of the message)
    "unknown key": ("vocabulary.siez=3", {}, "vocabulary.siez: unknown key; did you mean 'size'?"),
    "unknown rule": ("select.gopher_qualty={}", {}, "select.gopher_qualty: unknown key"),
    "unknown limit": ("select.c4.min_sentense=3", {}, "select.c4.min_sentense: unknown key"),
    "weights of nothing": ("train.phases.0.weights={web: 0, code: 0}", {}, "train.phases[0].weights"),
    "weight of a stranger": ("train.phases.0.weights={wbe: 1}", {}, "'wbe' is not in ingest.sources (code, web)"),
    "missing folder": ("ingest.sources.web.base=/no/folder", {}, "ingest.sources.web.base: nothing is at '/no/folder'"),
    "empty base": ("ingest.sources.web.base=''", {}, "ingest.sources.web.base: String should have at least 1 char"),
    "no sense": ("select.code.max_lines=-5", {}, "select.code.max_lines: Input should be greater than or equal to 0"),
    "another type": ("train.phases.0.tokens=true", {}, "train.phases[0].tokens: Input should be a valid integer (got"),
    "no file selected": ('ingest.sources.web.include=["*.gz"]', {}, "ingest.sources.web.include: none of the 2 files"),
    "missing evaluation set": (MISSING_SET, {}, "evaluation_sets.quiz.path: /no/quiz.jsonl: no such file"),
    "missing task": ("evaluate.tasks={piqa: {path: /no/x.jsonl}}", {}, "evaluate.tasks.piqa.path: /no/x.jsonl: no"),
    "unknown task": ("evaluate.tasks={quiz: {path: /x}}", {}, "evaluate.tasks.quiz: Input should be 'arc_easy'"),
    "missing drop list": ("select.drop_lists=[{path: /no/x.jsonl}]", {}, "select.drop_lists[0].path: /no/x.jsonl: no"),
    "classifier of a stranger": (STRANGER, {}, "classifiers.quality.positive: source 'wiki' is not in ingest.sources"),
    "both classes": (BOTH_CLASSES, {}, "classifiers.quality: source 'web' is both positive and negative"),
    "missing labelled set": (MISSING_LABELS, {}, "classifiers.toxicity.labelled.path: /no/set.jsonl: no such file"),
    "missing classifier": (MISSING_MODEL, {}, "classifiers.quality.path: /no/model.safetensors: no such file"),
    "vocabulary": ("vocabulary.size=255", {}, "vocabulary: size 255: at least 259"),
    "sequence length": ("train.phases.0.sequence_length=0", {}, "train.phases[0].sequence_length"),
    "language": (LANGUAGE, {}, "select.language.keep: language code 'xx' does not exist; use ISO 639"),
    "ramp": ("train.phases.0.batch={0: 4, 1e9: 8}", {}, "train.phases[0].batch: batch of 8 rows from 1000000000"),
    "heads": ("model.num_heads=7", {}, "model: width 64 must be divisible by num_heads 7"),
    "ranks": ("name=tiny", {"BASEMILL_TRAIN": "{ranks: 3}"}, "batch of 4 rows is not divisible by 3 ranks"),
    "copies": ("name=tiny", {"BASEMILL_TRAIN": "{ranks: 4, shard_ranks: 3}"}, "shard_ranks 3 does not divide 4 ranks"),
    "workers": ("name=tiny", {"BASEMILL_WORKERS": "many"}, "BASEMILL_WORKERS 'many' is no number"),
    "pin": ("pin.vocabulary=nothing", {}, "pin.vocabulary: 'nothing' is no run"),
    "index": ("dedup_near.index=[nothing]", {}, "dedup_near.index: 'nothing' is no run"),
    "protected stranger": ("dedup_exact.protected=[wbe]", {}, "dedup_exact.protected: source 'wbe' is not in"),
    "set without a value": ("vocabulary.size", {}, "--set 'vocabulary.size': write key.path=value"),
    "set of bad YAML": ("vocabulary.size=[1", {}, "--set 'vocabulary.size=[1': while parsing"),
}  # fmt: skip

BAD_FILES = {
    "bad YAML": ("name: [a\n", "line 1, column 7"),
    "a key twice": ("name: a\nname: b\n", "key 'name' is given twice"),
    "a list": ("- a\n", "a recipe is a mapping of sections, not list"),
    "no YAML number": ("name: 3e-4\n", "name: Input should be text (in quotes, where YAML reads something else)"),
    "code": ("name: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """No server is known: one would have to be started, which would leave files in the home."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("BASEMILL_ROOT", root)


def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    """What the command says on stderr, in one line, after it has refused and left no trace."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    assert not (tmp_path / "prefect").exists()
    assert not (tmp_path / "lake").exists()
    return " ".join(said.err.split())


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, case: str,
) -> None:  # fmt: skip
    override, environment, words = WRONG[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert words in refusal(capsys, tmp_path, command, str(recipe_path), "--set", override)


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    text, words = BAD_FILES[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    said = refusal(capsys, tmp_path, "run", str(path))
    assert words in said
    assert "bad.yaml" in said or words.startswith("name:")


def test_all_faults_are_shown_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe_values: dict[str, Any]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps(recipe_values | {"nonsense": 1, "vocabulary": {"size": "many"}}))
    said = refusal(capsys, tmp_path, "run", str(path))
    assert "nonsense: unknown key" in said
    assert "vocabulary.size" in said
