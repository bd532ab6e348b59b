"""pydoc's pages: of modules that can be imported without consequences, without traces of this process."""

import json
import sys
from pathlib import Path

import pytest

from tasks.pydoc_pages import OF_THIS_PROCESS, SIDE_EFFECTS, main, module_page


def test_a_page_names_the_library_not_its_folder() -> None:
    page = module_page("json")
    assert page is not None
    assert "lib/python/json/__init__.py" in page
    assert sys.base_prefix not in page


def test_a_module_that_is_not_there_has_no_page() -> None:
    assert module_page("no_such_module_anywhere") is None


@pytest.mark.parametrize("name", ["difflib", "ctypes"])
def test_addresses_are_left_out(name: str) -> None:
    page = module_page(name)
    assert page is not None
    assert "0x7f" not in page
    assert "at&nbsp;0x0" in page or "handle 0" in page


def test_modules_with_consequences_are_left_out() -> None:
    assert {"antigravity", "this", "__main__"} <= SIDE_EFFECTS
    assert {"sys"} <= OF_THIS_PROCESS


def test_the_program_writes_one_line_per_module(tmp_path: Path) -> None:
    main(str(tmp_path / "out"), "json", "no_such_module_anywhere", "html")
    rows = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    assert [name for name, _ in rows] == ["json", "html"]
    assert all(page.startswith("<!DOCTYPE html>") for _, page in rows)
