"""What Ray Train prepares in its workers before they train: torch's process group, and SIGTERM.

Ray's own handler ends a worker at once, and the training function runs in a thread, which may set none. What a backend
executes runs in the worker's main thread: it sets a handler there that asks all ranks to save at their next step and to
end. A second SIGTERM is Ray's again. Imports Ray Train, which takes half a second: only `fit` imports this module.
"""

import signal
from types import FrameType
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from model.trainer import TERMINATED


class SavingTorchConfig(TorchConfig):
    """torch's process group on workers that save when they are terminated."""

    @property
    def backend_cls(self) -> type:
        """What prepares the workers."""
        return _SavingTorchBackend


class _SavingTorchBackend(_TorchBackend):
    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(note_sigterm)


def note_sigterm() -> None:
    """The first SIGTERM to this process asks its training to save and end, the next one is for the handler of now."""
    before = signal.getsignal(signal.SIGTERM)

    def note(number: int, frame: FrameType | None) -> None:
        TERMINATED.set()
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, note)
