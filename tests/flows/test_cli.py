"""The command: exit status, wrong recipes before anything runs, what is printed for people and for programs."""

import gzip
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import display
from flows.cli import how_to_go_on
from flows.cli_compare import _characters
from tasks.funnel import FunnelRow
from tasks.journal import LISTENERS
from tasks.runs import RunRecord, find_record
from tasks.storage import Storage
from tasks.summary import summarise
from tasks.whatif import SourceEffect

Call = Callable[..., tuple[int, str, str]]
COMMANDS = [
    "run",
    "plan",
    "schedule",
    "rerun",
    "runs",
    "show",
    "files",
    "why",
    "trace",
    "sample",
    "report",
    "generate",
    "doctor",
    *("whatif", "compare"),
]


@pytest.fixture
def call(command: Call, root: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """call("plan", "recipe.yaml", ...) -> (exit status, stdout, stderr), on the test's root."""
    monkeypatch.setenv("BASEMILL_ROOT", root)

    return command


def test_every_command_has_help_that_says_what_it_does(call: Call) -> None:
    status, out, _ = call("--help")
    assert status == 0
    for command in COMMANDS:
        assert f" {command} " in out
        status, text, _ = call(command, "--help")
        assert status == 0
        assert "Usage:" in text
        assert "--root" in text
        assert "--json" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["nonsense=1"], "nonsense: unknown key"),
        (["redact.kinds=[shoe_size]"], "redact.kinds[0]"),
        (["select.gopher_quality.min_wrods=3"], "select.gopher_quality.min_wrods: unknown key; did you mean"),
        (["train.phases=[]"], "train.phases"),
        (["vocabulary.size=255"], "vocabulary: size 255: at least 259"),
        (["select.language.keep=[xx-nowhere]"], "select.language"),
        (["ingest.sources.web.base=/no/such/folder"], "ingest.sources.web.base"),
        (["mix"], "write key.path=value"),
        (["vocabulary.sample_weights={nobody: 1}"], "vocabulary.sample_weights: source 'nobody'"),
        (["pin.vocabulary=12345678"], "pin.vocabulary"),
    ],
)
def test_a_wrong_recipe_exits_with_2_before_anything_runs(
    call: Call, recipe_path: Path, root: str, changes: list[str], message: str
) -> None:
    for command in ("plan", "run"):
        options = [option for change in changes for option in ("--set", change)]
        status, _, err = call(command, str(recipe_path), *options)
        assert status == 2
        assert message in err
    assert not Path(root, "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "no-such-recipe.yaml"],
        ["run", "demo", "--root", "ftp://x"],
        ["plan", "--from", "nowhere"],
        ["plan", "--from", "mix", "--until", "ingest"],
        ["show", "20200101-000000-0000"],
        ["rerun", "20200101-000000-0000"],
        ["files", "0123456789"],
        ["why", "web:0123"],
        ["trace", "latest", "--step", "0"],
        ["generate", "latest"],
        ["no-such-command"],
        ["show", "--no-such-option"],
    ],
)
def test_wrong_use_exits_with_2(call: Call, arguments: list[str]) -> None:
    status, _, err = call(*arguments)
    assert status == 2
    assert err.strip()
    assert "Traceback" not in err


STEERING = "\x1b]0;t\x07\x9b31m\u202e\u2066\u2028"


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", STEERING], ["why", STEERING], ["why", f"http://x.org/{STEERING}"], ["why", "web:0", "--run", STEERING],
        ["sample", "latest", STEERING], ["sample", "latest", "ingest", "--reason", STEERING], ["files", STEERING],
        ["files", f"select/{STEERING}"], ["trace", "latest", "--step", "9" * 30], ["sample", "latest", "mix"],
        ["trace", "latest", "--step", "1", "--phase", STEERING], ["plan", "--from", STEERING], ["files", "../select/"],
        ["generate", "--seed", "9" * 30], ["show", "--root", "s3://"], ["show", "../runs"], ["show", "a\0"],
    ],
)  # fmt: skip
def test_no_argument_steers_the_terminal_or_ends_in_a_traceback(
    call: Call, first: RunRecord, arguments: list[str]
) -> None:
    status, out, err = call(*arguments)
    assert status == 2
    assert not display.CONTROL.search(out + err)
    assert "Traceback" not in err


