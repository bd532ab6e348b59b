"""Decontamination: recall and false alarms with items of six real sets, and MB per CPU-second beside sets of strings.

`pytest tests/bench/bench_decontaminate.py -m bench -s` prints one line per measure: ours, peer, ratio, target.
"""

import re
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.dataset import Workspace
from tasks.decontaminate import DecontaminateConfig, drop_evaluation_text
from tasks.decontaminate.evaluation_sets import EvaluationSetConfig, Item, read_items
from tasks.decontaminate.index import build_index, load_index
from tasks.kernels.ngrams import NGRAM_WORDS
from tests.conftest import MakeDocuments
from tests.tasks.test_decontaminate import SHARED, injected

NUM_ITEMS, NUM_CLEAN = 250, 5_000  # items per set
WORD = re.compile(r"\w+")

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here"),
]


def ngrams_of(text: str) -> set[str]:
    """The peer's n-grams: words joined by spaces, in a Python set."""
    words = WORD.findall(text.lower())
    return {" ".join(words[at : at + NGRAM_WORDS]) for at in range(len(words) - NGRAM_WORDS + 1)}


def test_items_are_found_and_clean_documents_are_not(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """Issue row: items whole, re-wrapped, inside long documents and short with answers, in 5,000 clean documents."""
    dirty, clean, sets = injected(NUM_ITEMS, NUM_CLEAN)
    documents = make_documents({"dirty": dirty, "clean": clean}, parts=20)
    config = DecontaminateConfig.model_validate({"evaluation_sets": sets, "max_dropped_ratio": 1.0})
    result = drop_evaluation_text(documents, into=workspace, config=config)
    recall = result.by_source["dirty"]["dropped"] / len(dirty)
    false = result.by_source["clean"]["dropped"] / len(clean)
    report = result.extra["evaluation_sets"]
    untested = sum(own["untested"] for own in report.values()) / sum(own["items"] for own in report.values())
    print(
        f"\ndecontaminate: recall {recall:.4f} of {len(dirty)} items ({untested:.1%} of all are too short to test),"
        f" wrongly flagged {false:.4%} of {len(clean)} documents, target 0.98 / 0.1 %"
    )
    assert recall >= 0.98
    assert false <= 0.001


def test_speed(workspace: Workspace) -> None:
    """The search alone, on one core, with the n-grams of six sets."""
    _, clean, sets = injected(1, 1_500)
    items: dict[str, list[Item]] = {}
    for name, values in sets.items():
        items[name] = read_items(Path(values["path"]).read_bytes(), name, EvaluationSetConfig.model_validate(values))
    files, _ = build_index(items)
    step = workspace.dataset("decontaminate.index", None, inputs={}, module="tasks.decontaminate.index")
    index = load_index(workspace.storage, step.publish_files(files).reference)
    known = set().union(*(ngrams_of(text) for own in items.values() for item in own for text in item.questions))
    texts = pa.array(clean, pa.large_string())
    size = texts.nbytes / 1e6
    index.find(texts[:1])
    start = time.process_time()
    index.find(texts)
    middle = time.process_time()
    hits = sum(not known.isdisjoint(ngrams_of(text)) for text in texts.to_pylist())
    end = time.process_time()
    ours, theirs = size / (middle - start), size / (end - middle)
    print(
        f"\ndecontaminate search, {len(index.probes):,} probes: {ours:.0f} MB/s, sets of strings {theirs:.1f}"
        f" ({hits} of {len(texts)} hit), ratio {ours / theirs:.0f}"
    )
