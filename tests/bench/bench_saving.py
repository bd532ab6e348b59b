"""Saving: how long the step lasts in which a checkpoint is due, saved beside the training or while it waits.

`pytest tests/bench/bench_saving.py -m bench -s` prints one line: the usual step, the step with a save in either mode,
to a store that takes 20 MB/s. What remains beside the training is the probe row's loss and the copy of weights and
moments. Wall-clock time, since waiting is what is measured; the share of CPU that the thread takes shows in the steps.
"""

import itertools
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from model.architecture import ModelConfig
from model.config import PhaseRun
from model.job import Job, Settings
from model.order import GROUP_ROWS, Pack, PackPart
from model.ranks import Ranks
from model.trainer import Trainer
from tasks.storage import Storage

LENGTH, ROWS, STEPS, SAVED_STEP, VOCABULARY = 512, 8, 16, 8, 4096
BYTES_PER_SECOND = 20e6
MODEL = ModelConfig(
    num_layers=6, width=256, num_heads=4, num_kv_heads=2, head_width=64, mlp_width=704, vocab_size=VOCABULARY
)


class SlowStorage(Storage):
    """A store that takes BYTES_PER_SECOND."""

    def publish_file(self, local_path: str | Path, key: str) -> None:
        time.sleep(Path(local_path).stat().st_size / BYTES_PER_SECOND)
        super().publish_file(local_path, key)


def write_pack(store: Storage) -> Pack:
    rows = GROUP_ROWS
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (rows, LENGTH)).astype(np.uint16)
    columns = {
        "input_ids": pa.FixedSizeListArray.from_arrays(pa.array(ids.reshape(-1)), LENGTH),
        "document_starts": pa.array([[0, 100, 340]] * rows, pa.list_(pa.int32())),
        "num_tokens": pa.array([LENGTH] * rows, pa.int32()),
    }
    path = Path(store.path("pack/rows.parquet"))
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS, write_page_checksum=True)
    return Pack("web", "rows", (PackPart("pack/rows.parquet", rows),), rows * LENGTH, LENGTH)


def seconds_between_steps(job: Job) -> list[float]:
    """Wall-clock time from the end of one step to that of the next; entry i ends step i + 2."""
    ends: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.perf_counter()))
    try:
        trainer = Trainer(job, Ranks(), lambda: False, lambda: False)
        trainer.run()
    finally:
        hook.remove()
    return [after - before for before, after in itertools.pairwise(ends)]


@pytest.mark.bench
@pytest.mark.timeout(600)
def test_step_in_which_a_checkpoint_is_written(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    phase = {
        "name": "main", "tokens": STEPS * ROWS * LENGTH, "weights": {"web": 1}, "batch": ROWS,
        "sequence_length": LENGTH, "schedule": {"lr": 1e-3},
    }  # fmt: skip
    run = PhaseRun.model_validate({"model": MODEL, "phase": phase, "precision": "bf16"})
    usual, saving = {}, {}
    for name, in_background in (("beside", True), ("waiting", False)):
        store = SlowStorage(str(tmp_path / name))
        settings = Settings(checkpoint_steps=SAVED_STEP, checkpoint_seconds=1e6, background_saves=in_background)
        job = Job(run, (write_pack(store),), store, "train/x", "a1", str(tmp_path / f"scratch-{name}"), settings)
        seconds = seconds_between_steps(job)
        usual[name] = statistics.median(seconds[1 : SAVED_STEP - 1])
        saving[name] = seconds[SAVED_STEP - 1]
    torch.set_num_threads(threads)
    print(
        f"\nstep with a save: {saving['beside'] * 1e3:,.0f} ms beside, {saving['waiting'] * 1e3:,.0f} ms waiting, "
        f"usual step {usual['beside'] * 1e3:,.0f} ms, ratio to the usual one {saving['beside'] / usual['beside']:.2f} "
        f"(waiting {saving['waiting'] / usual['waiting']:.2f}), target 1.20"
    )
