"""Who computes a dataset now: numbered lease files, created exclusively.

The highest number is the holder. It rewrites only its own file every HEARTBEAT_SECONDS; a waiter creates the next
number once the highest has not changed for EXPIRY_SECONDS by the store's clock, or was released, or names a process of
this machine that is gone. The lease saves work; what keeps data right is that part bytes are deterministic and the
manifest is created exclusively.
"""

import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from tasks.errors import Cancelled, LeaseLost, StorageError
from tasks.storage import SCRATCH_PREFIX, FileInfo, Storage

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 2.0
LEASE_NAME = re.compile(r"lease-(\d{5})$")


@contextmanager
def hold_lease(
    storage: Storage,
    folder: str,
    run_id: str,
    *,
    stop: threading.Event | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[threading.Event]:
    """Wait for the lease of a dataset folder, hold it, release it. Yields an event that is set when it is lost.

    Raises Cancelled while waiting, LeaseLost at the end when another took over.
    """
    stop = stop or threading.Event()
    key, content = _acquire(storage, folder, run_id, stop, on_wait)
    finished, lost = threading.Event(), threading.Event()
    beat = threading.Thread(target=_beat, args=(storage, key, content, finished, lost), name="lease", daemon=True)
    beat.start()
    try:
        yield lost
    finally:
        finished.set()
        beat.join()
        storage.write_bytes(key, orjson.dumps(content | {"released": True}))
    if lost.is_set():
        raise LeaseLost(f"{folder}: another run took the lease over; its result counts")


def _acquire(
    storage: Storage, folder: str, run_id: str, stop: threading.Event, on_wait: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    content = {"run_id": run_id, "host": socket.gethostname(), "pid": os.getpid(), "process": _started(os.getpid())}
    while True:
        highest = _highest(storage, folder)
        if highest is None or _is_over(storage, highest):
            key = f"{folder}/lease-{_number(highest) + 1:05d}"
            if storage.create(key, orjson.dumps(content | {"released": False, "beat": uuid.uuid4().hex})):
                return key, content
            continue
        on_wait(f"waiting for the lease of {folder}, held by {_holder(storage, highest)}")
        if stop.wait(POLL_SECONDS):
            raise Cancelled(f"cancelled while waiting for the lease of {folder}")


def _beat(
    storage: Storage, key: str, content: dict[str, Any], finished: threading.Event, lost: threading.Event
) -> None:
    folder = key.rpartition("/")[0]
    while not finished.wait(HEARTBEAT_SECONDS):
        try:
            highest = _highest(storage, folder)
            if highest is not None and highest.key != key:
                lost.set()
                return
            storage.write_bytes(key, orjson.dumps(content | {"released": False, "beat": uuid.uuid4().hex}))
        except StorageError as error:  # the next beat may get through; if it comes too late, it finds a new holder
            logger.warning("%s could not be renewed: %s", key, error)


def _highest(storage: Storage, folder: str) -> FileInfo | None:
    leases = [info for info in storage.list_files(folder) if LEASE_NAME.search(info.key)]
    return max(leases, key=_number, default=None)


def _number(info: FileInfo | None) -> int:
    found = LEASE_NAME.search(info.key) if info else None
    return int(found.group(1)) if found else 0


def _is_over(storage: Storage, lease: FileInfo) -> bool:
    content = _content(storage, lease)
    if content.get("released"):
        return True
    if content.get("host") == socket.gethostname() and _started(int(content["pid"])) != content.get("process"):
        return True  # its process is gone: no need to wait
    return _now(storage, lease) - lease.modified > EXPIRY_SECONDS


def _content(storage: Storage, lease: FileInfo) -> dict[str, Any]:
    try:
        value: dict[str, Any] = storage.read_json(lease.key)
        return value
    except FileNotFoundError:
        return {"released": True}


def _holder(storage: Storage, lease: FileInfo) -> str:
    content = _content(storage, lease)
    return f"run {content.get('run_id')} on {content.get('host')}"


def _now(storage: Storage, lease: FileInfo) -> float:
    """The store's own clock: the time of a file written this moment."""
    key = f"{lease.key.rpartition('/')[0]}/{SCRATCH_PREFIX}clock-{uuid.uuid4().hex}"
    storage.write_bytes(key, b"")
    try:
        info = storage.info(key)
        return info.modified if info else 0.0
    finally:
        storage.delete(key)


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot, with the boot's id; "" when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else f"{boot}:{fields[19]}"
