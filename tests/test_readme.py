"""README.md held to the code: its commands, stages, recipe, layout of the storage, variables and files exist."""

import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from typer.testing import CliRunner

from flows.cli import app
from tasks.config import merge
from tasks.evaluate.task_items import TaskName
from tasks.manifest import MANIFEST_NAME
from tasks.parts import Part
from tasks.recipe import Recipe, parse_override
from tasks.runs import RUN_STAGES, record_key

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"\n##+ ", README)}
PACKAGES = ("flows", "tasks", "model")
SOURCE = "\n".join(path.read_text("utf-8") for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]


def table_of(section: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.replace("\\|", "/"))[1:-1]] for line in lines[2:]]


def code_of(text: str) -> list[str]:
    """What stands between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def blocks_of(section: str) -> list[str]:
    """What stands between lines of three backticks."""
    return re.findall(r"^```\w*\n(.*?)^```", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)


def test_two_commands_come_first_and_are_in_the_makefile() -> None:
    [block] = blocks_of("# basemill")
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make run", "make test"]
    assert README.index("make run") < README.index("\n## ")
    makefile = (ROOT / "Makefile").read_text()
    for command in [*re.findall(r"\bmake ([a-z]+)`", README), "run", "test"]:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {python.removeprefix('>=')} or newer" in README


def test_the_stage_table_is_the_graph() -> None:
    rows = table_of("The stages")
    assert tuple(row[0] for row in rows) == RUN_STAGES
    for row in rows:
        [place] = code_of(row[3])
        assert (ROOT / place).exists(), place
        assert place.endswith("/") == (ROOT / place).is_dir()


def test_the_recipe_is_one_and_its_override_fits() -> None:
    names = ("Your own recipe", "Rules", "Model and phases")
    whole, *sections = (yaml.safe_load(block) for name in names for block in blocks_of(name))
    recipe = Recipe.parse(whole)
    assert recipe.name == "mine"
    values = reduce(merge, sections, whole)
    assert all(Recipe.parse(merge(whole, section)) != recipe for section in sections)
    overrides = [text.removeprefix("--set ") for text in code_of(README) if re.match(r"--set \w[\w.]*=\w", text)]
    assert overrides
    for override in overrides:
        if "key.path" not in override:
            assert Recipe.parse(merge(values, parse_override(override))) != recipe, override


def test_the_classifiers_shown_are_sections_of_a_recipe() -> None:
    [block] = blocks_of("Classifiers")
    web = {"base": "/data/web"}
    sources = {"ingest": {"sources": {"web": web, "books": web, "wiki": web}}}
    text = block.replace("path: ", "path: /lists/")  # relative places are resolved when a file is loaded
    recipe = Recipe.parse(yaml.safe_load(blocks_of("Your own recipe")[0]) | yaml.safe_load(text) | sources)
    assert set(recipe.classifiers.given) == {"quality", "toxicity", "perplexity"}
    assert recipe.select.perplexity is not None


def test_the_scores_shown_are_sections_of_a_recipe() -> None:
    [block] = blocks_of("Scores")
    recipe = Recipe.parse(yaml.safe_load(blocks_of("Your own recipe")[0]) | yaml.safe_load(block))
    assert set(recipe.evaluate.tasks) == set(recipe.decontaminate.evaluation_sets)
    assert set(re.findall(r"\w+", block.split("tasks: # ")[1].partition("\n")[0])) == set(get_args(TaskName))


def test_the_demo_recipe_loads_and_is_where_the_readme_says() -> None:
    [path] = {text for text in code_of(SECTIONS["Your own recipe"]) if text.endswith("demo.yaml")}
    recipe = Recipe.load(ROOT / path)
    assert recipe == Recipe.load("demo")
    assert recipe.name == "demo"
    assert recipe.prepare


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_table_and_helps(name: str) -> None:
    shown = {
        text.removeprefix("basemill ").split()[0]: text for row in table_of("Commands") for text in code_of(row[0])
    }
    assert set(shown) == set(COMMANDS)
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", shown[name])) <= options
    assert "--json" in options or name == "up"  # prints no figures
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert COMMANDS[name].help.split("\n")[0].split()[0] in done.output


def test_commands_in_the_text_exist() -> None:
    texts = [text for text in code_of(README) if text.startswith("basemill ")]
    assert len(texts) > len(COMMANDS)
    for text in texts:
        name, *rest = text.removeprefix("basemill ").split()
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word.strip("[]") for word in rest if word.startswith(("--", "[--"))} <= options, text


def test_variables_exist() -> None:
    named = {word for row in table_of("Where it runs") for text in code_of(row[0]) for word in text.split(", ")}
    assert set(re.findall(r'"(BASEMILL_[A-Z_]+)"', SOURCE)) == {name for name in named if name.startswith("BASEMILL")}
    for name in named - {"AWS_*"}:  # those are read by botocore
        assert f'"{name}"' in SOURCE or re.search(rf"import .*\b{name}\b", SOURCE), name


def test_the_storage_layout_is_what_is_written() -> None:
    [block] = blocks_of("What lies where")
    part = Part("<stage>", "<key>", rows=1, bytes=1, sha256="", digest="", source=None)
    named = [line.split()[0] for line in block.splitlines()]
    assert named[0] == f"<root>/{part.path}"
    ends = [part.ledger_path, part.receipt_path]
    assert named[1:3] == ["/" + path.rpartition("/")[2] for path in ends]
    assert named[3] == f"<root>/<stage>/<fingerprint>/{MANIFEST_NAME}"
    assert named[5] == f"<root>/{record_key('<run-id>').rpartition('/')[0]}/"
    for name in re.findall(r"[\w.]+(?:\.json|\.html|/)(?=[, ]|$)", block.splitlines()[5].split(None, 1)[1]):
        assert f"/{name}" in SOURCE, name
    assert "/step-{step:08d}" in SOURCE
    assert "step-00001234/" in block.splitlines()[4]


def test_the_six_files_to_read_exist() -> None:
    files = [text for text in code_of(SECTIONS["Read the code"]) if text.endswith((".py", "/"))]
    assert len(files) == 6
    assert files[0] == "flows/pipeline.py"
    for name in files:
        assert (ROOT / name).is_file(), name


def test_every_path_in_the_text_exists() -> None:
    paths = [text for text in code_of(README) if re.fullmatch(r"(flows|tasks|model|deploy|tests)/[\w./]*", text)]
    for path in paths:
        assert (ROOT / path).exists(), path
