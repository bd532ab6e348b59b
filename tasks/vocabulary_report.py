"""What a tokenizer is worth: on held-out text, beside characters and whitespace words of the same vocabulary size.

Tokens per byte is the price of a text in model steps; the unknown rate is the share of tokens that lose what stood
there, and the pieces of misspelt words show how each scheme meets what it never saw. Characters and words are counted
on the training sample, most frequent first (ties by code point).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from tasks.encoding import Encoder, choose_engine, vocabulary_size

UNKNOWN = "<unk>"
MISSPELT = (
    "recieve", "definately", "seperate", "occured", "wierd", "untill", "tommorow", "goverment", "neccessary",
    "begining",
)  # fmt: skip


def build_report(tokenizer_json: bytes, train: dict[str, list[str]], held_out: dict[str, list[str]]) -> dict[str, Any]:
    """bytes_per_token by source (None without held-out text), comparison by scheme, pieces of ten misspelt words."""
    size = vocabulary_size(tokenizer_json)
    encoder = Encoder(tokenizer_json, choose_engine(tokenizer_json))
    tokens = {source: int(encoder.encode(texts)[1].sum()) for source, texts in held_out.items()}
    texts = [text for source in held_out.values() for text in source]
    num_bytes = sum(len(text.encode()) for text in texts)
    sample = [text for source in train.values() for text in source]
    characters = most_frequent(sample, size)
    words = most_frequent((text.split() for text in sample), size)
    return {
        "bytes_per_token": {
            source: round(sum(len(text.encode()) for text in held_out[source]) / tokens[source], 4)
            if tokens[source]
            else None
            for source in held_out
        },
        "held_out_bytes": num_bytes,
        "comparison": {
            "characters": compare(texts, characters, num_bytes),
            "words": compare([text.split() for text in texts], words, num_bytes),
            "bpe": _row(sum(tokens.values()), 0, size, num_bytes),
        },
        "misspelt": [
            {
                "word": word,
                "characters": [letter if letter in characters else UNKNOWN for letter in word],
                "words": [word if word in words else UNKNOWN],
                "bpe": pieces(encoder.reference, word),
            }
            for word in MISSPELT
        ],
    }


def most_frequent(units: Iterable[Iterable[str]], size: int) -> frozenset[str]:
    """The `size` most frequent characters (of texts) or words (of lists of words); one entry is the unknown's."""
    counts: Counter[str] = Counter()
    for unit in units:
        counts.update(unit)
    return frozenset(sorted(counts, key=lambda item: (-counts[item], item))[: size - 1])


def compare(units: Iterable[Iterable[str]], vocabulary: frozenset[str], num_bytes: int) -> dict[str, Any]:
    """Tokens per byte and unknown rate of a closed vocabulary."""
    counts: Counter[str] = Counter()
    for unit in units:
        counts.update(unit)
    unknown = sum(count for item, count in counts.items() if item not in vocabulary)
    return _row(counts.total(), unknown, len(vocabulary) + 1, num_bytes)


def pieces(tokenizer: Tokenizer, word: str) -> list[str]:
    """The word as the tokenizer cuts it, readable."""
    encoding = tokenizer.encode(word, add_special_tokens=False)
    return [word[start:end] for start, end in encoding.offsets]


def _row(tokens: int, unknown: int, size: int, num_bytes: int) -> dict[str, Any]:
    return {
        "vocabulary": size,
        "tokens": tokens,
        "tokens_per_byte": round(tokens / num_bytes, 4) if num_bytes else None,
        "unknown_ratio": round(unknown / tokens, 4) if tokens else None,
    }
