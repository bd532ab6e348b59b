"""Ids equal HF tokenizers' on every text, special tokens in text stay text, and the engine is chosen once."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tasks.encoding import PROBES, Encoder, choose_engine, token_bytes, vocabulary_size, without_special_tokens
from tasks.errors import DataError
from tasks.vocabulary import SpecialTokens, VocabularyConfig, train_bpe

WORDS = "the quick brown fox jumps over lazy dogs and counts 1234 sheep while it's raining für größe naïve 東京 "
ODD = [
    "", " ", "\x00", "a\x00b", "\r\n\r\n \t", "\u2028\u2029\x85\x1c", "ſ's 'ſ İ", "\ufeff\uffff\U0010ffff", "é e\u0301",
    "🙂👨‍👩‍👧", "<|bos|>text<|eos|><|pad|>", "\n" * 3_000, " " * 200_000, " " * 100_000 + "x", "-" * 50_000,
]  # fmt: skip
FIVE_MEGABYTES = ("incomprehensibilities_" * 6 + "\n") * (5_000_000 // 133)


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    """512 entries, made of a few sentences."""
    config = VocabularyConfig(size=512, special_tokens=SpecialTokens(more=("<|tool|>",)))
    return bytes(train_bpe([WORDS * 3, "<|bos|>" * 50, *PROBES], config).to_str().encode())


@pytest.fixture(scope="module")
def encoder(tokenizer: bytes) -> Encoder:
    """gigatoken with that tokenizer."""
    return Encoder(tokenizer, "gigatoken")


def reference_ids(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.reference.encode(text, add_special_tokens=False).ids)


def split(ids: Any, lengths: Any) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_gigatoken_serves_the_patterns_we_train_with(tokenizer: bytes) -> None:
    assert choose_engine(tokenizer) == "gigatoken"
    gpt2 = train_bpe([WORDS], VocabularyConfig(size=400, pattern="gpt2"))
    assert choose_engine(gpt2.to_str().encode()) == "gigatoken"


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_a_batch_of_odd_texts_gives_hf_ids_and_round_trips(tokenizer: bytes, engine: Any) -> None:
    encoder = Encoder(tokenizer, engine)
    ids, lengths = encoder.encode(ODD)
    assert ids.dtype == np.uint32
    assert split(ids, lengths) == [reference_ids(encoder, text) for text in ODD]
    for text, own in zip(ODD, split(ids, lengths), strict=True):
        assert encoder.reference.decode(own, skip_special_tokens=False) == text
    assert [array.tolist() for array in encoder.encode([])] == [[], []]
    assert [array.tolist() for array in encoder.encode(["", ""])] == [[], [0, 0]]


def test_a_document_of_five_megabytes_gives_hf_ids(encoder: Encoder) -> None:
    ids, _ = encoder.encode([FIVE_MEGABYTES])
    assert ids.tolist() == reference_ids(encoder, FIVE_MEGABYTES)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=6))
@settings(max_examples=200, deadline=None)
def test_any_unicode_gives_hf_ids(encoder: Encoder, texts: list[str]) -> None:
    ids, lengths = encoder.encode(texts)
    encoder.check([str(n) for n in range(len(texts))], texts, ids, lengths)
    sizes = np.array(token_bytes(encoder.reference.to_str().encode()))
    assert int(sizes[ids].sum()) == sum(len(text.encode()) for text in texts)


def test_the_text_of_a_special_token_is_never_encoded_as_one(tokenizer: bytes, encoder: Encoder) -> None:
    special = ["<|bos|>", "<|eos|>", "<|pad|>", "<|tool|>"]
    known = Tokenizer.from_str(tokenizer.decode())
    assert known.encode("".join(special), add_special_tokens=False).ids == [0, 1, 2, 3]
    ids, _ = encoder.encode(["".join(special), *special, "x<|eos|>y"])
    assert ids.min() > 3


def test_a_difference_from_hf_names_the_document(encoder: Encoder) -> None:
    texts = ["one text", "another", "third"]
    ids, lengths = encoder.encode(texts)
    wrong = ids.copy()
    wrong[lengths[0]] += 1
    with pytest.raises(DataError, match=r"^b: gigatoken and HF tokenizers disagree"):
        encoder.check(["a", "b", "c"], texts, wrong, lengths)


@pytest.mark.parametrize("wrong", ["[a-z]+|.", "(?i:'s)|\\s+|\\S+"])
def test_hf_tokenizers_serve_a_pattern_that_gigatoken_lacks(tokenizer: bytes, wrong: str) -> None:
    changed = json.loads(tokenizer)
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = wrong
    data = json.dumps(changed).encode()
    assert choose_engine(data) == "tokenizers"
    encoder = Encoder(data, "tokenizers")
    ids, lengths = encoder.encode(["it's 12 cats", ""])
    assert split(ids, lengths) == [reference_ids(encoder, "it's 12 cats"), []]


def test_token_bytes_come_from_the_vocabulary(tokenizer: bytes) -> None:
    sizes = token_bytes(tokenizer)
    vocab = json.loads(tokenizer)["model"]["vocab"]
    assert len(sizes) == vocabulary_size(tokenizer) == 512
    assert sizes[:4] == [0, 0, 0, 0]
    assert sorted(sizes)[4:260] == [1] * 256
    assert sizes[vocab["Ġthe"]] == 4


def test_added_tokens_that_are_text_keep_their_bytes_and_their_meaning() -> None:
    data = {
        "added_tokens": [
            {"id": 5, "content": "é🙂", "special": False},
            {"id": 9, "content": "<s>", "special": True},
        ],
        "model": {"vocab": {"a": 0, "Ã©": 1}},
        "post_processor": {"type": "ByteLevel"},
    }
    assert token_bytes(json.dumps(data).encode()) == [1, 2, 0, 0, 0, 6, 0, 0, 0, 0]
    plain = json.loads(without_special_tokens(json.dumps(data).encode()))
    assert [token["id"] for token in plain["added_tokens"]] == [5]
    assert plain["post_processor"] is None
