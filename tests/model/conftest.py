"""Fixtures for the training tests: small packs on a temporary root."""

import hashlib
import multiprocessing
import os
import runpy
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from model.order import GROUP_ROWS, Pack, PackPart
from tasks.storage import Storage
from tests.conftest import LIMIT_SECONDS

torch.set_num_threads(1)  # tiny products: a second thread waits more than it works, tenfold on a busy machine

MakePack = Callable[..., Pack]


@pytest.fixture(scope="session", autouse=True)
def _compiled_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What inductor has left in /tmp may be for another CPU: with AVX-512's, AVX2 computed NaN."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture
def store(tmp_path: Path) -> Storage:
    """An empty root."""
    return Storage(str(tmp_path / "lake"))


@pytest.fixture
def make_pack(store: Storage) -> MakePack:
    """make_pack("web", [300, 20]): `write_pack` into the test's root."""
    return partial(write_pack, store)


def write_pack(
    root: Storage, source: str, rows: list[int], length: int = 32, vocab: int = 64, file: str = "", shortest: int = 3
) -> Pack:
    """A pack of documents of `shortest` to `length` tokens, id 0 = bos."""
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(source.encode()).digest()[:4]))
    parts, tokens = [], 0
    for index, count in enumerate(rows):
        table = pack_table(generator, count, length, vocab, shortest)
        tokens += sum(table["num_tokens"].to_pylist())
        key = f"pack/parts/{file or source}-{index}.parquet"
        path = Path(root.path(key))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=GROUP_ROWS, write_page_checksum=True)
        parts.append(PackPart(key, count))
    return Pack(source, f"digest-{source}-{rows}-{length}", tuple(parts), tokens, length)


def pack_table(generator: np.random.Generator, count: int, length: int, vocab: int, shortest: int = 3) -> pa.Table:
    """Rows whose next token follows from the one before most of the time, so that a model learns something."""
    step = int(generator.integers(1, 9))
    ids = np.zeros((count, length), dtype=np.uint16)
    starts, num_tokens = [], []
    for row in ids:
        row_starts, at, end = [], 0, length - int(generator.integers(0, 4))
        while at < end:
            size = min(int(generator.integers(shortest, length + 1)), end - at)
            row_starts.append(at)
            row[at + 1 : at + size] = 1 + (generator.integers(0, vocab) + step * np.arange(size - 1)) % (vocab - 1)
            at += size
        starts.append(row_starts)
        num_tokens.append(end)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(ids.reshape(-1)), length)
    columns = {"input_ids": flat, "doc_ids": pa.array([[f"d{s}" for s in row] for row in starts])}
    columns |= {
        "document_starts": pa.array(starts, pa.list_(pa.int32())),
        "num_tokens": pa.array(num_tokens, pa.int32()),
    }
    columns["document_offsets"] = pa.array([[0] * len(row) for row in starts], pa.list_(pa.int32()))
    return pa.table(columns)


class RankProcesses:
    """Runs a script in gloo ranks: `run(script, ranks, **globals)`; the script finds RANK, RANKS and INIT_METHOD set.

    Processes come from a fork server that has torch loaded, so that a group costs a tenth of a second, not five.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.groups = folder, 0
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch.distributed.fsdp", "model.trainer", "tasks.storage"])

    def start(self, script: Path, ranks: int, **values: object) -> list[BaseProcess]:
        """The started processes, one per rank."""
        self.groups += 1
        rendezvous = self.folder / f"rendezvous-{self.groups}"
        common = values | {"RANKS": ranks, "INIT_METHOD": f"file://{rendezvous}"}
        processes = [
            self.context.Process(target=runpy.run_path, args=(str(script), common | {"RANK": rank}, "__main__"))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        return list(processes)

    def run(self, script: Path, ranks: int, **values: object) -> None:
        """Start and wait; every rank must end well."""
        processes = self.start(script, ranks, **values)
        for process in processes:
            process.join(LIMIT_SECONDS)
        assert [process.exitcode for process in processes] == [0] * ranks

    def run_until_killed(self, script: Path, ranks: int, victim: int = 0, **values: object) -> None:
        """Start and wait until that rank was killed, as `values` must bring about; the others go with it."""
        processes = self.start(script, ranks, **values)
        processes[victim].join(LIMIT_SECONDS)
        assert processes[victim].exitcode == -signal.SIGKILL
        for process in processes:
            process.kill()
            process.join(LIMIT_SECONDS)


@pytest.fixture
def rank_processes(tmp_path: Path) -> RankProcesses:
    """Starts scripts in several ranks."""
    return RankProcesses(tmp_path)
