"""The doctor finds what is wrong, one line each."""

from pathlib import Path

import pytest

from tasks import doctor
from tasks.doctor import examine
from tasks.storage import Storage


def test_a_sound_machine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for limit in ("MIN_FREE_BYTES", "MIN_MEMORY_BYTES"):
        monkeypatch.setattr(doctor, limit, 1)
    findings = {finding.check: finding for finding in examine(Storage(str(tmp_path / "not" / "there" / "yet")))}
    assert {"python", "prefect", "ray", "memory", "disk", "storage"} <= set(findings)
    assert [finding for finding in findings.values() if not finding.is_ok] == []
    assert "creates exclusively" in findings["storage"].detail


def test_each_fault_is_named_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(doctor, "MIN_PYTHON", (9, 9))
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 70)
    monkeypatch.setattr(doctor, "MIN_MEMORY_BYTES", 1 << 70)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    findings = examine(Storage("/proc/lake"))  # nobody can write there
    assert [finding.check for finding in findings if not finding.is_ok] == [
        "python", "no-such-package", "memory", "disk", "storage",
    ]  # fmt: skip
    assert findings[-1].detail == "joins 10.0.0.1:6379"
