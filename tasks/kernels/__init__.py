"""Compiled loops over Arrow text buffers. Home of numba.

numba keeps compiled code on disk and compiles anew when the file of the function has changed, but not when only the
file of a function that it calls has. So each state of this folder has a cache of its own, named by its digest.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

COMPILING = (
    "the first run of this version on this machine compiles its loops over text, once: "
    "ingest to decontaminate take a minute or two longer"
)


def cache_folder(folder: Path) -> Path:
    """Where numba keeps the compiled code of this state of the kernels: below NUMBA_CACHE_DIR where that is set."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()
    base, name = Path(os.environ.get("NUMBA_CACHE_DIR") or folder / "__pycache__"), f"numba-{digest[:16]}"
    return base if base.name == name else base / name  # a child process finds it set


@contextlib.contextmanager
def first_use(stage: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Tells COMPILING before a stage that has not yet been through here; a mark beside the compiled code says it has.

    numba itself tells nothing, and what a worker process compiles shows only when its part is done.
    """
    mark = Path(os.environ["NUMBA_CACHE_DIR"]) / f"{stage}.used"
    if is_first := not mark.exists():
        tell(COMPILING)
    yield
    if is_first:
        with contextlib.suppress(OSError):  # then numba can't keep anything there either
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


os.environ["NUMBA_CACHE_DIR"] = str(cache_folder(Path(__file__).parent))
if "numba" in sys.modules:  # it has read the variable already
    sys.modules["numba"].config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"]
