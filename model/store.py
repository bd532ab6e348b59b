"""What training asks of a storage; `tasks.storage.Storage` is one. Keys are "/"-separated, relative to its root."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol


class StoredObject(Protocol):
    """One listed file."""

    @property
    def key(self) -> str:
        """Its name."""

    @property
    def size(self) -> int:
        """Its bytes."""


class Store(Protocol):
    """Files that appear whole or not at all."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What failing disks and servers raise; OSError among it."""

    def read_bytes(self, key: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""

    def open_input(self, key: str) -> BinaryIO:
        """A seekable file for reading. Raises FileNotFoundError."""

    def exists(self, key: str) -> bool:
        """Whether the file is there."""

    def list_files(self, prefix: str) -> Sequence[StoredObject]:
        """Every file below a folder, sorted by key."""

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write a file, replacing what was there."""

    def create(self, key: str, data: bytes) -> bool:
        """Create a file that must not exist yet; False when it does."""

    def publish_file(self, local_path: str | Path, key: str) -> None:
        """Make a finished local file visible under a key."""

    def delete(self, key: str) -> None:
        """Remove a file; nothing happens when it is gone already."""
