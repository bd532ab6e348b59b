"""The layout laws of CONTRIBUTING: who imports whom, names, sizes. Each was broken by somebody once."""

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "model", "deploy")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
HOMES = {  # a heavy package and the only places that may import it
    "prefect": ("flows",),
    "ray": ("tasks/parallel.py", "tasks/train"),
    "s3fs": ("tasks/storage.py",),
    "torch": ("model", "tasks/evaluate", "tasks/export.py", "tasks/train", "tasks/trained_model.py"),
    "numba": ("tasks/kernels",),
}
MAY_IMPORT = {
    "flows": {"flows", "tasks", "model"},
    "tasks": {"tasks", "model"},
    "model": {"model"},
    "deploy": {"deploy", "flows", "tasks"},
}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_follow_the_direction_of_data(path: Path) -> None:
    package = name_of(path).split("/")[0]
    for module in imports_of(path):
        top = module.split(".")[0]
        if top in PACKAGES:
            assert top in MAY_IMPORT[package], f"{name_of(path)} imports {module}"
        homes = HOMES.get(top)
        assert homes is None or name_of(path).startswith(homes), (
            f"{name_of(path)} imports {module}; its home is {homes}"
        )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    tree = ast.parse(text)
    assert not tree.body or ast.get_docstring(tree), "a module begins with its docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (
                (node.end_lineno or 0)
                - node.lineno
                + 1
                - len((ast.get_docstring(node, clean=False) or "").splitlines())
            )
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"
            assert (
                ast.get_docstring(node)
                or node.name.startswith(("_", "visit_"))
                or "." in node.name
                or _is_inner(tree, node)
            ), f"{node.name} is public and has no docstring"


def _is_inner(tree: ast.Module, function: ast.AST) -> bool:
    """Functions inside functions, and methods of private classes, need no docstring."""
    for node in ast.walk(tree):
        holds = any(child is function for child in ast.walk(node) if child is not node)
        if holds and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return True
        if holds and isinstance(node, ast.ClassDef) and node.name.startswith("_"):
            return True
    return False


def test_flow_files_shadow_nothing() -> None:
    """Prefect puts flows/ first on sys.path: a file named like a library would be imported in its place."""
    taken = set(sys.stdlib_module_names) | set(packages_distributions()) | set(PACKAGES)
    names = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    assert not names & taken


@pytest.mark.parametrize("path", sorted((ROOT / "flows").glob("*.py")), ids=name_of)
def test_flow_files_define_no_data_classes(path: Path) -> None:
    """Loaded by path, a data or model class of a flow file would exist twice."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            assert not node.bases, f"{node.name} derives from a class"
            assert not node.decorator_list, f"{node.name} is decorated"


def test_tests_are_no_packages() -> None:
    """A lone tests/tasks/__init__.py breaks `import tasks`."""
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_junk_drawers() -> None:
    banned = {"utils", "common", "helpers", "misc", "base", "manager"}
    assert not [name_of(path) for path in SOURCES if banned & set(path.stem.split("_"))]


@pytest.mark.parametrize("package", ["tasks", "model"])
def test_every_module_has_its_test_file(package: str) -> None:
    tested = {path.stem.removeprefix("test_") for path in TESTS if path.stem.startswith("test_")}
    text = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)
    for path in (ROOT / package).rglob("*.py"):
        module = name_of(path).removesuffix(".py").replace("/", ".")
        is_tested = path.stem in tested or path.parent.name in tested or module in text  # dedup_near/ has one test file
        assert path.stem == "__init__" or is_tested, f"no test speaks of {module}"


def test_nothing_is_left_unfinished() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3 + ":", "raise NotImplemented" + "Error")
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not [mark for mark in marks if mark in text], name_of(path)
