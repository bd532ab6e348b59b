"""What a tokenizer is worth: on held-out text, beside characters and whitespace words of the same vocabulary size.

Tokens per byte is the price of a text in model steps; the unknown rate is the share of tokens that lose what stood
there, and the pieces of misspelt words show how each scheme meets what it never saw. Characters and words are counted
on the training sample, most frequent first (ties by code point).
"""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
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
    num_bytes = {source: len("".join(texts).encode()) for source, texts in held_out.items()}
    sample, texts = list(chain(*train.values())), list(chain(*held_out.values()))
    characters, words = most_frequent(sample, size), most_frequent(map(str.split, sample), size)
    total = sum(num_bytes.values())
    return {
        "bytes_per_token": {
            source: round(num_bytes[source] / count, 4) if count else None for source, count in tokens.items()
        },
        "held_out_bytes": total,
        "comparison": {
            "characters": compare(texts, characters, total),
            "words": compare(map(str.split, texts), words, total),
            "bpe": _row(sum(tokens.values()), 0, size, total),
        },
        "misspelt": [misspelt_row(word, characters, words, encoder.reference) for word in MISSPELT],
    }


def misspelt_row(
    word: str, characters: frozenset[str], words: frozenset[str], tokenizer: Tokenizer
) -> dict[str, str | list[str]]:
    """What each scheme makes of one word."""
    return {
        "word": word,
        "characters": [letter if letter in characters else UNKNOWN for letter in word],
        "words": [word if word in words else UNKNOWN],
        "bpe": pieces(tokenizer, word),
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
