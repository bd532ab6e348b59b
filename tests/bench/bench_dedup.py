"""Near dedup: MB/s of signatures beside datasketch (and rensa when installed), documents/s of the whole stage.

`pytest tests/bench/bench_dedup.py -m bench -s` prints one line per measure: ours, peer, ratio, target. One core; the
text is the shared English prose where it is there, else generated.
"""

import importlib.util
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from datasketch import MinHash

from tasks.dataset import Workspace
from tasks.dedup_exact import ExactDedupConfig, drop_exact_duplicates
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates
from tasks.documents import DOCUMENT_SCHEMA, document_id
from tasks.kernels.shingles import sign_documents
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit

SHARED = Path(__file__).parents[3] / "shared/data/text"
SIGNED_BYTES = 8_000_000
PEER_BYTES = 1_000_000
PIECES = 16  # the least of several runs of each is added up: a busy machine disturbs short pieces less
STAGE_DOCUMENTS = 5_000
STAGE_WORDS = 800  # about 7 kB, as the documents of the next figure: a rate in documents compares equal sizes only
DATATROVE_DOCUMENTS_PER_SECOND = 114  # its four stages on one core, measured earlier on 5,000 real documents of 7 kB
VOCABULARY = ["".join(random.Random(n).choices("etaoinshrdlcumwfgypbvkjxqz", k=2 + n % 9)) for n in range(20_000)]
PROSE_FILES = ("docs_en", "books")


def prose(num_bytes: int) -> list[str]:
    """Documents of English prose, so many bytes in all."""
    if not SHARED.exists():
        rng = random.Random(1)
        return [" ".join(rng.choices(VOCABULARY, k=700)) for _ in range(num_bytes // 5_000)]
    texts: list[str] = []
    for name in PROSE_FILES:
        texts += pq.read_table(SHARED / f"{name}.parquet", columns=["text"])["text"].to_pylist()
    random.Random(1).shuffle(texts)
    sizes = 0
    for index, text in enumerate(texts):
        sizes += len(text.encode())
        if sizes >= num_bytes:
            return texts[: index + 1]
    return texts


def least_seconds(function: Callable[[], Any], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def our_rate(texts: list[str]) -> float:
    """MB/s of normalisation, shingles and signatures."""
    sign_documents(pa.chunked_array([pa.array(texts[:1], pa.large_string())]))
    size = -(-len(texts) // PIECES)
    whole = pa.chunked_array([pa.array(texts, pa.large_string())])
    pieces = [whole.slice(start, size) for start in range(0, len(texts), size)]
    seconds = sum(least_seconds(lambda piece=piece: sign_documents(piece)) for piece in pieces)  # type: ignore[misc]
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds


def slow_shingles(text: str) -> list[bytes]:
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[start : start + 5]).encode() for start in range(len(words) - 4)]


def low_hash(data: bytes) -> int:
    return xxhash.xxh64_intdigest(data) & 0xFFFFFFFF


def datasketch_rate(texts: list[str]) -> float:
    """MB/s of datasketch with the same hash function."""

    def sign() -> None:
        for text in texts:
            signature = MinHash(112, seed=1, scheme="affine32", hashfunc=low_hash)
            signature.update_batch(slow_shingles(text))

    return sum(len(text.encode()) for text in texts) / 1e6 / least_seconds(sign, runs=2)


def rensa_rate(texts: list[str]) -> float:
    """MB/s of rensa; it hashes strings itself."""
    rensa = importlib.import_module("rensa")

    def sign() -> None:
        for text in texts:
            words = re.findall(r"\w+", text.lower())
            signature = rensa.RMinHash(num_perm=112, seed=1)
            signature.update([" ".join(words[start : start + 5]) for start in range(len(words) - 4)])

    return sum(len(text.encode()) for text in texts) / 1e6 / least_seconds(sign, runs=2)


@pytest.mark.bench
def test_signatures() -> None:
    """Issue: at least 100 MB/s on one core; datasketch 6.5, rensa 22."""
    texts = prose(SIGNED_BYTES)
    ours, few = our_rate(texts), prose(PEER_BYTES)
    peers = {"datasketch": datasketch_rate(few)}
    if importlib.util.find_spec("rensa"):
        peers["rensa"] = rensa_rate(few)
    for name, peer in peers.items():
        print(f"\nsignatures: ours {ours:.0f} MB/s, {name} {peer:.1f} MB/s, ratio {ours / peer:.1f}, target 100 MB/s")
    assert ours > 10 * peers["datasketch"]


def planted(count: int, words: int) -> list[str]:
    """Generated documents, a tenth of them near copies of another."""
    rng = random.Random(2)
    texts: list[str] = []
    while len(texts) < count:
        text = rng.choices(VOCABULARY, k=rng.randrange(words // 2, 2 * words))
        texts.append(" ".join(text))
        if rng.random() < 0.11:
            for place in rng.sample(range(len(text)), len(text) // 100):
                text[place] = "other"
            texts.append(" ".join(text))
    return texts[:count]


def write_rows(unit: Unit, writer: PartWriter) -> None:
    """Part function: the generated documents from `start` on."""
    start, texts = unit.arguments["start"], planted(unit.arguments["count"], unit.arguments["words"])
    own = texts[start : start + unit.arguments["size"]]
    refs = [f"file#{start + number}" for number in range(len(own))]
    missing: list[None] = [None] * len(own)
    ids = [document_id("web", ref) for ref in refs]
    columns = [ids, ["web"] * len(own), own, missing, missing, refs, ["{}"] * len(own)]
    table = pa.table(columns, schema=DOCUMENT_SCHEMA)
    writer.rows_in = table.num_rows
    writer.write(table)


def documents_of(workspace: Workspace, count: int, words: int, parts: int = 4) -> Manifest:
    size = -(-count // parts)
    facts = {"count": count, "words": words, "size": size}
    dataset = workspace.dataset(
        "ingest", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA, external=facts
    )
    units = [dataset.unit(source="web", arguments={"start": start, **facts}) for start in range(0, count, size)]
    return dataset.publish(dataset.compute(units, write_rows))


@pytest.mark.bench
def test_whole_stages(workspace: Workspace) -> None:
    """Issue: near dedup at least 50 times datatrove's 114 documents/s on one core."""
    warm = documents_of(workspace, 100, 50, parts=1)
    drop_near_duplicates(warm, into=workspace, config=NearDedupConfig())  # compiles the kernels
    documents = documents_of(workspace, STAGE_DOCUMENTS, STAGE_WORDS)
    size = documents.totals["bytes_out"] / 1e6
    start = time.process_time()
    exact = drop_exact_duplicates(documents, into=workspace, config=ExactDedupConfig())
    middle = time.process_time()
    near = drop_near_duplicates(documents, into=workspace, config=NearDedupConfig())
    end = time.process_time()
    rate = STAGE_DOCUMENTS / (end - middle)
    peer = DATATROVE_DOCUMENTS_PER_SECOND
    exact_rate = STAGE_DOCUMENTS / (middle - start)
    print(f"\ndedup-exact: ours {exact_rate:.0f} documents/s ({size / (middle - start):.0f} MB/s)")
    print(
        f"dedup-near: ours {rate:.0f} documents/s ({size / (end - middle):.0f} MB/s), "
        f"datatrove (measured earlier) {peer}, ratio {rate / peer:.0f}, target 50"
    )
    assert exact.totals["dropped"] < near.totals["dropped"]
