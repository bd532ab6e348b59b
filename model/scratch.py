"""Local folders for files under construction, and an end to those that a killed process left behind.

Who uses `<temporary folder>/basemill-<32 hex digits>` holds a shared lock on it, which the kernel takes back when the
process dies. So a folder of this name and this user that can be locked alone belongs to nobody, and is removed.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"basemill-[0-9a-f]{32}(-ray)?")


def new_scratch() -> Path:
    """A path that nobody else uses."""
    return Path(tempfile.gettempdir(), f"basemill-{uuid.uuid4().hex}")


@contextlib.contextmanager
def scratch_folder(path: Path | None = None) -> Iterator[Path]:
    """A folder while it lasts: a new one, or one that processes of this machine share by its path."""
    folder = path or new_scratch()
    held = _hold(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def clear_abandoned(parent: Path) -> None:
    """Remove the folders of this user that no living process holds; links and what bears other names are let be."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # in use, another user's, or gone meanwhile
                    _remove_unless_held(entry.path)


def _hold(folder: Path) -> int:
    """Make the folder and lock it; another process may remove it in between, for it was nobody's."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            held = _open(folder)
            with contextlib.suppress(OSError):  # a file system without locks: then nobody removes it either
                fcntl.flock(held, fcntl.LOCK_SH)
            if _is_still(held, folder):
                return held
            os.close(held)


def _remove_unless_held(path: str) -> None:
    held = _open(path)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(held, path):
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)


def _open(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_still(held: int, path: str | Path) -> bool:
    """Whether the path names the folder that was opened."""
    try:
        return os.path.samestat(os.fstat(held), os.lstat(path))
    except FileNotFoundError:
        return False
