"""Exact and near dedup of so many generated short documents, in a process of its own, since a peak never sinks.

`python dedup_scale.py DOCUMENTS ROOT WORKERS` prints JSON: CPU seconds of the two stages, peak bytes, documents with an
edge. 0 workers: all in this process; 1: the parts in a worker of Ray, so that the peak is that of the driver alone.
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.dataset import Workspace
from tasks.dedup_exact import ExactDedupConfig, drop_exact_duplicates
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates
from tasks.documents import DOCUMENT_SCHEMA, document_id
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit
from tasks.storage import Storage

PART_DOCUMENTS, GROUP_DOCUMENTS, WORDS = 125_000, 25_000, 40
VOCABULARY = np.array(["".join(random.Random(n).choices("etaoinshrdlcu", k=2 + n % 9)) for n in range(20_000)])


def write_generated(unit: Unit, writer: PartWriter) -> None:
    """Part function: documents of about 280 bytes, every tenth a copy of the one before but for a word."""
    start, number = int(unit.arguments["start"]), int(unit.arguments["number"])
    rng = np.random.default_rng(start)
    for first in range(start, start + number, GROUP_DOCUMENTS):
        size = min(GROUP_DOCUMENTS, start + number - first)
        words = VOCABULARY[rng.integers(0, len(VOCABULARY), (size, WORDS))]
        words[1::10] = words[0::10][: len(words[1::10])]
        words[1::10, 7] = "changed"
        refs = [f"file#{row}" for row in range(first, first + size)]
        ids, missing = [document_id("web", ref) for ref in refs], [None] * size
        texts = [" ".join(row) for row in words]
        columns = [ids, ["web"] * size, texts, missing, missing, refs, ["{}"] * size]
        writer.rows_in += size
        writer.write(pa.table(columns, schema=DOCUMENT_SCHEMA))


def generated(into: Workspace, documents: int) -> Manifest:
    dataset = into.dataset("ingest", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA)
    units = [
        dataset.unit(source="web", arguments={"start": start, "number": min(PART_DOCUMENTS, documents - start)})
        for start in range(0, documents, PART_DOCUMENTS)
    ]
    return dataset.publish(dataset.compute(units, write_generated))


def main(documents: int, root: str, workers: int) -> None:
    measures = {}
    for number, count in enumerate((200, documents)):  # the first one compiles the kernels
        into = Workspace(Storage(f"{root}/{number}"), workers=workers)
        given = generated(into, count)
        start = time.process_time()
        exact = drop_exact_duplicates(given, into=into, config=ExactDedupConfig())
        near = drop_near_duplicates(exact, into=into, config=NearDedupConfig())
        measures = {"seconds": time.process_time() - start, "peak": peak_bytes(), "edged": near.extra["members"]}
    print(json.dumps(measures))


def peak_bytes() -> int:
    """Most memory that this program held. Not `ru_maxrss`: that of a child begins with its parent's."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
