"""The live view of a training: numbered segments of JSON lines and of TensorBoard events. A view, never read back.

A store can't append, so a segment is closed every 30 seconds and at each checkpoint, and the next one begun:

    <prefix>/<attempt>-00001.jsonl                    one line per step or event
    <prefix>/tensorboard/events.out.tfevents....      the same numbers; TensorBoard reads the files of a folder in order
"""

import logging
import time
from typing import Any

import orjson
from torch.utils.tensorboard import SummaryWriter

from model.job import live_segment
from model.scratch import scratch_folder
from model.store import Store

SEGMENT_SECONDS = 30.0
SCALARS = (
    "loss", "z_loss", "balance_loss", "router_z_loss", "grad_norm", "lr", "update_norm", "tokens_per_second",
    "data_wait_ratio", "mfu",
)  # fmt: skip

Line = dict[str, Any]

logger = logging.getLogger(__name__)


def scalars_of(line: Line) -> dict[str, float]:
    """The curves that a line has a point of: of a step SCALARS, of held-out text bits per byte by source."""
    if "event" in line:
        found = {f"bits_per_byte/{source}": value for source, value in line.get("bits_per_byte", {}).items()}
    else:
        found = {name: line.get(name) for name in SCALARS}
    return {name: value for name, value in found.items() if value is not None}


class LiveView:
    """Collects lines and publishes them in segments; without a prefix it drops them."""

    def __init__(self, store: Store, prefix: str | None, attempt: str) -> None:
        self.store, self.prefix, self.attempt = store, prefix, attempt
        self.segment, self.lines = 1, list[Line]()
        self.begun = time.monotonic()

    def add(self, line: Line) -> None:
        """One step's numbers, or an event (a line that has an `event`)."""
        if self.prefix is not None:
            self.lines.append(line)
            if time.monotonic() - self.begun > SEGMENT_SECONDS:
                self.close_segment()

    def close_segment(self) -> None:
        """Publish what was collected. What a failing store refuses comes with the next segment: a view ends nothing."""
        self.begun = time.monotonic()
        if self.prefix is None or not self.lines:
            return
        text = b"".join(orjson.dumps(line) + b"\n" for line in self.lines)  # null where a loss is not finite
        try:
            self.store.write_bytes(live_segment(self.prefix, self.attempt, self.segment), text)
            shown = [line for line in self.lines if scalars_of(line) or line.get("event") == "sample"]
            self._publish_tensorboard(shown)
        except self.store.errors as error:
            logger.warning("the live view is kept for the next segment: %s", error)
            return
        self.lines.clear()
        self.segment += 1

    def _publish_tensorboard(self, lines: list[Line]) -> None:
        if not lines:
            return
        with scratch_folder() as folder:
            with SummaryWriter(str(folder), filename_suffix=f".{self.attempt}-{self.segment:05d}") as writer:
                for line in lines:
                    if line.get("event") == "sample":  # Markdown: indented, it is shown as it is
                        text = "    " + f"{line['prompt']} | {line['text']}".replace("\n", "\n    ")
                        writer.add_text(f"{line['phase']}/{line['source']}", text, line["step"])
                    for name, value in scalars_of(line).items():
                        writer.add_scalar(f"{line['phase']}/{name}", value, line["step"])
            for path in folder.iterdir():
                self.store.publish_file(path, f"{self.prefix}/tensorboard/{path.name}")
