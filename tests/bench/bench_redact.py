"""Redaction: MB per CPU-second on prose and code beside plain regular expressions, and quality on labelled data.

`pytest tests/bench/bench_redact.py -m bench -s` prints one line per measure: ours, peer, ratio, target.
"""

import re
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.ledger import Ledger
from tasks.redact import RedactConfig, redact_table
from tests.bench.clock import cpu_seconds
from tests.conftest import document_rows
from tests.tasks.redact.test_personal_data import GOLD, GOLD_KINDS, gold_quality

TARGET_MB = 50  # per core, clean text
SHARED = GOLD.parents[1] / "text"
# Two kinds only, as web pipelines replace them: an e-mail address and four numbers with dots
PEER = [
    re.compile(
        r"\b[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}"
    ),
    re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"),
]


def corpora() -> dict[str, list[str]]:
    """Python's own sources, and prose and documentation where the shared data is."""
    found = {"stdlib": [p.read_text(errors="replace") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]}
    for name in ("books", "docs_en", "code"):
        if (SHARED / f"{name}.parquet").exists():
            found[name] = pq.read_table(SHARED / f"{name}.parquet")["text"].to_pylist()
    return found


def peer(texts: list[str]) -> list[str]:
    """The texts with the peer's two kinds replaced."""
    return [PEER[1].sub("192.0.2.1", PEER[0].sub("email@example.com", text)) for text in texts]


@pytest.mark.bench
@pytest.mark.parametrize("name", corpora())
def test_speed(name: str) -> None:
    """Ours looks for eight kinds, the peer for two; conversions between Arrow and Python count for both."""
    texts = corpora()[name]
    table = document_rows("web", texts, 0, {})
    size = sum(len(text.encode()) for text in texts) / 1e6
    redact_table(table.slice(0, 1), RedactConfig(), Ledger(), {})
    ours = size / cpu_seconds(lambda: redact_table(table, RedactConfig(), Ledger(), {}))
    theirs = size / cpu_seconds(lambda: pa.array(peer(table["text"].to_pylist()), pa.large_string()))
    print(
        f"\nredact {name}: {ours:.0f} MB/s, two regular expressions {theirs:.0f}, ratio {ours / theirs:.1f},"
        f" target {TARGET_MB}"
    )


@pytest.mark.bench
@pytest.mark.skipif(not GOLD.exists(), reason="the gold data is not here")
def test_quality() -> None:
    """Precision and recall over the spans of presidio-research of the kinds that are built."""
    every = tuple(GOLD_KINDS.values())
    for kinds in (*((kind,) for kind in every), every):
        precision, recall = gold_quality(kinds)
        print(f"\nredact {', '.join(kinds)}: precision {precision:.3f}, recall {recall:.3f}, target 0.950 / 0.900")
        assert precision >= 0.95
        assert recall >= 0.90
