"""The digest of the code that makes a result: a changed constant moves it, a comment does not (design section 2).

Taken from the syntax trees of a stage's module and of the project modules that it imports, without docstrings,
annotations, imports, logger calls and config classes (their resolved values are in the key). Foundation modules count
by FOUNDATION_VERSION, which is raised when a change to them changes results. A module names the packages whose versions
decide its results in RESULT_PACKAGES, and its model files and word lists (paths beside the module) in RESULT_FILES.
"""

import ast
import hashlib
import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from tasks.errors import ConfigError

FOUNDATION_VERSION = 1
FOUNDATION = frozenset(
    f"tasks.{name}"
    for name in (
        *("cause", "codedigest", "config", "dataset", "digest", "documents", "errors"),
        *("lease", "ledger", "manifest", "parallel", "parts", "storage"),
    )
)
PROJECT = ("tasks", "model")
LOGGERS = ("logger", "logging")
TRAINER = "model.trainer"  # code that is no part of a key: a checkpoint says what made it, a plan what changed since
PARSE_ATTEMPTS = 10
PARSE_RETRY_SECONDS = 0.02


@dataclass(frozen=True)
class CodeDigest:
    """`digest` over everything; `modules` and `packages` tell what changed when it moves."""

    digest: str
    modules: dict[str, str]
    packages: dict[str, str]


@lru_cache(maxsize=64)
def code_digest(module: str) -> CodeDigest:
    """Digest of a module and of the project modules it imports, directly or not."""
    modules: dict[str, str] = {}
    packages: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in modules and name not in FOUNDATION:
            modules[name], own_packages, imported = _module_facts(name)
            packages.update({package: version(package) for package in own_packages})
            waiting.extend(imported)
    lines = [f"foundation {FOUNDATION_VERSION}"]
    lines += [f"{name} {value}" for name, value in sorted((modules | packages).items())]
    return CodeDigest(hashlib.sha256("\n".join(lines).encode()).hexdigest(), modules, packages)


@lru_cache(maxsize=512)
def _module_facts(name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Digest of one module, the packages that decide its results, the project modules that it imports."""
    source, folder = _source_of(name)
    tree = parse_source(source)
    files = [hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in _constant(tree, "RESULT_FILES")]
    packages, imported = _constant(tree, "RESULT_PACKAGES"), tuple(_imports(tree))
    digest = hashlib.sha256("\n".join([_canonical(tree), *files]).encode()).hexdigest()
    return digest, packages, imported


def canonical_source(source: str) -> str:
    """The syntax tree as text, without what cannot change a result."""
    return _canonical(parse_source(source))


def parse_source(source: str) -> ast.Module:
    """`ast.parse`, tried again where CPython 3.11 mixes up its own count.

    It keeps the recursion depth of the tree's construction per interpreter: when another thread parses at the same
    time (Prefect looks for flows in its own) both can end in a SystemError.
    """
    for _ in range(PARSE_ATTEMPTS - 1):
        try:
            return ast.parse(source)
        except SystemError:
            time.sleep(PARSE_RETRY_SECONDS)
    return ast.parse(source)


def _canonical(tree: ast.Module) -> str:
    """The same of a tree, which is used up."""
    return ast.dump(_Strip().visit(tree))


def _source_of(module: str) -> tuple[str, Path]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or spec.loader is None:
        raise ConfigError(f"module {module}: its source is not found")
    source = spec.loader.get_source(module)  # type: ignore[attr-defined]
    return source or "", Path(spec.origin).parent


def _constant(tree: ast.Module, name: str) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()


def _imports(tree: ast.Module) -> Iterator[str]:
    """Project modules that a tree imports; `from tasks import x` counts as the module tasks.x where there is one."""
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PROJECT)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PROJECT:
            yield node.module
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in inner if name not in FOUNDATION and _is_module(name))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement, those inside others too; expressions, most of a tree, hold no import."""
    for node in body:
        yield node
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [inner.body for name in ("handlers", "cases") for inner in getattr(node, name, [])]
        for block in blocks:
            yield from _statements(block)


@lru_cache(maxsize=512)
def _is_module(name: str) -> bool:
    """Whether `tasks.x` is a file. Looked up on disk: importlib would import its parent, and with it torch."""
    top, *inner = name.split(".")
    spec = importlib.util.find_spec(top)
    folders = [Path(folder, *inner) for folder in (spec.submodule_search_locations or ())] if spec else []
    return any(folder.with_suffix(".py").is_file() or (folder / "__init__.py").is_file() for folder in folders)


class _Strip(ast.NodeTransformer):
    """Takes docstrings, annotations, imports, logger calls and config classes out of a tree."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        if any(isinstance(base, ast.Name) and base.id == "BaseModel" for base in node.bases):
            return None
        return self._body(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.Assign(targets=[node.target], value=self.visit(node.value))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        if isinstance(call, ast.Call) and _is_logger_call(call.func):
            return None
        self.generic_visit(node)
        return node

    def _body(self, node: ast.AST) -> ast.AST:
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
        if ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            body = body[1:]
        node.body = body or [ast.Pass()]  # type: ignore[attr-defined]
        self.generic_visit(node)
        return node


def _is_logger_call(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in LOGGERS
