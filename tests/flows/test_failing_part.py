"""A part that cannot be computed fails its stage and the run, and is named; what was finished stays.

The reason here is always a finished part that was damaged before the next stage reads it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows import cli
from tasks.journal import read_events
from tasks.manifest import load_manifest
from tasks.parts import Part
from tasks.runs import RunRecord, find_record
from tasks.storage import Storage
from tests.flows.conftest import states_of_tasks

Execute = Callable[..., tuple[Any, RunRecord]]


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit in the middle of the first column's pages."""
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)


def lose_a_row(path: Path) -> None:
    """A sound file with one row less."""
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


DAMAGES = [  # (stage whose part is damaged, how, stage that reads it)
    ("ingest", delete, "dedup-exact"),
    ("dedup-exact", cut, "signals"),
    ("signals", flip, "select"),
    ("select", empty, "dedup-near"),
    ("dedup-near", lose_a_row, "redact"),
]


def forget(root: str, first: RunRecord, stage: str) -> list[str]:
    """Remove the results of a stage and of those after it; returns the labels of those before."""
    labels = [line.label for line in first.datasets]
    place = labels.index(stage)
    for folder in Path(root).iterdir():
        if folder.name.partition(".")[0] in labels[place:]:
            shutil.rmtree(folder)
    return labels[:place]


def some_part(root: str, first: RunRecord, stage: str) -> Part:
    """The part with the most rows."""
    [line] = first.datasets_of(stage)
    return max(load_manifest(Storage(root), line.reference).parts, key=lambda part: part.rows or 0)


@pytest.mark.parametrize(("stage", "damage", "reader"), DAMAGES, ids=lambda case: getattr(case, "__name__", case))
def test_a_damaged_part_fails_its_reader_and_the_run(
    execute: Execute, first: RunRecord, root: str, server_url: str,
    stage: str, damage: Callable[[Path], None], reader: str,
) -> None:  # fmt: skip
    before = forget(root, first, reader)
    part = some_part(root, first, stage)
    path = Path(root, part.path)
    sound = path.read_bytes()
    damage(path)

    state, record = execute()
    assert state.is_failed()
    assert record.state == "failed"
    assert [line.label for line in record.datasets] == before
    assert not list(Path(root, reader).glob("*/manifest.json"))
    message = record.attempts[-1].message
    assert part.key in message
    assert message.startswith("DataError")
    assert part.key in (state.message or "")
    tasks = states_of_tasks(server_url, record, {"curate", *before, reader})
    assert tasks.pop("report", None) in (None, ("Completed", 1))
    assert tasks.pop(reader) == ("Failed", 1)  # another try would end the same way
    assert set(tasks) == {"curate", *before}
    kinds = [event["kind"] for event in read_events(Storage(root), record.run_id)]
    assert kinds.count("stage failed") == 1

    path.write_bytes(sound)
    finished = {path: path.read_bytes() for path in Path(root, reader, "parts").glob("*.json")}
    if reader in ("signals", "select", "redact"):  # one bad part of three: a rerun computes that one
        assert len(finished) == len(load_manifest(Storage(root), first.datasets_of(stage)[0].reference).parts) - 1
    state, record = execute(run_id=record.run_id, until_stage=reader)
    assert state.is_completed()
    assert [line.digest for line in record.datasets] == [line.digest for line in first.datasets][: len(before) + 1]
    assert [attempt.state for attempt in record.attempts] == ["failed", "completed"]
    assert all(path.read_bytes() == receipt for path, receipt in finished.items())


def test_the_command_says_it_and_exits_with_1(
    first: RunRecord, root: str, recipe_path: Path, server_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(root, first, "redact")
    part = some_part(root, first, "dedup-near")
    Path(root, part.path).unlink()
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(recipe_path), "--root", root, "--until", "mix"])
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert part.key in said.err.replace("\n", "")
    assert "basemill rerun" in said.err
    assert "Traceback" not in said.err
    assert find_record(Storage(root), "latest").state == "failed"


def test_a_damaged_part_is_computed_again_by_force(execute: Execute, first: RunRecord, root: str) -> None:
    """The way out where the part cannot be brought back: the same digests, as a new generation."""
    forget(root, first, "dedup-exact")
    cut(Path(root, some_part(root, first, "ingest").path))
    state, record = execute(force=True, until_stage="signals")
    assert state.is_completed()
    assert [line.digest for line in record.datasets] == [line.digest for line in first.datasets[:3]]
