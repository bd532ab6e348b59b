"""Text to token ids: gigatoken where it knows the tokenizer, HF tokenizers elsewhere, equal ids from both.

The text of a special token inside a document is plain text: encoding runs on a copy of tokenizer.json without its
special tokens, so no document can forge a document's end. Which engine serves is decided once per tokenizer
(`choose_engine`): gigatoken unless it refuses the file or differs from HF tokenizers on a probe. Measured on one core:
gigatoken 60 to 150 MB/s, HF tokenizers 2 to 3.3.
"""

import json
import logging
from functools import lru_cache
from typing import Any, Literal

import gigatoken
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tasks.errors import DataError

RESULT_PACKAGES = ("gigatoken", "tokenizers")

Engine = Literal["gigatoken", "tokenizers"]
Ids = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

PROBES = (  # each once made some encoder differ from another: case folding, digits, spaces, marks, line ends, controls
    "The quick brown fox can't jump; he'LL've 1234567 reasons.\n\n\tdef f(x):\r\n    return x**2   \n",
    "ſ's 'ſ 'S 'Re 'K İ'm don'T", "a\x00b\x00 \x1c\x85\u2028\u2029", "\ufeffbom \u200b\u00ad\uffff\U0010ffff",
    "١٢٣٤ ½ ²³ Ⅻ 一二三", "e\u0301 é क्षि ँ ᭄ 한글 ｱｲｳ ไทย", "🙂👨‍👩‍👧🏽 ☃️",
    " " * 300 + "\n" * 70 + "\t \n \r\n  x", "-" * 500 + "x" * 3000, "<|bos|><|eos|><|pad|></s>[UNK]",
)  # fmt: skip

logger = logging.getLogger(__name__)


class Encoder:
    """Encodes batches of documents; holds one engine and, for checks, HF tokenizers beside it."""

    def __init__(self, tokenizer_json: bytes, engine: Engine) -> None:
        plain = without_special_tokens(tokenizer_json)
        self.reference = Tokenizer.from_str(plain)
        self._fast = gigatoken.Tokenizer.from_json(plain) if engine == "gigatoken" else None

    def encode(self, texts: list[str]) -> tuple[Ids, Integers]:
        """All ids joined, and the number of ids of each text; no special token is added or recognised."""
        if self._fast is None or not texts:
            return self._encode_reference(texts)
        layout = self._fast.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        return np.asarray(layout.content.data, dtype=np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)

    def check(self, names: list[str], texts: list[str], ids: Ids, lengths: Integers) -> None:
        """Raise DataError when HF tokenizers gives other ids for one of these texts than those given."""
        if self._fast is None or not texts:
            return
        wanted, wanted_lengths = self._encode_reference(texts)
        if np.array_equal(wanted_lengths, lengths) and np.array_equal(wanted, ids):
            return
        ends, wanted_ends = np.cumsum(lengths), np.cumsum(wanted_lengths)
        for index, name in enumerate(names):
            ours = ids[ends[index] - lengths[index] : ends[index]]
            theirs = wanted[wanted_ends[index] - wanted_lengths[index] : wanted_ends[index]]
            if not np.array_equal(ours, theirs):
                raise DataError(f"{name}: gigatoken and HF tokenizers disagree ({len(ours)} ids, {len(theirs)} ids)")

    def _encode_reference(self, texts: list[str]) -> tuple[Ids, Integers]:
        encodings = self.reference.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        return np.concatenate([np.empty(0, np.uint32), *ids]), np.array([len(item) for item in ids], dtype=np.int64)


@lru_cache(maxsize=8)
def choose_engine(tokenizer_json: bytes) -> Engine:
    """gigatoken where it can read this tokenizer and gives HF's ids for every probe, else HF tokenizers."""
    try:
        encoder = Encoder(tokenizer_json, "gigatoken")
        ids, lengths = encoder.encode(list(PROBES))
        encoder.check([f"probe {index}" for index in range(len(PROBES))], list(PROBES), ids, lengths)
    except (RuntimeError, ValueError, DataError) as error:
        logger.warning("encoding runs on HF tokenizers, some 40 times slower: %s", str(error).splitlines()[0])
        return "tokenizers"
    return "gigatoken"


def without_special_tokens(tokenizer_json: bytes) -> str:
    """tokenizer.json that neither recognises special tokens in a text nor adds them around it; ids stay as they are."""
    tokenizer = json.loads(tokenizer_json)
    tokenizer["added_tokens"] = [token for token in tokenizer.get("added_tokens") or [] if not token["special"]]
    tokenizer["post_processor"] = None
    return json.dumps(tokenizer, ensure_ascii=False)


def vocabulary_size(tokenizer_json: bytes) -> int:
    """One more than the largest id, special tokens included."""
    return max(_pieces(json.loads(tokenizer_json)).values()) + 1


def token_bytes(tokenizer_json: bytes) -> list[int]:
    """Bytes of text that each id stands for: 0 for special tokens and unused ids.

    A piece of a byte-level vocabulary has one character per byte, so its length is the number of bytes; decoding first
    would count a piece that ends inside a character as the three bytes of U+FFFD.
    """
    tokenizer = json.loads(tokenizer_json)
    added = {token["content"]: token["special"] for token in tokenizer.get("added_tokens") or []}
    sizes = [0] * vocabulary_size(tokenizer_json)
    for piece, index in _pieces(tokenizer).items():
        if piece not in added:
            sizes[index] = len(piece)
        elif not added[piece]:
            sizes[index] = len(piece.encode())
    return sizes


def _pieces(tokenizer: dict[str, Any]) -> dict[str, int]:
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    return {**tokenizer["model"]["vocab"], **added}
