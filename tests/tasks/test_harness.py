"""The harness beside the pipeline: asked for what the user wants, kept beside the model, never without a status."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.errors import ConfigError, DataError
from tasks.export import ExportConfig, export_model
from tasks.harness import (
    HARNESS_VERSION,
    HarnessScore,
    find_program,
    harness_records,
    local_folder,
    metrics_text,
    run_harness,
    scores_of,
)
from tasks.manifest import Manifest
from tasks.report import write_report
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage
from tests.tasks.conftest import TrainedRun

# A program that takes the options of lm_eval and answers as it does; what it was given goes into the results
FAKE = """#!/usr/bin/env python3
import json, pathlib, sys
print("| a table |")
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if given["--tasks"] == "wrong":
    sys.exit("no such task")
folder = pathlib.Path(given["--output_path"], "model")
folder.mkdir(parents=True)
files = sorted(path.name for path in pathlib.Path(json.loads(given["--model_args"])["pretrained"]).iterdir())
results = {name: {"alias": name, "acc,none": 0.5, "acc_stderr,none": 0.125} for name in given["--tasks"].split(",")}
if given["--tasks"] != "silent":
    said = {"lm_eval_version": "0.4.13", "results": results, "given": given, "files": files}
    (folder / "results_1.json").write_text(json.dumps(said))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lm_eval"
    path.write_text(FAKE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BASEMILL_LM_EVAL", str(path))
    return path


@pytest.fixture(scope="module")
def exported(trained_run: TrainedRun) -> Manifest:
    return export_model(trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=ExportConfig())


@pytest.fixture
def record(exported: Manifest) -> RunRecord:
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    record.set_dataset(
        DatasetLine(
            label="export", stage="export", reference=exported.reference, digest=exported.digest, code="", made_by="x",
            cached=False, attempt=1, seconds=0.0,
        )
    )  # fmt: skip
    return record


def test_scores_lie_beside_the_model_with_their_status(
    trained_run: TrainedRun, exported: Manifest, record: RunRecord, program: Path
) -> None:
    storage = trained_run.into.storage
    before = exported.parts
    found = run_harness(storage, record, "quiz,winogrande", ["--num_fewshot", "5"])
    assert [(score.task, score.status) for score in found.scores] == [
        ("quiz", "decontaminated"),
        ("winogrande", "not decontaminated (sources: code, web)"),
    ]
    assert found.scores[0].metrics == {"acc,none": 0.5, "acc_stderr,none": 0.125}
    assert (found.lm_eval, found.run_id, found.export) == (HARNESS_VERSION, record.run_id, exported.reference)
    given = storage.read_json(f"{exported.reference}/harness/{found.created}/results_1.json")
    assert given["given"]["--model"] == "hf"
    assert given["given"]["--num_fewshot"] == "5"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(given["files"])
    assert list(harness_records(storage, exported.reference))[-1] == found
    assert exported.parts == before
    page = storage.read_bytes(write_report(storage, record)).decode()
    assert "<td>winogrande</td><td>acc 0.5000 ± 0.1250</td><td>not decontaminated (sources: code, web)</td>" in page


def test_the_command_hands_options_on(
    trained_run: TrainedRun, exported: Manifest, record: RunRecord, program: Path
) -> None:
    storage = trained_run.into.storage
    record.save(storage)
    command = ["harness", record.run_id, "--tasks", "quiz", "--root", storage.url]
    shown = subprocess.run(
        [sys.executable, "-m", "flows.cli", *command, "--", "--limit", "10"], capture_output=True, text=True, check=True
    )
    assert "quiz" in shown.stdout
    assert "acc 0.5000 ± 0.1250" in shown.stdout
    assert "a table" in shown.stderr  # what the harness says
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert found["scores"][0]["status"] == "decontaminated"
    given = [found.command for found in harness_records(storage, exported.reference) if "--limit" in found.command]
    assert given[0][-2:] == ["--limit", "10"]


def test_a_harness_that_fails_or_says_nothing(trained_run: TrainedRun, record: RunRecord, program: Path) -> None:
    storage = trained_run.into.storage
    with pytest.raises(DataError, match=r"lm_eval ended with exit status 1; what it said stands above"):
        run_harness(storage, record, "wrong", [])
    with pytest.raises(DataError, match=r"wrote no results_\*\.json"):
        run_harness(storage, record, "silent", [])
    for written, message in (("{}", "has no results"), ("[]", "has no results"), ("{", "is no JSON")):
        program.write_text(FAKE.replace("json.dumps(said)", repr(written)))
        with pytest.raises(DataError, match=rf"results_1\.json of the harness {message}"):
            run_harness(storage, record, "quiz", [])


def test_a_score_that_is_no_number_can_be_read_again(
    trained_run: TrainedRun, exported: Manifest, record: RunRecord, program: Path
) -> None:
    """A model that diverged has a perplexity of inf; JSON has no such number, and reports read the record."""
    program.write_text(FAKE.replace("0.5", 'float("inf")'))
    found = run_harness(trained_run.into.storage, record, "lambada", [])
    assert found.scores[0].metrics["acc,none"] == "inf"
    assert found in list(harness_records(trained_run.into.storage, exported.reference))


def test_without_the_harness_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BASEMILL_LM_EVAL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"pip install 'lm_eval\[hf\]=={HARNESS_VERSION}'") as raised:
        find_program()
    assert "no lm_eval on the PATH" in str(raised.value)
    monkeypatch.setenv("BASEMILL_LM_EVAL", "/nowhere/lm_eval")
    with pytest.raises(ConfigError, match="BASEMILL_LM_EVAL=/nowhere/lm_eval"):
        find_program()


def test_a_run_without_an_export(trained_run: TrainedRun, program: Path) -> None:
    empty = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    with pytest.raises(ConfigError, match="has no export"):
        run_harness(trained_run.into.storage, empty, "piqa", [])


def test_an_export_in_an_object_store_is_copied(
    s3_server: str, trained_run: TrainedRun, exported: Manifest, tmp_path: Path
) -> None:
    remote = Storage("s3://lake/harness")
    for part in exported.parts:
        remote.write_bytes(exported.file_path(part.key), exported.read_file(trained_run.into.storage, part.key))
    folder = local_folder(remote, exported, tmp_path / "model")
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {p.key: p.bytes for p in exported.parts}
    own = local_folder(trained_run.into.storage, exported, tmp_path / "unused")
    assert own == Path(trained_run.into.storage.path(exported.reference))


def test_figures_only_and_errors_beside_them() -> None:
    results = {"mmlu": {"alias": "mmlu", "acc,none": 0.25, "acc_stderr,none": "N/A", "name": "x"}}
    [score] = scores_of(results, {"mmlu": "not decontaminated"})
    assert metrics_text(score) == "acc 0.2500"
    assert metrics_text(HarnessScore(task="x", status="", metrics={"perplexity,none": "nan"})) == "perplexity nan"
