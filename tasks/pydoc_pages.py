"""Run as a program: pydoc's HTML of standard library modules, one JSON line [module, page] each, into a file.

Standard library only, so that it runs without site packages and sees nothing of them:
`python -S -P pydoc_pages.py OUTPUT [MODULE ...]`. The same machine gives the same bytes: set PYTHONHASHSEED and TZ.
"""

import importlib
import json
import os
import pydoc
import re
import sys
import sysconfig
import warnings

# Importing these opens a browser, prints, starts a window or runs a test suite.
SIDE_EFFECTS = frozenset(
    {"antigravity", "this", "idlelib", "turtledemo", "__main__", "__hello__", "__phello__", "test"}
)
OF_THIS_PROCESS = frozenset({"sys"})  # its page shows the arguments, folders and loaded modules of this very process
ADDRESS = re.compile(r"(at(?: |&nbsp;)0x|handle )[0-9a-f]{6,}")


def module_page(name: str) -> str | None:
    """The page of a module without paths of this machine; None for one that this Python lacks."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    page = pydoc.html.page(pydoc.html.escape(name), pydoc.html.document(module, name))
    for path, stands_for in _paths():
        page = page.replace(path, stands_for)
    return ADDRESS.sub(r"\g<1>0", page)


def _paths() -> list[tuple[str, str]]:
    """Folders of this machine, the longest first, and what the pages say in their place."""
    library = sysconfig.get_path("stdlib")
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable)}
    found = {library: "lib/python", os.getcwd(): "."} | dict.fromkeys(prefixes, "python")
    return sorted(found.items(), key=lambda item: -len(item[0]))


def main(output: str, *names: str) -> None:
    """Write the pages of these modules, or of all that can be imported without consequences."""
    warnings.simplefilter("ignore")
    with open(output, "w", encoding="utf-8") as file:
        for name in names or sorted(sys.stdlib_module_names - SIDE_EFFECTS - OF_THIS_PROCESS):
            page = module_page(name)
            if page is not None:
                file.write(json.dumps([name, page]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