def test_plan_and_dry_run_say_the_same(call: Call, recipe_path: Path, first: RunRecord) -> None:
    status, out, _ = call("plan", str(recipe_path), "--until", "mix", "--set", "mix.held_out_ratio=0.3")
    assert status == 0
    assert f"cached (run {first.run_id})" in out
    assert "run (held_out_ratio: 0.2 -> 0.3)" in out
    arguments = ("--until", "mix", "--set", "mix.held_out_ratio=0.3", "--json")
    _, planned, _ = call("plan", str(recipe_path), *arguments)
    _, dry, _ = call("run", str(recipe_path), "--dry-run", *arguments)
    assert json.loads(planned) == json.loads(dry)
    assert json.loads(planned)[-1] == {
        "label": "mix", "stage": "mix", "verdict": "run", "detail": "held_out_ratio: 0.2 -> 0.3", "reference": None,
    }  # fmt: skip


def test_plan_shows_what_weights_draw_and_how_often(call: Call, recipe_path: Path, first: RunRecord) -> None:
    """Epochs from the sizes of mix, with a warning; buckets of a source are packed apart once mix has made them."""
    status, out, _ = call("plan", str(recipe_path), "--set", "train.phases.0.tokens=3000000")
    assert status == 0
    assert "epochs so far" in out
    assert "above train.max_epochs 4" in out
    lines = json.loads(call("plan", str(recipe_path), "--json")[1])
    [train] = [line for line in lines if line["stage"] == "train"]
    assert {line["source"]: line["share"] for line in train["mixture"]} == {"code": 1365 / 4096, "web": 2731 / 4096}
    assert all(line["epochs"] > 0 and line["is_estimate"] for line in train["mixture"])
    values = json.loads(recipe_path.read_text())
    values["mix"]["by_source"] = {"web": {"buckets": {"signal": "num_words", "edges": [200]}}}
    values["train"]["phases"][0]["weights"] = {"web/0": 1, "web/1": 3, "code": 1}
    recipe_path.write_text(json.dumps(values))
    lines = json.loads(call("plan", str(recipe_path), "--json")[1])
    labels = [line["label"] for line in lines if line["stage"] == "pack" and "train" in line["label"]]
    assert labels == ["pack code train 64", "pack web/0 train 64", "pack web/1 train 64"]
    assert next(line for line in lines if line["stage"] == "mix")["verdict"] == "run"


def test_weights_on_a_bucket_that_is_empty_are_refused_where_it_is_known(
    call: Call, recipe_path: Path, first: RunRecord
) -> None:
    """The run that makes the mix says the same of it before workers start, and the next plan at once."""
    values = json.loads(recipe_path.read_text())
    values["mix"]["by_source"] = {"web": {"buckets": {"signal": "num_words", "edges": [200, 1_000_000]}}}
    values["train"]["phases"][0]["weights"] = {"web/0": 1, "web/2": 3, "code": 1}
    recipe_path.write_text(json.dumps(values))
    assert call("plan", str(recipe_path))[0] == 0  # the mix is not there yet
    said = "train: phase main: weights name web/2, which has no text to train on; give it weight 0 or more text"
    for command in ("run", "plan", "run"):
        status, _, told = call(command, str(recipe_path))
        assert status == 2
        assert said in " ".join(told.split())


def test_looking_at_a_run(call: Call, first: RunRecord, root: str) -> None:
    status, out, _ = call("runs")
    assert status == 0
    assert first.run_id in out
    [listed] = json.loads(call("runs", "--json")[1])
    assert (listed["run_id"], listed["state"]) == (first.run_id, "completed")

    _, out, _ = call("show", first.run_id[:10])
    assert "Source web" in out
    assert "attempt 1" in out
    shown = json.loads(call("show", "latest", "--json")[1])
    assert shown == json.loads(json.dumps(summarise(Storage(root), first)))
    assert {row["source"] for row in shown["funnel"]} == {"code", "web"}
    assert shown["training"] == {}

    reference = first.datasets_of("select")[0].reference
    _, out, _ = call("files", reference)
    assert all(Path(line).is_file() for line in out.split())
    assert call("files", "select")[1] == out
    assert json.loads(call("files", reference.partition("/")[2][:12], "--json")[1]) == {
        "dataset": reference, "files": out.split(),
    }  # fmt: skip
    status, out, _ = call("report", "latest")
    assert status == 0
    assert (
        Path(out.strip()).read_text().startswith("<!doctype html>".upper()) or "<html" in Path(out.strip()).read_text()
    )
    for arguments in (("generate", "latest"), ("trace", "latest", "--step", "1")):
        status, _, err = call(*arguments)
        assert (status, "has trained no model" in err) == (2, True)
    assert "dataset '0123456789': none matches" in call("files", "0123456789")[2]


