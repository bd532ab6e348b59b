"""Shingles and signatures against datasketch itself."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from datasketch import MinHash

from tasks.kernels.minima import NUM_PERMUTATIONS
from tasks.kernels.shingles import normalise_texts, shingle_sets, sign_documents

REAL = Path(__file__).parents[4] / "shared/data/text"
ALPHABETS = [
    "abc XYZ 019 .,!_",
    "éàüÅß ŒİΣ",
    "我们寿司 かな ข้าว",
    "한국어 각",
    "٠١٢ ४५६ ",
    "\u00ad\u200b\u0301\ufeff",
    "\U0001f600\U000e0101𝔘𐐀",
]


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def slow_shingles(text: str) -> list[bytes]:
    words = normalise_texts(column([text]))[0].as_py().split(" ")  # test_folding.py holds it to its definition
    return [" ".join(words[start : start + 5]).encode() for start in range(len(words) - 4)]


def low_hash(data: bytes) -> int:
    return xxhash.xxh64_intdigest(data) & 0xFFFFFFFF


def datasketch_signature(shingles: list[bytes]) -> np.ndarray:
    minhash = MinHash(NUM_PERMUTATIONS, seed=1, scheme="affine32", hashfunc=low_hash)
    minhash.update_batch(shingles)
    return np.asarray(minhash.hashvalues)


def assert_equal_to_reference(texts: list[str]) -> None:
    signatures, counts = sign_documents(column(texts))
    hashes, bounds = shingle_sets(column(texts))
    for row, text in enumerate(texts):
        shingles = slow_shingles(text)
        assert counts[row] == len(shingles)
        if shingles:
            np.testing.assert_array_equal(signatures[row], datasketch_signature(shingles), err_msg=text[:80])
        expected = sorted({xxhash.xxh64_intdigest(shingle) for shingle in shingles})
        assert hashes[bounds[row] : bounds[row + 1]].tolist() == expected


def random_text(rng: random.Random) -> str:
    parts = [rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(400))]
    runs = ["ascii words, with 12.5 numbers; " * rng.randrange(3), " " * rng.randrange(30), "7" * rng.randrange(20)]
    return "".join(rng.sample([*parts, *runs], len(parts) + len(runs)))


def test_signatures_equal_datasketch_on_random_unicode() -> None:
    rng = random.Random(7)
    assert_equal_to_reference([random_text(rng) for _ in range(150)])


def test_signatures_equal_datasketch_on_documents_of_many_blocks() -> None:
    rng = random.Random(8)
    words = ["".join(rng.choices("abcdefghé", k=rng.randrange(1, 60))) for _ in range(500)]
    assert_equal_to_reference([" ".join(rng.choices(words, k=size)) for size in (2051, 2052, 2053, 9000)])


@pytest.mark.parametrize("name", ["books", "docs_multi", "code", "math"])
def test_signatures_equal_datasketch_on_real_text(name: str) -> None:
    file = REAL / f"{name}.parquet"
    if not file.exists():
        pytest.skip("the shared corpora are not here")
    texts = pq.read_table(file, columns=["text"])["text"].to_pylist()
    assert_equal_to_reference([text[:20_000] for text in random.Random(3).sample(texts, 40)])


def test_slices_and_chunks_give_the_same() -> None:
    texts = [f"document {index} " + "some words that repeat " * index for index in range(40)]
    whole, _ = sign_documents(column(texts))
    sliced, _ = sign_documents(column(["x", *texts]).slice(1))
    pieces = [pa.array(texts[:7], pa.large_string()), pa.array(texts[7:], pa.large_string())]
    chunked, _ = sign_documents(pa.chunked_array(pieces))
    np.testing.assert_array_equal(whole, sliced)
    np.testing.assert_array_equal(whole, chunked)


def test_short_and_huge_documents_are_bounded() -> None:
    texts = ["", "one two three four", "a" + " " * 5_000_000 + "b", "1" * 1_000_000]
    _, counts = sign_documents(column(texts))
    assert counts.tolist() == [0, 0, 0, 0]
    assert normalise_texts(column(texts)).to_pylist() == ["", "one two three four", "a b", "0"]
    assert sign_documents(column([]))[0].shape == (0, NUM_PERMUTATIONS)
