"""Is this machine, this storage root fit to run? Versions, memory, disk, exclusive creation, Prefect, Ray."""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from pydantic import BaseModel

from tasks.errors import PipelineError
from tasks.storage import Storage, probe_exclusive_create

PACKAGES = ("prefect", "ray", "pyarrow", "torch", "tokenizers", "gigatoken", "numba", "transformers")
MIN_PYTHON = (3, 11)
MIN_FREE_BYTES = 5 << 30  # the demo's lake takes about 1 GB, an installation 3 GB
MIN_MEMORY_BYTES = 4 << 30


class Finding(BaseModel, frozen=True):
    """One check."""

    check: str
    is_ok: bool
    detail: str


def examine(storage: Storage) -> list[Finding]:
    """All checks; each stands alone, so that one fault does not hide another."""
    return [_python(), *map(_package, PACKAGES), _memory(), *_disk(storage), _storage(storage), _ray()]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(check="python", is_ok=sys.version_info >= MIN_PYTHON, detail=version)


def _package(name: str) -> Finding:
    try:
        return Finding(check=name, is_ok=True, detail=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(check=name, is_ok=False, detail="not installed; run `make run` or pip install -e .")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    detail = f"{total / 2**30:.1f} GiB, {os.cpu_count()} CPUs"
    return Finding(check="memory", is_ok=total >= MIN_MEMORY_BYTES, detail=detail)


def _disk(storage: Storage) -> list[Finding]:
    if storage.is_s3:
        return []
    folder = Path(storage.url)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free at {folder}"
    return [Finding(check="disk", is_ok=free >= MIN_FREE_BYTES, detail=detail)]


def _storage(storage: Storage) -> Finding:
    try:
        probe_exclusive_create(storage)
    except (PipelineError, OSError) as error:
        return Finding(check="storage", is_ok=False, detail=str(error))
    return Finding(check="storage", is_ok=True, detail=f"{storage.url}: writes, and creates exclusively")


def _ray() -> Finding:
    address = os.environ.get("RAY_ADDRESS")
    return Finding(check="cluster", is_ok=True, detail=f"joins {address}" if address else "each run starts Ray here")
