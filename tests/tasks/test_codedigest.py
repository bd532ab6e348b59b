"""Code digests: what can change a result moves them, what cannot does not."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks import codedigest
from tasks.codedigest import canonical_source, code_digest
from tasks.errors import ConfigError

SOURCE = '''
"""Doc."""
import logging
from pydantic import BaseModel
LIMIT = 3
RESULT_PACKAGES = ("numpy",)
logger = logging.getLogger(__name__)

class C(BaseModel, frozen=True):
    n: int = 1

def f(x: int) -> int:
    """Doc."""
    logger.info("x %s", x)
    return x + LIMIT
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Doc."""', '"""Other words."""'),
        ("LIMIT = 3", "LIMIT = 3  # a reason"),
        ("n: int = 1", "n: int = 2\n    m: str = 'new option'"),
        ("x: int", "x: float"),
        ('logger.info("x %s", x)', 'logger.warning("now %s", x)'),
        ("import logging", "import logging\nimport os"),
        ("return x + LIMIT", "return (x + LIMIT)"),
    ],
)
def test_what_cannot_change_a_result_is_left_out(old: str, new: str) -> None:
    assert canonical_source(SOURCE.replace(old, new)) == canonical_source(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"), [("LIMIT = 3", "LIMIT = 4"), ("x + LIMIT", "x - LIMIT"), ("def f(x: int)", "def f(x: int = 0)")]
)
def test_what_can_change_a_result_counts(old: str, new: str) -> None:
    assert canonical_source(SOURCE.replace(old, new)) != canonical_source(SOURCE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project package of its own: `millfake.stage` imports `millfake.rule` inside a function."""
    folder = tmp_path / "millfake"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "stage.py").write_text(
        'RESULT_PACKAGES = ("pyarrow",)\nRESULT_FILES = ("words.txt",)\n'
        "def f():\n    from millfake.rule import LIMIT\n    return LIMIT\n"
    )
    (folder / "rule.py").write_text("LIMIT = 1\n")
    (folder / "words.txt").write_text("a\nb\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(codedigest, "PROJECT", ("millfake",))
    yield folder
    for name in [name for name in sys.modules if name.startswith("millfake")]:
        del sys.modules[name]
    forget()


def forget() -> None:
    code_digest.cache_clear()
    codedigest._module_facts.cache_clear()


def digest_now() -> codedigest.CodeDigest:
    forget()
    importlib.invalidate_caches()
    return code_digest("millfake.stage")


def test_follows_imports_packages_and_files(package: Path) -> None:
    first = digest_now()
    assert sorted(first.modules) == ["millfake", "millfake.rule", "millfake.stage"] or sorted(first.modules) == [
        "millfake.rule",
        "millfake.stage",
    ]
    assert list(first.packages) == ["pyarrow"]
    (package / "rule.py").write_text("LIMIT = 1  # one\n")
    assert digest_now() == first
    (package / "rule.py").write_text("LIMIT = 2\n")
    changed = digest_now()
    assert changed.digest != first.digest
    assert changed.modules["millfake.stage"] == first.modules["millfake.stage"]
    (package / "rule.py").write_text("LIMIT = 1\n")
    (package / "words.txt").write_text("a\nc\n")
    assert digest_now().digest != first.digest


def test_another_package_version_counts(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest_now()
    monkeypatch.setattr(codedigest, "version", lambda name: "0.0")
    assert digest_now().digest != first.digest


def test_foundation_modules_count_by_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    code_digest.cache_clear()
    first = code_digest("tasks.mixture")
    assert "tasks.storage" not in first.modules
    monkeypatch.setattr(codedigest, "FOUNDATION_VERSION", codedigest.FOUNDATION_VERSION + 1)
    code_digest.cache_clear()
    assert code_digest("tasks.mixture").digest != first.digest
    code_digest.cache_clear()


def test_an_unknown_module_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.nonesuch"):
        code_digest("tasks.nonesuch")


def test_a_digest_is_taken_without_importing_what_the_module_needs() -> None:
    script = "import sys; from tasks.codedigest import code_digest; code_digest('tasks.evaluate');"
    script += "print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_parsing_survives_threads_that_parse_at_once() -> None:
    """CPython 3.11 can fail with "AST constructor recursion depth mismatch" when two threads build trees."""
    source = Path(codedigest.__file__).read_text()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(canonical_source, [source] * 40))
    finally:
        sys.setswitchinterval(interval)
    assert len(set(trees)) == 1
