"""Language identification: accuracy on labelled sentences and documents, and texts per CPU-second on one core.

Counted are the languages that lid.176, lingua and our model all know, codes normalised. The labels of docs_multi are
folder names: some of its pages are English throughout, which no model can get right.
"""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.languages import identify_languages, normalise_language_code

SHARED = Path(__file__).parents[3] / "shared/data"
COMMON = (  # 67
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gu he hi hr hu hy id is it ja ka kk ko la lt lv "
    "mk mn mr ms nl nn no pa pl pt ro ru sk sl so sq sr sv sw ta te th tl tr uk ur vi yo zh"
)
SETS = (  # file, accuracy to reach, and what lid.176.ftz, py3langid and lingua reached
    ("gold/langid_ntrex", 0.97, "lid.176 0.91, py3langid 0.967, lingua 0.96"),
    ("gold/langid_udhr", 0.94, "lid.176 0.86, py3langid 0.905, lingua 0.96"),
    ("text/docs_multi", 0.93, "lid.176 0.93, py3langid 0.900, lingua 0.85"),
)
TARGET_PER_SECOND = 10_000  # sentences


def known(code: str) -> str:
    """The normalised code, empty where it is of no language we know."""
    try:
        return normalise_language_code(code)
    except ValueError:
        return ""


@pytest.mark.bench
@pytest.mark.parametrize(("name", "target", "peers"), SETS)
def test_accuracy(name: str, target: float, peers: str) -> None:
    """Share of texts with the right language, and speed."""
    path = SHARED / f"{name}.parquet"
    if not path.exists():
        pytest.skip("the labelled texts are not here")
    table = pq.read_table(path, columns=["text", "lang"])
    texts, labels = (
        table["text"].combine_chunks().cast(pa.large_string()),
        [known(code) for code in table["lang"].to_pylist()],
    )
    identify_languages(*text_buffers(texts.slice(0, 2)))
    start = time.process_time()
    codes, _ = identify_languages(*text_buffers(texts))
    speed = len(texts) / (time.process_time() - start)
    pairs = [pair for pair in zip(labels, codes.to_pylist(), strict=True) if pair[0] in COMMON.split()]
    accuracy = sum(label == code for label, code in pairs) / len(pairs)
    print(
        f"\nlanguage, {name}: accuracy {accuracy:.4f} of {len(pairs)} texts, {peers}, target {target}; "
        f"{speed:.0f} texts/s, target {TARGET_PER_SECOND} (sentences)"
    )
    assert accuracy >= target
