"""Folders that killed processes left behind go; those of living ones, of others and links stay."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from model import scratch
from model.scratch import clear_abandoned, new_scratch, scratch_folder

HOLD = """
import sys
from pathlib import Path
from model.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "shard").write_bytes(b"half")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """Another process that uses the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(scratch.__file__).parents[1],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_folder_goes_with_its_user_and_no_earlier(place: Path) -> None:
    with scratch_folder() as folder, scratch_folder() as other:
        (folder / "inner").mkdir()
        clear_abandoned(place)
        assert folder.is_dir()
        assert other.is_dir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(place.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path) -> None:
    folder = new_scratch()
    process = holder(folder)
    clear_abandoned(place)
    assert (folder / "shard").exists()
    process.kill()
    process.communicate()
    assert (folder / "shard").exists()
    clear_abandoned(place)
    assert not folder.exists()


def test_a_shared_folder_stays_while_one_of_its_users_lives(place: Path) -> None:
    folder = new_scratch()
    first, second = holder(folder), holder(folder)
    first.kill()
    first.communicate()
    clear_abandoned(place)
    assert (folder / "shard").exists()
    second.communicate()  # ends by itself
    assert not folder.exists()


def test_links_files_other_names_and_other_users_are_let_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = place / "kept"
    kept.mkdir()
    new_scratch().symlink_to(kept)
    new_scratch().write_text("a file")
    (place / "basemill-20261130-155834-86c9-f4b1ad").mkdir()
    (place / f"my-basemill-{uuid.uuid4().hex}").mkdir()
    names = sorted(path.name for path in place.iterdir())
    clear_abandoned(place)
    assert sorted(path.name for path in place.iterdir()) == names
    new_scratch().mkdir()
    monkeypatch.setattr("os.geteuid", lambda: -1)
    clear_abandoned(place)
    assert len(list(place.iterdir())) == len(names) + 1
    clear_abandoned(place / "absent")


def test_links_inside_are_not_followed(place: Path) -> None:
    kept, folder = place / "kept", new_scratch()
    (kept / "deep").mkdir(parents=True)
    folder.mkdir()
    (folder / "link").symlink_to(kept)
    clear_abandoned(place)
    assert not folder.exists()
    assert (kept / "deep").is_dir()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process takes it between the two, once before it is opened and once after."""
    opened = scratch._open
    removals = ["before", "after"]

    def open_late(path: str | Path) -> int:
        when = removals.pop(0) if removals else ""
        if when == "before":
            Path(path).rmdir()
        held = opened(path)
        if when == "after":
            Path(path).rmdir()
        return held

    monkeypatch.setattr(scratch, "_open", open_late)
    with scratch_folder() as folder:
        assert folder.is_dir()
        monkeypatch.setattr(scratch, "_open", opened)
        clear_abandoned(place)
        assert folder.is_dir()
