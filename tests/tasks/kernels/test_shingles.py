"""Normalisation, shingles and signatures against slow, independent definitions and datasketch itself."""

import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.folding import TABLE_SIZE, UNSPACED
from tasks.kernels.shingles import NUM_PERMUTATIONS, normalise_texts, shingle_sets, sign_documents

REAL = Path(__file__).parents[4] / "shared/data/text"
SAMPLES = [
    ("", ""),
    (" \n\t ", ""),
    ("Hello,  World!", "hello world"),
    ("It's 3.14, or 1,234.56; not 1. 2", "it s 0 or 0 not 0 0"),
    ("v1.2.3-rc4 a1b22c", "v0 rc0 a0b0c"),
    ("Café CAFÉ Cafe\u0301", "cafe cafe cafe"),
    ("naïve\u00adsoft \ufeffbom zero\u200bwidth", "naivesoft bom zerowidth"),
    ("١٢٣ ٤.5 ४५६", "0 0 0"),
    ("Straße №5 ½ x²", "straße 0 ½ x²"),
    ("我们 like 寿司。", "我 们 like 寿 司"),
    ("ข้าวผัด", "ข า ว ผ ด"),
    ("한국어", unicodedata.normalize("NFD", "한국어")),
    ("İstanbul ΣΑΣ \u212b \u2126", "istanbul σασ a ω"),
    ("x\U000e0041\U000e0101y \U0001f600 z\U000f0000w", "xy z w"),
    ("snake_case a\x00b", "snake case a b"),
]

ALPHABETS = [
    "abc XYZ 019 .,!_",
    "éàüÅß ŒİΣ",
    "我们寿司 かな ข้าว",
    "한국어 각",
    "٠١٢ ४५६ ",
    "\u00ad\u200b\u0301\ufeff",
    "\U0001f600\U000e0101𝔘𐐀",
]


def slow_normalise(text: str) -> str:
    """The definition of tasks/kernels/folding.py, straight from the standard library."""
    text = re.sub(r"(?<=\d)[.,](?=[0-9])", "0", text)
    out: list[str] = []
    for character in text:
        kind, code = unicodedata.category(character), ord(character)
        if kind == "Nd":
            out.append("0")
        elif kind in ("Mn", "Me", "Cf") or 0xE0000 <= code < 0xE1000:
            continue
        elif kind in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "No", "Mc") and code < TABLE_SIZE:
            parts = unicodedata.normalize("NFD", character.lower())
            piece = "".join(part for part in parts if unicodedata.category(part) not in ("Mn", "Me", "Cf"))
            out.append(f" {piece} " if piece and any(low <= code < high for low, high in UNSPACED) else piece)
        else:
            out.append(" ")
    return " ".join(re.sub("0+", "0", "".join(out)).split())


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def slow_shingles(text: str) -> list[bytes]:
    words = slow_normalise(text).split(" ")
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


@pytest.mark.parametrize(("text", "expected"), SAMPLES)
def test_normalises_as_documented(text: str, expected: str) -> None:
    assert normalise_texts(column([text])).to_pylist() == [expected]
    assert slow_normalise(text) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_unicode_normalises_like_the_slow_definition(texts: list[str]) -> None:
    assert normalise_texts(column(texts)).to_pylist() == [slow_normalise(text) for text in texts]


def test_every_character_normalises_like_the_slow_definition() -> None:
    texts = ["a" + chr(code) + "b" for code in range(1, 0x110000, 7) if not 0xD800 <= code < 0xE000]
    texts += ["a" + chr(code) + "1" for code in range(1, 0x3400)]
    assert normalise_texts(column(texts)).to_pylist() == [slow_normalise(text) for text in texts]


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
