"""Signals: the four rule families beside datatrove's chain of filters: MB per CPU-second, and whether they agree.

`pytest tests/bench/bench_signals.py -m bench -s` prints a line per corpus and definition of a word: ours, peer, ratio,
target; then the agreement, each kind of difference counted. The peer runs when datatrove is installed (with spacy);
else a figure measured earlier takes its place, and the line says so.
"""

import importlib.util
import pydoc_data.topics
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.cuts import apply_cuts, find_cuts
from tasks.rules import SelectConfig
from tasks.signal_table import SIGNALS
from tasks.signals import SignalsConfig, document_signals, measure, rules_of, unmeasured
from tasks.verdicts import first_failing, verdicts
from tests.bench.clock import cpu_seconds

TARGET_RATIO = 100  # times datatrove's chain
TARGET_AGREEMENT = 0.985
DATATROVE = SignalsConfig(words="datatrove", gopher_before_cuts=True)
PEER_MB = {"books": 0.22, "docs_en": 0.61, "encyclopedic_en": 0.53}  # datatrove 0.10.1 on these corpora, one core
PEER_MB_OF_ALL = 0.32  # on the three together
PEER_DOCUMENTS = 60
AGREEMENT_DOCUMENTS = 300  # of each corpus
SHARED = Path(__file__).parents[3] / "shared/data/text"


def corpora() -> dict[str, list[str]]:
    """Prose where the shared data is, else the help of the installed Python, repeated."""
    found = {
        name: pq.read_table(SHARED / f"{name}.parquet")["text"].to_pylist()
        for name in ("books", "docs_en", "encyclopedic_en")
        if (SHARED / f"{name}.parquet").exists()
    }
    return found or {"topics": list(pydoc_data.topics.topics.values()) * 20}


def four_families(texts: pa.Array, config: SignalsConfig) -> None:
    """Line rules, the text without what they cut, and all signals of Gopher, C4 and FineWeb."""
    data, offsets = text_buffers(texts)
    span_offsets, spans, _ = find_cuts(data, offsets, rules_of(config))
    document_signals(*apply_cuts(data, offsets, span_offsets, spans), config)
    if config.gopher_before_cuts:
        document_signals(data, offsets, config)


def chain() -> list[tuple[str, Any]]:
    """datatrove's four filters as FineWeb chains them, and the family of ours that each is."""
    filters = importlib.import_module("datatrove.pipeline.filters")
    return [
        ("gopher_repetition", filters.GopherRepetitionFilter()),
        ("gopher_quality", filters.GopherQualityFilter()),
        ("c4", filters.C4QualityFilter(filter_no_terminal_punct=False)),
        ("fineweb", filters.FineWebQualityFilter()),
    ]


def spread(texts: list[str], number: int) -> list[str]:
    """About so many of the texts, evenly."""
    return texts[:: max(1, len(texts) // number)]


def verdict(document: Any, steps: list[tuple[str, Any]]) -> str | None:
    """Which step of datatrove's chain drops the document and why; None: it is kept."""
    for family, step in steps:
        found = step.filter(document)
        if found is not True:
            return f"{family}: {found[1]}"
    return None


def peer_mb(texts: list[str]) -> float:
    """datatrove's four filters, each document through all of them until one drops it."""
    sample, steps = spread(texts, PEER_DOCUMENTS), chain()
    document = importlib.import_module("datatrove.data").Document
    documents = [document(text=text, id=str(n)) for n, text in enumerate(sample)]
    seconds = cpu_seconds(lambda: [verdict(document, steps) for document in documents], runs=1)
    return sum(len(text.encode()) for text in sample) / 1e6 / seconds


@pytest.mark.bench
@pytest.mark.parametrize("name", [*corpora(), "all"])
@pytest.mark.parametrize("config", [SignalsConfig(), DATATROVE], ids=lambda config: f"words: {config.words}")
def test_speed(name: str, config: SignalsConfig) -> None:
    """One core; the kernels are compiled before the clock starts."""
    texts = [text for key, own in corpora().items() if name in (key, "all") for text in own]
    column = pa.array(texts, pa.large_string())
    size = len(text_buffers(column)[0]) / 1e6
    four_families(column.slice(0, 2), config)
    ours = size / cpu_seconds(lambda: four_families(column, config))
    if importlib.util.find_spec("datatrove"):
        peer, theirs = "datatrove", peer_mb(texts)
    else:
        peer, theirs = "datatrove (not installed; measured earlier)", PEER_MB.get(name, PEER_MB_OF_ALL)
    print(
        f"\nfour rule families, words: {config.words}, {name}: {ours:.1f} MB/s, {peer} {theirs:.2f}, "
        f"ratio {ours / theirs:.0f}, target {TARGET_RATIO}"
    )


@pytest.mark.bench
def test_agreement() -> None:
    """Keep or drop, document by document, with datatrove's words, beside datatrove's chain."""
    if not importlib.util.find_spec("datatrove"):
        print("\nagreement with datatrove: not measured, datatrove is not installed")
        return
    document, steps = importlib.import_module("datatrove.data").Document, chain()
    texts = [text for own in corpora().values() for text in spread(own, AGREEMENT_DOCUMENTS) if 0 < len(text) < 100_000]
    theirs = [verdict(document(text=text, id=str(n)), steps) for n, text in enumerate(texts)]
    for config in (SignalsConfig(), DATATROVE):
        columns = unmeasured(len(texts)) | measure(pa.array(texts, pa.large_string()), config)
        found = verdicts(pa.table({signal.name: columns[signal.name] for signal in SIGNALS}), SelectConfig())
        first = first_failing(found, len(texts))
        ours = [found[index].reason if index >= 0 else None for index in first]
        same = sum((a is None) == (b is None) for a, b in zip(ours, theirs, strict=True)) / len(texts)
        print(
            f"\nagreement with datatrove's chain, words: {config.words}: {same:.2%} of {len(texts)} documents "
            f"({theirs.count(None)} kept by it, {ours.count(None)} by us), target {TARGET_AGREEMENT:.1%} with its words"
        )
        pairs = Counter(pair for pair in zip(theirs, ours, strict=True) if (pair[0] is None) != (pair[1] is None))
        for (peer, own), number in pairs.most_common():
            print(f"  {number} x datatrove {peer or 'keeps'}, we {own or 'keep'}")
    assert same >= TARGET_AGREEMENT
