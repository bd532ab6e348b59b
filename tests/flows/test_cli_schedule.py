"""`basemill schedule`: figures before anything runs, for people, programs and as a page; what can't be is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.display_schedule import say_forecast
from tasks.schedule import Forecast

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Any) -> Call:
    """call("--json") -> (exit status, stdout, stderr) of the command on a recipe whose packs do not exist."""
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "raw")))
    monkeypatch.setenv("BASEMILL_ROOT", str(tmp_path / "lake"))

    return partial(command, "schedule", str(path))


def test_a_schedule_needs_no_packs(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    status, out, _ = call("--html", str(page))
    assert status == 0
    assert "131,392 parameters, all active; 8,192 tokens" in out
    assert "time unknown (no training of this model at this length has finished in this root)" in out
    assert "learning rate" in out
    assert page.read_text().count("<svg") == 3
    assert not (tmp_path / "lake" / "runs").exists()


def test_without_ray_it_trains_in_one_rank(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASEMILL_WORKERS", "0")
    monkeypatch.setenv("BASEMILL_TRAIN", "{ranks: 2}")
    _, out, _ = call("--json")
    assert [phase.memory.ranks for phase in Forecast.model_validate(json.loads(out)).phases] == [1]


@pytest.mark.parametrize("file", ["", "no-such-folder/page.html"])
def test_a_page_that_cannot_be_written_is_wrong_use(call: Call, tmp_path: Path, file: str) -> None:
    status, _, err = call("--html", str(tmp_path / file))
    assert status == 2
    assert f"--html '{tmp_path / file}': " in err


def test_programs_get_all_of_it(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call("--json", "--set", "train.phases.0.schedule.shape=wsd")
    assert status == 0
    found = Forecast.model_validate(json.loads(out))
    [phase] = found.phases
    assert (phase.shape, phase.steps, phase.memory.states) == ("wsd", 32, 16 * 131_392 // phase.memory.ranks)
    say_forecast(found)
    assert "every 200 steps" in capsys.readouterr().out


def test_batches_that_ranks_cannot_share_are_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASEMILL_TRAIN", "{ranks: 3}")
    status, _, err = call("--set", "train.phases.0.batch={0: 3, 1000: 4}")
    assert status == 2
    assert "train.phases[0].batch: phase main: batch of 4 rows is not divisible by 3 ranks; use 3 or 6 rows" in err
