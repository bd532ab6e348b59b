"""`basemill signals`: the one table of signals, for people and for programs."""

import json

import pytest

from flows import cli
from tasks.select.rules import RULES
from tasks.signal_table import SIGNALS


def test_every_signal_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        cli.main(["signals", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert not ended.value.code
    assert [row["name"] for row in listed] == [signal.name for signal in SIGNALS]
    assert {rule.signal for rule in RULES} <= {row["name"] for row in listed}
    assert all(row["meaning"] and row["unit"] and row["source"] for row in listed)


def test_ranges_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["signals"])
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["language_score"][1:4] == ["double", "0..1", "probability"]
    assert rows["num_words"][1:3] == ["int64", "0.."]
