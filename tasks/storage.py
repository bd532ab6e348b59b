"""The one door to disk and S3: read, list, publish whole files, create exclusively.

A root is a folder or `s3://bucket/prefix`; keys are relative to it, separated by "/". A file appears whole or not at
all: on disk through a temporary name and rename, on S3 through a single PUT or a completed multipart upload. Exclusive
creation is a hard link on disk (content and name appear together) and `If-None-Match: *` on S3. Home of s3fs.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tasks.errors import ConfigError, StorageError

logger = logging.getLogger(__name__)

SCRATCH_PREFIX = ".tmp-"  # leftovers of a killed attempt begin so; they are never read, and gc removes them
S3_CONFIG = {  # the storage client owns retries of single requests; parts and stages own theirs
    "retries": {"max_attempts": 10, "mode": "adaptive"},
    "connect_timeout": 10,
    "read_timeout": 60,
    "max_pool_connections": 32,
}
BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")  # what botocore takes; Amazon allows less
S3_SETTINGS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and for a server other than Amazon's "
    "AWS_ENDPOINT_URL=http://HOST:PORT"
)
HTTP_SERVER_ERROR = 500  # and above
QUIET_SECONDS = 60.0  # an operation that nobody tried for so long tells nothing of an outage; retries come every 20 s
HASH_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileInfo:
    """One stored file: key relative to the root, size in bytes, etag (S3) or "" (disk), time of change in seconds.

    `stamp` (disk): device, inode and both times of change in nanoseconds; any change of the content changes it.
    """

    key: str
    size: int
    etag: str
    modified: float
    stamp: str = ""


class Storage:
    """A storage root; holds its URL only, so that it can be sent to workers. Each process makes its own S3 client."""

    errors: tuple[type[Exception], ...] = (StorageError, OSError)  # what failing disks and servers raise

    def __init__(self, url: str) -> None:
        self.is_s3 = url.startswith("s3://")
        if not self.is_s3 and "://" in url:
            raise ConfigError(f"{url!r}: use a folder or s3://bucket/prefix")
        if not self.is_s3 and any(path.is_file() for path in (Path(url), *Path(url).parents)):
            raise ConfigError(f"{url!r} is a file; use a folder or s3://bucket/prefix")
        if self.is_s3 and not (bucket := url.removeprefix("s3://").partition("/")[0]):
            raise ConfigError(f"{url!r} names no bucket; use s3://bucket/prefix")
        if self.is_s3 and not BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"{url!r}: {bucket!r} is no bucket's name: letters, digits, dots, hyphens; s3://bucket/prefix"
            )
        self.url = url.rstrip("/") if self.is_s3 else str(Path(url).resolve())

    def __getstate__(self) -> dict[str, Any]:
        return {"is_s3": self.is_s3, "url": self.url}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    @cached_property
    def _s3(self) -> Any:
        import s3fs  # late: a local run needs no S3 client, and it costs half a second to import
        from aiobotocore.session import AioSession

        endpoint = os.environ.get("AWS_ENDPOINT_URL") or None
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"{self.url}: AWS_ENDPOINT_URL {endpoint!r} is no http://HOST:PORT or https://HOST")
        session = AioSession()
        session.register("needs-retry.s3", _outage_of("/".join(self.url.split("/")[:3])).note)
        return s3fs.S3FileSystem(
            endpoint_url=endpoint, session=session, use_listings_cache=False, skip_instance_cache=True,
            config_kwargs=S3_CONFIG,
        )  # fmt: skip

    def path(self, key: str) -> str:
        """Full path of a key: a local path, or bucket/prefix/key on S3."""
        base = self.url.removeprefix("s3://") if self.is_s3 else self.url
        return f"{base}/{key}" if key else base

    # --- reading -------------------------------------------------------------------------------------------------

    def read_bytes(self, key: str) -> bytes:
        """The whole file. Raises FileNotFoundError, StorageError."""
        with _as_storage_error(self, key):
            return bytes(self._s3.cat_file(self.path(key))) if self.is_s3 else Path(self.path(key)).read_bytes()

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes start..end (half-open). Raises FileNotFoundError, StorageError."""
        with _as_storage_error(self, key):
            if self.is_s3:
                return bytes(self._s3.cat_file(self.path(key), start=start, end=end)) if end > start else b""
            with open(self.path(key), "rb") as file:
                file.seek(start)
                return file.read(end - start)

    def read_json(self, key: str) -> Any:
        """A JSON file, parsed."""
        return orjson.loads(self.read_bytes(key))

    def open_input(self, key: str) -> BinaryIO:
        """A seekable binary file for reading. Raises FileNotFoundError, StorageError."""
        with _as_storage_error(self, key):
            if self.is_s3:
                opened: BinaryIO = self._s3.open(self.path(key), "rb")
                return opened
            return open(self.path(key), "rb")

    def exists(self, key: str) -> bool:
        """Whether the file is there."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Bytes of the file, or None where there is none."""
        info = self.info(key)
        return None if info is None else info.size

    def info(self, key: str) -> FileInfo | None:
        """Size, etag and time of change, or None where there is no such file."""
        with _as_storage_error(self, key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self.is_s3:
                return _s3_info(key, self._s3.info(self.path(key)))
            found = os.stat(self.path(key))
            return _disk_info(key, found)
        return None

    def list_files(self, prefix: str = "") -> list[FileInfo]:
        """Every file below a folder, sorted by key; scratch files are left out. For showing and gc, never for truth."""
        with _as_storage_error(self, prefix):
            found = self._list_s3(prefix) if self.is_s3 else self._list_disk(prefix)
            return sorted(found, key=lambda info: info.key)

    def _list_disk(self, prefix: str) -> Iterator[FileInfo]:
        base = Path(self.url)
        for folder, folders, names in os.walk(self.path(prefix)):
            folders[:] = [name for name in folders if not name.startswith(SCRATCH_PREFIX)]
            for name in names:
                full = Path(folder, name)
                if not name.startswith(SCRATCH_PREFIX) and (found := _regular_file(full)):
                    yield _disk_info(full.relative_to(base).as_posix(), found)
            for name in folders:
                if Path(folder, name).is_symlink():
                    logger.warning("%s/%s is a link to a folder: not followed", folder, name)

    def _list_s3(self, prefix: str) -> Iterator[FileInfo]:
        base = self.path("") + "/"
        found = self._s3.find(self.path(prefix), detail=True)
        for name, entry in found.items():
            if entry.get("type") == "file":
                yield _s3_info(name.removeprefix(base), entry)

    # --- writing -------------------------------------------------------------------------------------------------

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write a file whole, replacing what was there."""
        with _as_storage_error(self, key, len(data)):
            if self.is_s3:
                self._s3.pipe_file(self.path(key), data)
                return
            with self._scratch_for(key) as scratch:
                scratch.write_bytes(data)
                os.replace(scratch, self.path(key))

    def write_json(self, key: str, value: object) -> None:
        """Write JSON (sorted keys, two spaces) whole."""
        self.write_bytes(key, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))

    def create(self, key: str, data: bytes) -> bool:
        """Create a file that must not exist yet; False when it does. Content and name appear together."""
        with _as_storage_error(self, key, len(data)):
            try:
                if self.is_s3:
                    self._s3.pipe_file(self.path(key), data, mode="create")
                    return True
                with self._scratch_for(key) as scratch:
                    scratch.write_bytes(data)
                    os.link(scratch, self.path(key))
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if _s3_error_code(error) in ("PreconditionFailed", "412"):
                    return False
                raise

    def publish_file(self, local_path: str | Path, key: str) -> None:
        """Make a finished scratch file visible under its key, whole or not at all; the scratch file is left alone."""
        with _as_storage_error(self, key, os.path.getsize(local_path)):
            if self.is_s3:
                self._s3.put_file(str(local_path), self.path(key))
                return
            with self._scratch_for(key) as scratch:
                try:
                    os.link(local_path, scratch)  # same disk: no copy
                except OSError:
                    shutil.copyfile(local_path, scratch)
                os.replace(scratch, self.path(key))

    def delete(self, key: str) -> None:
        """Remove a file; nothing happens when it is gone already."""
        with _as_storage_error(self, key), contextlib.suppress(FileNotFoundError):
            if self.is_s3:
                self._s3.rm_file(self.path(key))
            else:
                os.unlink(self.path(key))

    @contextlib.contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """A local folder for files under construction; on disk inside the root, so that publishing is a rename."""
        parent = None
        if not self.is_s3:
            parent = Path(self.url, SCRATCH_PREFIX + "scratch")
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @contextlib.contextmanager
    def _scratch_for(self, key: str) -> Iterator[Path]:
        target = Path(self.path(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.parent / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
        try:
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)


class Outage:
    """Tells once that a store fails while its client asks again, for minutes at times, and once that it is back."""

    def __init__(self, place: str) -> None:
        self.place, self.begun = place, 0.0
        self.failing: dict[str, float] = {}  # operation -> when it failed last

    def note(self, attempts: int, operation: Any, response: Any, caught_exception: Any, **_: Any) -> None:
        """What came of one request; botocore asks its handlers of `needs-retry`, in the client's one thread."""
        name, now = operation.name, time.monotonic()
        status = response[0].status_code if response else 0
        if caught_exception is None and status < HTTP_SERVER_ERROR:
            was_failing = bool(self.failing)
            self.failing = {
                other: at for other, at in self.failing.items() if other != name and now - at < QUIET_SECONDS
            }
            if was_failing and not self.failing:
                logger.warning("%s: answers again, after %.0f s", self.place, now - self.begun)
        elif attempts > 1 or "Timeout" in type(caught_exception).__name__:  # one lost connection is no news
            if not self.failing:
                reason = str(caught_exception or f"HTTP status {status}").rstrip(".")
                logger.warning("%s: does not answer as it should (%s: %s); asked again", self.place, name, reason)
                self.begun = now
            self.failing[name] = now


@lru_cache
def _outage_of(place: str) -> Outage:
    """One for all storages of this process in the same bucket."""
    return Outage(place)


def sha256_of(file: BinaryIO) -> str:
    """sha256 of an open file, read in pieces."""
    digest = hashlib.sha256()
    while chunk := file.read(HASH_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def probe_exclusive_create(storage: Storage) -> None:
    """Check once that the store refuses a second creation; leases and manifests rest on it. Raises StorageError."""
    key = f"runs/{SCRATCH_PREFIX}probe-{uuid.uuid4().hex}"
    try:
        if not storage.create(key, b"1") or storage.create(key, b"2"):
            raise StorageError(f"{storage.url}: the store does not honour exclusive creation (If-None-Match)")
    finally:
        storage.delete(key)


def _regular_file(path: Path) -> os.stat_result | None:
    """What the disk knows of a file. None for what was removed while we look, and for what no reader should open."""
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return found
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and error.errno != errno.ELOOP:
            raise
    if os.path.lexists(path):  # opening a pipe would wait for its writer
        logger.warning("%s is no regular file (a pipe, a device, a link to nowhere): left out", path)
    return None


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _disk_info(key: str, found: os.stat_result) -> FileInfo:
    stamp = f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{found.st_ctime_ns}"
    return FileInfo(key, found.st_size, "", found.st_mtime, stamp)


def _s3_info(key: str, entry: dict[str, Any]) -> FileInfo:
    if entry.get("type") == "directory":
        raise FileNotFoundError(key)
    modified = entry.get("LastModified")
    return FileInfo(
        key, int(entry["size"]), str(entry.get("ETag", "")).strip('"'), modified.timestamp() if modified else 0.0
    )


def _s3_error_code(error: OSError) -> str:
    """The code that the S3 server gave, or ""; s3fs keeps the client's error as the cause."""
    response = getattr(error.__cause__, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _store_errors(storage: Storage) -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """What says that S3 can't be used as it is set up; what a failing store raises.

    s3fs turns most answers into OSError, but not a lost connection.
    """
    if not storage.is_s3:
        return (), (OSError,)
    from botocore import exceptions as known  # late: as s3fs

    setup = (known.NoCredentialsError, known.PartialCredentialsError, known.ProfileNotFound)
    return setup, (OSError, known.BotoCoreError, known.ClientError)


@contextlib.contextmanager
def _as_storage_error(storage: Storage, key: str, needed_bytes: int = 0) -> Iterator[None]:
    """Errors of the store become StorageError; what callers act on (missing, exists) passes through."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        raise
    except _store_errors(storage)[0] as error:
        raise ConfigError(f"{storage.url}: {str(error).rstrip('.')}; {S3_SETTINGS}") from error
    except _store_errors(storage)[1] as error:
        reason = getattr(error, "strerror", None) or str(error)  # without scratch files that the reader never named
        if getattr(error, "errno", None) == errno.ENOSPC and not storage.is_s3:
            reason += f": {needed_bytes:,} bytes needed, {_free_bytes(Path(storage.url)):,} free"
        raise StorageError(f"{storage.url}: {key}: {reason}") from error
