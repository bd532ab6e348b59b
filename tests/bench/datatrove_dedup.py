"""datatrove's four MinHash stages on one Parquet file (doc_id, text), on one core, with the parameters of ours.

`PYTHON datatrove_dedup.py FILE FOLDER`, with a Python that has datatrove; prints the CPU seconds of all four. Run by
bench_dedup.py; imports nothing of basemill.
"""

import sys
import time

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.hashing import HashConfig

CONFIG = MinhashConfig(
    hash_config=HashConfig(precision=64, hash_fc="xxhash"), num_buckets=14, hashes_per_bucket=8, n_grams=5, seed=1
)


def reader(file: str) -> ParquetReader:
    folder, _, name = file.rpartition("/")
    return ParquetReader(folder, glob_pattern=name, text_key="text", id_key="doc_id")


def main(file: str, folder: str) -> None:
    signatures, buckets, removed = (f"{folder}/{name}" for name in ("signatures", "buckets", "removed"))
    stages = [
        [reader(file), MinhashDedupSignature(output_folder=signatures, config=CONFIG, language="eng")],
        [MinhashDedupBuckets(input_folder=signatures, output_folder=buckets, config=CONFIG)],
        [MinhashDedupCluster(input_folder=buckets, output_folder=removed, config=CONFIG)],
        [reader(file), MinhashDedupFilter(input_folder=removed), ParquetWriter(f"{folder}/kept")],
    ]
    started = time.process_time()
    for number, stage in enumerate(stages):
        tasks = CONFIG.num_buckets if number == 1 else 1
        executor = LocalPipelineExecutor(pipeline=stage, tasks=tasks, logging_dir=f"{folder}/log-{number}")
        for rank in range(tasks):
            executor._run_for_rank(rank, 0)
    print(time.process_time() - started)


if __name__ == "__main__":
    main(*sys.argv[1:])
