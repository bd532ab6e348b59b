"""Signals: the four rule families beside datatrove's chain of filters: MB per CPU-second, and whether they agree.

`pytest tests/bench/bench_signals.py -m bench -s` prints a line per corpus and definition of a word: ours, peer, ratio,
target; then the agreement, each kind of difference counted; then RefinedWeb's line rules, code and URLs. datatrove runs
when it is installed (with spacy); else a figure measured earlier takes its place, and the line says so.
"""

import importlib.util
import pydoc_data.topics
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.cuts import apply_cuts, find_cuts
from tasks.kernels.line_edits import edit_rules, find_edits
from tasks.select.rules import SelectConfig
from tasks.select.verdicts import first_failing, verdicts
from tasks.signal_table import SIGNALS
from tasks.signals import SignalsConfig, code_signals, document_signals, measure, rules_of, unmeasured
from tasks.signals.code_heads import GENERATED_MARKS, scan_heads
from tasks.signals.domain_lists import read_domains
from tasks.signals.refinedweb import RefinedWebLines
from tasks.signals.urls import UrlConfig, url_signals
from tests.bench.clock import cpu_seconds

TARGET_RATIO = 100  # times datatrove's chain
TARGET_AGREEMENT = 0.985
DATATROVE = SignalsConfig(words="datatrove", gopher_before_cuts=True)
PEER_MB = {"books": 0.22, "docs_en": 0.61, "encyclopedic_en": 0.53}  # datatrove 0.10.1 on these corpora, one core
PEER_MB_OF_ALL = 0.32  # on the three together
PEER_DOCUMENTS = 60
SAMPLED_DOCUMENTS = 500
AGREEMENT_DOCUMENTS = 300  # of each corpus
COUNTER = re.compile(rf"\W*\d[\d,.]*[kmb]?\s+(?:{'|'.join(RefinedWebLines().counters)})\W*$")
SHARED = Path(__file__).parents[3] / "shared/data/text"


def corpora() -> dict[str, list[str]]:
    """Prose where the shared data is, else the help of the installed Python, repeated."""
    found = {
        name: pq.read_table(SHARED / f"{name}.parquet")["text"].to_pylist()
        for name in ("books", "docs_en", "encyclopedic_en")
        if (SHARED / f"{name}.parquet").exists()
    }
    return found or {"topics": list(pydoc_data.topics.topics.values()) * 20}


def code() -> dict[str, list[str]]:
    """Source files where the shared data is, else the standard library's."""
    if (SHARED / "code.parquet").exists():
        return {"code": pq.read_table(SHARED / "code.parquet")["text"].to_pylist()}
    return {
        "python": [path.read_text("utf-8", "replace") for path in sorted(Path(re.__file__).parents[1].glob("*.py"))]
    }


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


def plain_lines(text: str) -> int:
    """RefinedWeb's four whole-line rules as one would write them in Python: lines that stay."""
    kept = 0
    for line in filter(None, text.split("\n")):
        is_loud = sum(map(str.isupper, line)) > 0.5 * len(line)
        kept += not (is_loud or line.isdigit() or COUNTER.match(line.lower()) or len(line.split()) < 2)
    return kept


def plain_code(text: str) -> tuple[int, int, int]:
    """StarCoder's statistics of a file, as its preparation computes them: line lengths, letters and digits."""
    lengths = [len(line) for line in text.splitlines()] or [0]
    return max(lengths), sum(lengths), sum(map(str.isalnum, text))


def lines_of_refinedweb(texts: pa.Array) -> None:
    lines = RefinedWebLines()
    find_edits(*text_buffers(texts), edit_rules(lines.limits, lines.groups))


def heads_and_lines_of_code(texts: pa.Array) -> None:
    data, offsets = text_buffers(texts)
    scan_heads(data, offsets, GENERATED_MARKS)
    code_signals(data, offsets)


@pytest.mark.bench
@pytest.mark.parametrize(
    ("name", "family", "plain"),
    [
        ("RefinedWeb's line rules", lines_of_refinedweb, plain_lines),
        ("code signals", heads_and_lines_of_code, plain_code),
    ],
    ids=["lines", "code"],
)
def test_speed_of_other_families(name: str, family: Callable[[pa.Array], None], plain: Callable[[str], object]) -> None:
    """Beside the same definitions in plain Python, on the same text."""
    texts = [text for own in (code() if family is heads_and_lines_of_code else corpora()).values() for text in own]
    column = pa.array(texts, pa.large_string())
    family(column.slice(0, 2))
    ours = len(text_buffers(column)[0]) / 1e6 / cpu_seconds(lambda: family(column))
    sample = spread(texts, SAMPLED_DOCUMENTS)
    theirs = sum(len(text.encode()) for text in sample) / 1e6 / cpu_seconds(lambda: [plain(text) for text in sample])
    print(f"\n{name}: {ours:.1f} MB/s, plain Python {theirs:.1f}, ratio {ours / theirs:.0f}")


@pytest.mark.bench
def test_speed_of_urls() -> None:
    """With the default lists and one of a million domains, beside datatrove's URLFilter with the same words."""
    urls = [
        f"https://www.site{n}.example{n % 7}.org/news/{n}/an-article-of-{n}.html?page={n % 9}" for n in range(50_000)
    ]
    listed, config = read_domains("\n".join(f"d{n}.example" for n in range(1_000_000)).encode(), "list"), UrlConfig()
    ours = len(urls) / cpu_seconds(lambda: url_signals(urls, config, [listed]))
    theirs = None
    if all(importlib.util.find_spec(name) for name in ("datatrove", "tldextract", "ahocorasick")):
        document = importlib.import_module("datatrove.data").Document
        step = importlib.import_module("datatrove.pipeline.filters").URLFilter(
            use_integrated_lists=False, extra_domains=["d1.example"], banned_words=list(config.hard_words),
            soft_banned_words=list(config.soft_words), banned_subwords=list(config.substrings),
        )  # fmt: skip
        step.tldextractor = importlib.import_module("tldextract").TLDExtract(suffix_list_urls=())  # asks no server
        documents = [document(text="", id="0", metadata={"url": url}) for url in urls[:10_000]]
        theirs = len(documents) / cpu_seconds(lambda: [step.filter(one) for one in documents])
    beside = f"datatrove's URLFilter {theirs:.0f}, ratio {ours / theirs:.2f}" if theirs else "datatrove: not installed"
    print(f"\nURLs: {ours:.0f}/s, {beside}")


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