def test_what_other_rules_would_keep(call: Call, first: RunRecord) -> None:
    """Figures of the run as the run has them, and those of other rules beside them; wrong rules exit with 2."""
    funnel = {row["source"]: row for row in json.loads(call("show", "--json")[1])["funnel"] if row["stage"] == "select"}
    change = ("--set", "select.rules.long=num_words > 800")
    answer = json.loads(call("whatif", first.run_id, *change, "--json")[1])
    for row in answer["sources"]:
        assert (row["documents"], row["kept_before"]) == (
            funnel[row["source"]]["rows_in"],
            funnel[row["source"]]["rows_out"],
        )
    dropped = sum(row["newly_dropped"] for row in answer["sources"])
    assert dropped > 0
    status, out, _ = call("whatif", "latest", *change, "--count", "1")
    assert status == 0
    assert answer["newly_dropped"][0]["doc_id"] in out
    assert out.count("just dropped") == 1
    assert "never fires in web" in out
    assert call("whatif", "latest", "--set", "select.rules.long=num_wrods > 2")[0] == 2


def test_two_runs_are_set_side_by_side(call: Call, first: RunRecord, root: str) -> None:
    other = first.model_copy(deep=True, update={"run_id": "20990101-000000-abcd"})
    other.recipe["select"]["gopher_quality"]["min_words"] = 77.0
    other.save(Storage(root))
    status, out, _ = call("compare", first.run_id, "latest")
    assert status == 0
    assert "select.gopher_quality.min_words" in out
    compared = json.loads(call("compare", first.run_id, "latest", "--json")[1])
    assert compared["settings"] == [{"key": "select.gopher_quality.min_words", "values": [50.0, 77.0]}]
    assert all(row["documents"][0] == row["documents"][1] for row in compared["funnel"])
    assert {row["source"] for row in compared["mixture"]} == {"code", "web"}
    assert call("compare", "latest", "nobody")[0] == 2


def test_the_story_of_a_document_and_samples(call: Call, first: RunRecord) -> None:
    reasons = [row["reasons"] for row in json.loads(call("show", "--json")[1])["funnel"] if row["stage"] == "select"]
    reason = next(iter(reasons[0]))
    sampled = json.loads(call("sample", "latest", "select", "--reason", reason, "--count", "1", "--json")[1])
    assert sampled[0]["reason"] == reason
    document = sampled[0]["doc_id"]
    status, out, _ = call("why", document)
    assert status == 0
    assert reason in out
    story = json.loads(call("why", document, "--run", first.run_id, "--json")[1])
    assert story["facts"][0]["stage"] == "ingest"
    status, out, _ = call("sample", "latest", "select", "--reason", reason)
    assert status == 0
    assert document in out
    assert call("sample", "latest", "select", "--reason", "no_such")[0] == 2


