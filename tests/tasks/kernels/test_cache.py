"""Compiled code on disk is never that of other sources: numba looks at the file of a function, not at what it calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.kernels import cache_folder

INNER = "from numba import njit\n\n@njit(cache=True)\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from numba import njit\nfrom loops.inner import inner\n\n@njit(cache=True)\ndef outer(x):\n    return inner(x)\n"
)
CALL = "import loops.outer; print(loops.outer.outer(1), len(loops.outer.outer.stats.cache_hits))"


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    """A package with our __init__ and a kernel that calls a function of another module."""
    folder = tmp_path / "loops"
    folder.mkdir()
    source = sys.modules["tasks.kernels"].__file__ or ""
    (folder / "__init__.py").write_text(Path(source).read_text())
    (folder / "inner.py").write_text(INNER.format(1))
    (folder / "outer.py").write_text(OUTER)
    return folder


def call(folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-c", CALL]
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_change_of_a_called_function_in_another_module_is_seen(loops: Path) -> None:
    assert [call(loops), call(loops)] == ["2 0", "2 1"]
    (loops / "inner.py").write_text(INNER.format(10))
    assert [call(loops), call(loops)] == ["11 0", "11 1"]


def test_the_users_folder_is_kept_and_found_by_children(
    loops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    mine = cache_folder(loops)
    assert mine.parent == tmp_path / "mine"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(mine))
    assert cache_folder(loops) == mine
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert cache_folder(loops) == loops / "__pycache__" / mine.name
