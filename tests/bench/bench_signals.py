"""Signals: MB per CPU-second of the four rule families beside datatrove's chain, and of language identification.

`pytest tests/bench/bench_signals.py -m bench -s` prints one line per corpus: ours, peer, ratio, targets. The peer runs
when datatrove is installed (with spacy); else a figure measured earlier takes its place, and the line says so.
"""

import importlib.util
import pydoc_data.topics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.cuts import apply_cuts, find_cuts
from tasks.languages import identify_languages
from tasks.signals import SignalsConfig, document_signals, rules_of

TARGET_MB = 10  # per core
TARGET_RATIO = 100  # times datatrove's chain
PEER_MB = {"books": 0.22, "docs_en": 0.61, "encyclopedic_en": 0.53}  # datatrove 0.10.1 on these corpora, one core
PEER_MB_OF_ALL = 0.32  # on the three together
PEER_DOCUMENTS = 60
SHARED = Path(__file__).parents[3] / "shared/data/text"


def corpora() -> dict[str, list[str]]:
    """Prose where the shared data is, else the help of the installed Python, repeated."""
    found = {
        name: pq.read_table(SHARED / f"{name}.parquet")["text"].to_pylist()
        for name in ("books", "docs_en", "encyclopedic_en")
        if (SHARED / f"{name}.parquet").exists()
    }
    return found or {"topics": list(pydoc_data.topics.topics.values()) * 20}


def cpu_seconds(function: Callable[[], Any], runs: int = 3) -> float:
    """Least of some runs."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def four_families(texts: pa.Array, config: SignalsConfig) -> None:
    """Line rules, the text without what they cut, and all signals of Gopher, C4 and FineWeb."""
    data, offsets = text_buffers(texts)
    span_offsets, spans, _ = find_cuts(data, offsets, rules_of(config))
    document_signals(*apply_cuts(data, offsets, span_offsets, spans), config)


def peer_mb(texts: list[str]) -> float:
    """datatrove's four filters, each document through all of them until one drops it."""
    data = importlib.import_module("datatrove.data")
    filters = importlib.import_module("datatrove.pipeline.filters")
    chain = [
        filters.GopherRepetitionFilter(),
        filters.GopherQualityFilter(),
        filters.C4QualityFilter(filter_no_terminal_punct=False),
        filters.FineWebQualityFilter(),
    ]
    sample = texts[:: max(1, len(texts) // PEER_DOCUMENTS)]
    documents = [data.Document(text=text, id=str(n)) for n, text in enumerate(sample)]

    def run() -> None:
        for document in documents:
            all(step.filter(document) is True for step in chain)

    return sum(len(text.encode()) for text in sample) / 1e6 / cpu_seconds(run, runs=1)


@pytest.mark.bench
@pytest.mark.parametrize("name", corpora())
def test_speed(name: str) -> None:
    """One core; the kernels are compiled before the clock starts."""
    texts = corpora()[name]
    column, config = pa.array(texts, pa.large_string()), SignalsConfig()
    data, offsets = text_buffers(column)
    size = len(data) / 1e6
    four_families(column.slice(0, 2), config)
    identify_languages(*text_buffers(column.slice(0, 2)))
    ours = size / cpu_seconds(lambda: four_families(column, config))
    language = size / cpu_seconds(lambda: identify_languages(data, offsets))
    if importlib.util.find_spec("datatrove"):
        peer, theirs = "datatrove", peer_mb(texts)
    else:
        peer, theirs = "datatrove (not installed; measured earlier)", PEER_MB.get(name, PEER_MB_OF_ALL)
    print(
        f"\nsignals {name}: four rule families {ours:.1f} MB/s, {peer} {theirs:.2f}, ratio {ours / theirs:.0f}, "
        f"targets {TARGET_MB} MB/s, ratio {TARGET_RATIO}; "
        f"language {language:.0f} MB/s ({len(texts) / size * language:.0f} documents/s)"
    )