def test_run_in_a_process_of_its_own(
    recipe_path: Path, first: RunRecord, root: str, server_url: str, call: Call
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", str(recipe_path), "--root", root, "--until", "mix"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dashboard: http://127.0.0.1" in done.stderr
    assert f"mix                      cached (run {first.run_id})" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Source web" in done.stdout
    assert "report " in done.stdout
    [_, second] = json.loads(call("runs", "--json")[1])
    assert second["state"] == "completed"


def test_a_failed_run_exits_with_1_names_the_fault_and_can_be_rerun(
    call: Call, recipe_values: dict[str, Any], tmp_path: Path, server_url: str
) -> None:
    raw = tmp_path / "raw" / "a.jsonl.gz"
    raw.parent.mkdir()
    whole = gzip.compress(b'{"text": "one"}\n' * 1000)
    raw.write_bytes(whole[: len(whole) // 2])
    source = {"base": str(raw.parent), "on_damage": "fail"}
    recipe = recipe_values | {"ingest": {"sources": {"web": source, "code": source}}}
    path = tmp_path / "broken.yaml"
    path.write_text(json.dumps(recipe))
    status, _, err = call("run", str(path), "--until", "ingest")
    assert status == 1
    assert "a.jsonl.gz" in err
    assert "basemill rerun" in err
    assert f"{'ingest':<24} failed: 2 parts failed; ingest part " in err
    assert ": failed: 2 parts failed; ingest part " in call("show")[1]
    raw.write_bytes(whole)
    status, _, err = call("rerun", "latest")
    assert status == 1  # its input is no longer what the run listed
    assert "start a new run" in err
    status, out, _ = call("run", str(path), "--until", "ingest", "--json")
    assert status == 0
    assert json.loads(out)["state"] == "completed"


def test_from_a_stage_whose_inputs_do_not_exist_is_wrong_use(
    call: Call, recipe_path: Path, root: str, server_url: str
) -> None:
    for command in ("plan", "run"):
        status, _, err = call(command, str(recipe_path), "--from", "select")
        assert status == 2
        assert "ingest is not computed yet (never computed here), and --from select only looks it up" in err
    assert not Path(root, "runs").exists()


def test_sigterm_keeps_what_is_finished_and_says_how_to_go_on(recipe_path: Path, root: str, server_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(recipe_path), "--root", root],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not list(Path(root).glob("dedup-exact/*/manifest.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate(timeout=120)
    record = find_record(Storage(root), "latest")
    assert process.returncode == 1
    assert (record.state, record.attempts[-1].message) == ("cancelled", "ended by SIGTERM")
    assert f"to go on: basemill rerun {record.run_id}" in err
    assert "Traceback" not in err
    assert {line.label for line in record.datasets} >= {"ingest", "dedup-exact"}


def test_a_rerun_alone_is_advised_only_where_it_can_help() -> None:
    for kind in ("DataError", "TrainingDiverged", "ConfigError"):
        assert "kept; mend the cause, then: basemill rerun 7" in how_to_go_on("7", kind)
    for kind in ("StorageError", "WorkerLost", "ended by SIGTERM", ""):
        assert how_to_go_on("7", kind) == "finished parts are kept; to go on: basemill rerun 7"


def test_characters_that_no_signal_counts_are_unknown() -> None:
    facts: dict[str, Any] = dict.fromkeys(SourceEffect.model_fields, 0)
    facts |= {"source": "web", "never": [], "is_stopped": False}
    for kept, chars, shown in ((3, 0, ("-", "-")), (3, 2000, ("2,000", "2,000")), (0, 0, ("0", "0"))):
        facts |= {"kept_before": kept, "kept": kept, "chars_before": chars, "chars": chars}
        row = SourceEffect.model_validate(facts)
        assert _characters(row) == shown


def test_a_root_without_runs_is_said_to_have_none(call: Call, tmp_path: Path) -> None:
    for place in (tmp_path / "never", tmp_path):
        status, out, _ = call("runs", "--root", str(place))
        assert (status, out) == (0, f"no runs in {place}\n")


def test_a_folder_in_the_place_of_a_recipe_is_called_one(call: Call, tmp_path: Path) -> None:
    status, _, err = call("plan", str(tmp_path))
    assert status == 2
    assert f"recipe {tmp_path}: a folder, not a file; recipes that ship: " in err


def test_log_lines_in_a_file_end_without_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    with display.show_run():
        logging.getLogger("tasks.x").warning("part %d is odd", 3)
    shown = capsys.readouterr().err
    assert shown == "WARNING  part 3 is odd\n"


def test_a_cancelled_stage_is_said_to_be_so_once() -> None:
    line = display.line_of({"kind": "stage cancelled", "label": "signals", "error": "Cancelled: between two parts"})
    assert line is not None
    assert line.endswith("cancelled: between two parts")


def test_doctor_verifies_the_data_of_a_run(call: Call, first: RunRecord, root: str) -> None:
    status, out, _ = call("doctor", "--verify", "latest", "--json")
    findings = {finding["check"]: finding for finding in json.loads(out)}
    assert status == 0
    assert findings["mix"]["is_ok"]
    part = next(Path(root, "redact", "parts").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    status, out, _ = call("doctor", "--verify", first.run_id)
    assert status == 1
    assert f"redact/parts/{part.name} has {part.stat().st_size} bytes" in out


def test_doctor(call: Call, root: str) -> None:
    status, out, _ = call("doctor", "--json")
    assert status == 0
    assert {"python", "storage"} <= {finding["check"] for finding in json.loads(out)}
    Path(root).parent.joinpath("file").write_text("")
    status, _, err = call("doctor", "--root", f"{Path(root).parent}/file/lake")
    assert status == 2  # no root can be there: refused like any wrong root
    assert "is a file" in err


def test_documents_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display.say(f"red {STEERING}[bold]alert[/bold]\ttab")
    display.say_table(("a", "b"), [(STEERING, 1234567), ("[red]x", 2)], title=f"Source {STEERING}[red]")
    display.say_json({"text": STEERING, "lines": "a\nb"})
    display.say_error(f"error: {STEERING}")
    with display.show_run():
        logging.getLogger("tasks.x").warning("part %s", STEERING)
        for listener in LISTENERS:
            listener({"kind": "stage failed", "label": "mix", "error": f"DataError: {STEERING}"})
    out, err = capsys.readouterr()
    assert not display.CONTROL.search(out + err)
    assert json.loads(out[out.index("{") :]) == {"text": STEERING, "lines": "a\nb"}
    assert display.listed({"a": "x" * 1_000, "b": 2}) == f"a={'x' * display.CELL_CHARS}..., b=2"
    assert "[bold]alert[/bold]" in out
    assert "[red]x" in out
    assert "1,234,567" in out


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with display.show_run():
        for listener in LISTENERS:
            listener({"kind": "run started", "run_id": "r", "attempt": 2})
            listener({"kind": "progress", "stage": "select", "done": 1, "total": 3})
            listener(
                {"kind": "stage finished", "label": "select", "cached": False, "made_by": "r", "seconds": 1.25,
                 "totals": {"rows_in": 2000, "rows_out": 1500}}
            )  # fmt: skip
            listener({"kind": "stage failed", "label": "mix", "error": "DataError: part 7"})
            listener({"kind": "message", "message": "waiting for the lease of mix"})
    assert capsys.readouterr().err.splitlines() == [
        "run r, attempt 2",
        "select                   done in 1.2 s, 2,000 -> 1,500",
        "mix                      failed: part 7",
        "waiting for the lease of mix",
    ]
    assert LISTENERS == []


def test_progress_on_a_terminal_has_a_bar_per_stage() -> None:
    bars = display._Bars()
    try:
        bars.listen({"kind": "stage started", "label": "select", "stage": "select"})
        bars.listen({"kind": "progress", "stage": "select", "done": 1, "total": 3})
        [task] = bars.progress.tasks
        assert (task.description, task.completed, task.total) == ("select", 1, 3)
        bars.listen(
            {"kind": "stage finished", "label": "select", "cached": True, "made_by": "r", "seconds": 0, "totals": {}}
        )
        assert bars.progress.tasks == []
    finally:
        bars.close()


def test_estimated_tokens_are_marked_in_the_funnel(capsys: pytest.CaptureFixture[str]) -> None:
    row = dict.fromkeys(("rows_in", "rows_out", "bytes_in", "bytes_out", "dropped", "edited", "errors", "skipped"), 1)
    tokens = {"ingest": None, "mix": 207_482, "pack": 211_005}
    display.say_funnel(
        [
            FunnelRow.model_validate(row | {"stage": stage, "source": "web", "tokens": number, "reasons": {}})
            for stage, number in tokens.items()
        ]
    )
    lines = {line.split()[0]: line.split()[4:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert (lines["ingest"], lines["mix"], lines["pack"]) == ([], ["~207,482"], ["211,005"])


def test_the_summary_says_what_training_skipped_and_undid(capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Any] = {"tokens": 9, "step": 3, "seconds": 1.0, "tokens_per_second": 9.0, "mfu": None}
    facts |= {"loss_first": 7.0, "loss_last": 6.0, "skipped_steps": [4, 5], "decisions": [{"kind": "roll back"}]}
    calm = facts | {"skipped_steps": [], "decisions": []}
    figures: dict[str, Any] = {name: [] for name in ("funnel", "losses", "tasks", "samples")}
    figures |= {"run_id": "r1", "parameters": 5, "active_parameters": 5, "model": None, "report": None}
    display.say_summary(figures | {"training": {"train main": facts, "train long": calm}}, "http://x", is_lasting=True)
    told = capsys.readouterr().out.splitlines()
    assert any(
        line.endswith("loss 7.000 -> 6.000; 2 skipped steps, 1 roll-back (basemill incidents r1)") for line in told
    )
    assert any(line.startswith("train long") and line.endswith("6.000") for line in told)
