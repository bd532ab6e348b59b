"""Classifiers: area under the ROC curve on a third that was held out, MB per CPU-second, beside fastText supervised.

`pytest tests/bench/bench_classifiers.py -m bench -s` prints one line per measure: ours, peer, ratio, target. The peer
runs in a process of its own, where `BENCH_FASTTEXT` names a Python that has fastText.
"""

import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tasks.classifier_models import Models, parse_model
from tasks.classifiers import TEXT_BYTES
from tasks.classifiers.training import Sample, area_under_curve, train_linear, train_perplexity
from tasks.kernels.buffers import text_buffers
from tests.bench.clock import cpu_seconds

SHARED = Path(__file__).parents[3] / "shared" / "data"
TOXIC = frozenset({"hateful", "hate_speech", "offensive", "Toxic", "True"})
TARGET_AUC, TARGET_MB = 0.85, 20
SPEED_TEXTS = 2000

pytestmark = [pytest.mark.bench, pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")]
Rows = list[tuple[str, bool]]


def toxicity() -> tuple[Rows, list[str]]:
    """The labelled set, and what each row comes from."""
    table = pq.read_table(SHARED / "gold" / "toxicity.parquet")
    labels = [label in TOXIC for label in table["label"].to_pylist()]
    return list(zip(table["text"].to_pylist(), labels, strict=True)), table["source"].to_pylist()


def reference_or_web() -> tuple[Rows, list[str]]:
    """Encyclopedias and books, and texts of web pages as people or Common Crawl's users extracted them."""
    good = [text for name in ("encyclopedic_en", "books") for text in column(f"text/{name}.parquet", "text")]
    sets = ("aeb", "readability", "newspaper")
    web = [text for name in sets for text in column(f"gold/extraction_{name}.parquet", "gold_text")]
    for path in sorted((SHARED / "crawl_jsonl").glob("do*.gz")) + sorted((SHARED / "crawl_jsonl").glob("*cc-2023*")):
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
        web += [json.loads(line)["text"] for line in lines]
    rows = [(text, True) for text in good] + [(text, False) for text in web if text]
    return rows, ["all"] * len(rows)


def column(name: str, key: str) -> list[str]:
    """A column of a shared file."""
    values: list[str] = pq.read_table(SHARED / name, columns=[key])[key].to_pylist()
    return values


def cut(text: str) -> str:
    """What the stage's sample holds of a text."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def held_out(text: str) -> bool:
    """The fixed third, by a hash of the text: no text is on both sides."""
    return xxhash.xxh64_intdigest(text.encode(), seed=5) % 3 == 0


def fasttext(folder: Path, train: Rows, test: list[str], speed: list[str]) -> dict[str, Any] | None:
    """What the peer's process prints; None without one."""
    if "BENCH_FASTTEXT" not in os.environ:
        return None
    data = {"train": [[text, int(label)] for text, label in train], "test": test, "speed": speed}
    (folder / "data.json").write_text(json.dumps(data))
    script = Path(__file__).with_name("fasttext_supervised.py")
    done = subprocess.run(
        [os.environ["BENCH_FASTTEXT"], str(script), str(folder)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line(measure: str, ours: float, theirs: float | None, target: float | str, digits: int) -> str:
    """One printed line."""
    peer = "fastText not here" if theirs is None else f"fastText {theirs:.{digits}f}, ratio {ours / theirs:.3g}"
    return f"\n{measure}: {ours:.{digits}f}, {peer}, target {target}"


@pytest.mark.parametrize(
    ("kind", "rows_of", "buckets"),
    [("toxicity", toxicity, 1 << 18), ("quality", reference_or_web, 1 << 20)],
    ids=["toxicity", "quality"],
)
def test_area_under_the_curve_and_speed(
    kind: str, rows_of: Callable[[], tuple[Rows, list[str]]], buckets: int, tmp_path: Path
) -> None:
    rows, origins = rows_of()
    rows = [(cut(text), label) for text, label in rows]
    train = [row for row in rows if not held_out(row[0])]
    tested = [(text, label, origin) for (text, label), origin in zip(rows, origins, strict=True) if held_out(text)]
    test, labels = [text for text, _, _ in tested], np.array([label for _, label, _ in tested], float)

    classes = [
        Sample.of((xxhash.xxh64_intdigest(text.encode()), text) for text, label in train if label == wanted)
        for wanted in (True, False)
    ]
    started = time.process_time()
    data, report = train_linear(kind, classes[0], classes[1], 2, buckets)
    seconds = time.process_time() - started
    models = Models(**{kind: parse_model(data, kind)})
    speed = [cut(text) for text in column("text/docs_en.parquet", "text")[:SPEED_TEXTS]]
    size = sum(len(text.encode()) for text in speed) / 1e6
    scores = scored(models, kind, test)
    buffers = text_buffers(pa.array(speed, pa.large_string()))
    ours = size / cpu_seconds(lambda: models.score(*buffers))
    peer = fasttext(tmp_path, train, test, speed)

    auc = area_under_curve(scores, labels)
    theirs = None if peer is None else area_under_curve(np.array(peer["scores"]), labels)
    print(line(f"{kind}, AUC on {len(test):,} texts held out", auc, theirs, TARGET_AUC, 4))
    for origin in sorted({origin for _, _, origin in tested} - {"all"}):
        here = np.array([own == origin for _, _, own in tested])
        both = None if peer is None else area_under_curve(np.array(peer["scores"])[here], labels[here])
        print(line(f"    of {origin[:50]}", area_under_curve(scores[here], labels[here]), both, "of all together", 4))
    print(line(f"{kind}, scoring MB/s", ours, None if peer is None else size / peer["predict_seconds"], TARGET_MB, 1))
    trained = "" if peer is None else f", fastText {peer['train_seconds']:.1f} s"
    print(f"\n{kind}, training {seconds:.1f} CPU-seconds{trained}; own held-out AUC {report['auc']}")
    assert auc >= TARGET_AUC


def scored(models: Models, kind: str, texts: list[str]) -> Any:
    """The score of each text, 0.5 for one without words."""
    values = models.score(*text_buffers(pa.array(texts, pa.large_string())))[f"{kind}_score"]
    return np.array([0.5 if value is None else value for value in values.to_pylist()])


def test_perplexity() -> None:
    """MB/s of scoring; web text surprises a model of an encyclopedia more than the encyclopedia's own held-out part."""
    texts = [cut(text) for text in column("text/encyclopedic_en.parquet", "text")]
    sample = Sample.of((xxhash.xxh64_intdigest(text.encode()), text) for text in texts if not held_out(text))
    started = time.process_time()
    data, report = train_perplexity(sample, 3, 2)
    seconds = time.process_time() - started
    models = Models(perplexity=parse_model(data, "perplexity"))
    medians = {}
    for name, measured in (
        ("held-out encyclopedia", [text for text in texts if held_out(text)]),
        ("documentation", column("text/docs_en.parquet", "text")),
    ):
        buffers = text_buffers(pa.array(measured, pa.large_string()))
        size = sum(len(text.encode()) for text in measured) / 1e6
        speed = size / cpu_seconds(lambda buffers=buffers: models.score(*buffers))  # type: ignore[misc]
        medians[name] = float(np.nanmedian(models.score(*buffers)["perplexity"].to_numpy(zero_copy_only=False)))
        print(f"\nperplexity of {name}: median {medians[name]:.0f}; {speed:.1f} MB/s (trigrams, no peer here)")
    print(f"\nperplexity: {report['words']:,} words trained in {seconds:.1f} CPU-seconds, {len(data) / 1e6:.1f} MB")
    assert medians["held-out encyclopedia"] < 0.5 * medians["documentation"]
