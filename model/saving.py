"""Saves beside the training: one at a time, on a thread of its own where wanted; failures are counted, not fatal.

What is written is a copy in host memory, taken between two steps, so the bytes are those of a save that training waits
for. The thread talks to the other ranks through a gloo group of its own. All ranks learn of a failure alike, and count
it at the same boundary: a failed save costs nothing but its checkpoint, until three in a row have failed.
"""

import threading
from collections.abc import Callable

from torch import Tensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager

MAX_FAILED_SAVES = 3
RETRY_SECONDS = 1.0  # before a save that training can't go on without is tried again; the store's client has waited too


class SaveFailed(OSError):
    """A checkpoint could not be written; raised on all ranks alike."""


class Saver:
    """Runs saves one at a time and counts those that failed in a row."""

    def __init__(self, in_background: bool) -> None:
        self.in_background = in_background
        self.failures = 0  # in a row
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Run a save, in the background or here. `settle` says how it ended."""
        assert self._thread is None  # one at a time: settle the one before first
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(write,), name="save", daemon=True)
        self._thread.start()
        if not self.in_background:
            self._thread.join()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - handed to the training thread, which counts or raises it
            self._error = error

    @property
    def is_pending(self) -> bool:
        """Whether a save was started that nobody has settled."""
        return self._thread is not None

    @property
    def is_written(self) -> bool:
        """Whether the pending save has come to its end on this rank."""
        return self._thread is not None and not self._thread.is_alive()

    def settle(self) -> SaveFailed | None:
        """Wait for the pending save; its failure, or None. Raises the third one in a row, and any other error."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread = None
        if self._error is None:
            self.failures = 0
            return None
        if not isinstance(self._error, SaveFailed):
            raise self._error
        self.failures += 1
        if self.failures == MAX_FAILED_SAVES:
            raise SaveFailed(f"{self.failures} checkpoints in a row could not be saved: {self._error}") from self._error
        return self._error

    def close(self) -> None:
        """Wait for the thread, whatever came of it."""
        if self._thread is not None:
            self._thread.join()


def host_copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy in host memory, sharded as the tensors are; on return they may change again."""
    copied: dict[str, Tensor] = BlockingAsyncStager().stage(tensors)
    return copied
