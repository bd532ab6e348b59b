"""Files that try to break ingest and what follows, each with what must become of it: documents, errors, skips, edits.

Every file that can holds one good record, which must come through whatever stands beside it.
"""

import gzip
import io
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MB = 1 << 20
NESTED_TAGS = 10_000
SPACES = 5_000_000
WORDS = (
    *("river", "stone", "light", "water", "green", "house", "small", "tree", "under", "the", "old", "bridge", "walks"),
    *("child", "and", "sings", "of", "time", "paper", "winter", "road", "seven", "before", "glass", "to", "evening"),
)


@dataclass
class Hostile:
    """One file: its key below the source's base, its bytes, and the outcomes it must have."""

    key: str
    data: bytes
    documents: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    edits: dict[str, int] = field(default_factory=dict)


def good(key: str) -> str:
    """A text of the file's own: 60 words, like no other."""
    words = random.Random(key.encode("utf-8", "surrogatepass")).choices(WORDS, k=60)
    return f"In the file {key.split('.')[0]} stands a record. {' '.join(words)}."


def line(key: str, **values: Any) -> bytes:
    """The good record of a file as JSON, or another."""
    return json.dumps({"text": good(key)} | values).encode() + b"\n"


def jsonl(key: str, *rows: bytes | dict[str, Any], **outcome: Any) -> Hostile:
    """A JSONL file of these rows; the good record comes last and is counted."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]
    return Hostile(key, b"".join([*lines, line(key)]), documents=1 + outcome.pop("documents", 0), **outcome)


def texts() -> Iterator[Hostile]:
    """What may stand where a text is expected."""
    yield jsonl(
        "null.jsonl",
        *({"text": text} for text in (None, "", "  \n\t ", "\u200b\ufeff", "\0\0")),
        {"body": "no text"}, *({"text": text} for text in (1, True, ["a"], {"a": 1})),
        errors={"empty": 5, "missing_text": 1, "wrong_type": 4},
    )  # fmt: skip
    yield jsonl(
        "surrogates.jsonl",
        b'{"text": "half a pair \\ud800 and the other \\udc00 half", "url": "https://a.example/\\udfff"}\n',
        b'{"text": "raw surrogate bytes \xed\xa0\x80 in a line"}\n',
        documents=2, edits={"lone_surrogate": 3, "decode_lossy": 1},
    )  # fmt: skip
    yield jsonl(
        "nul.jsonl",
        {"text": "escaped \0 and \0 twice"}, b'{"text": "raw \x00 byte"}\n',
        documents=2, edits={"nul_bytes": 3},
    )  # fmt: skip
    yield jsonl("spaces.jsonl", {"text": good("spaces") + " " * SPACES + good("behind")}, documents=1)
    yield jsonl("blank-line.jsonl", b" " * SPACES + b"\n", skipped={"blank_line": 1})
    yield jsonl("script.jsonl", {"text": "<script>alert('pwned')</script><img src=x onerror=alert(1)>"}, documents=1)
    yield jsonl("ids.jsonl", *({"text": f"{good('ids')} number {n}", "id": "same"} for n in range(3)), documents=3)


def rows() -> Iterator[Hostile]:
    """What may be wrong with a line of JSON."""
    yield jsonl(
        "half.jsonl", b'{"text": "cut in ha\n', b"not json\n", b'["a", "list"]\n', b"null\n",
        errors={"invalid_json": 2, "not_object": 2},
    )  # fmt: skip
    yield Hostile("cut.jsonl", line("cut.jsonl") + b'{"text": "cut at the en', 1, {"truncated": 1})
    yield jsonl(
        "deep.jsonl", b'{"text": "deep", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", errors={"invalid_json": 1}
    )
    yield jsonl(
        "deepish.jsonl", b'{"text": "deepish", "x": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}\n", documents=1
    )
    yield jsonl(
        "numbers.jsonl",
        b'{"text": "huge", "n": 1' + b"0" * 400 + b', "timestamp": 1' + b"0" * 30 + b"}\n",
        b'{"text": "not numbers", "a": NaN, "b": [Infinity, -Infinity], "timestamp": NaN}\n',
        b'{"text": "too huge", "n": 1' + b"0" * 5_000 + b"}\n",
        b'{"text": NaN}\n',
        documents=3, errors={"invalid_json": 1},
    )  # fmt: skip
    yield Hostile(
        "marks.jsonl", b"\xef\xbb\xbf" + line("marks.jsonl") + line("marks.jsonl", text="second " + good("m")), 2
    )
    yield Hostile(
        "crlf.jsonl",
        line("crlf.jsonl").replace(b"\n", b"\r\n") + b"\r\n" + line("crlf.jsonl", text="two " + good("c")),
        2,
        skipped={"blank_line": 1},
    )
    yield jsonl("twice.jsonl", b'{"text": "first value", "text": "second value"}\n', documents=1)
    yield jsonl(
        "types-1.jsonl",
        {"text": "types one " + good("t1"), "url": 5, "timestamp": 17, "score": 1, "id": 9},
        documents=1,
    )
    yield jsonl(
        "types-2.jsonl",
        {"text": "types two " + good("t2"), "url": {"a": 1}, "timestamp": [2], "score": [1, "b"], "id": {"x": None}},
        documents=1, edits={"column_type": 2},
    )  # fmt: skip


def compressed() -> Iterator[Hostile]:
    """Streams that end early, break, go on, or hold far more than they seem to."""
    many = b"".join(line(f"truncated-{n}") for n in range(200))
    cut = gzip.compress(many, 1)
    cut = cut[: len(cut) // 2]
    whole = zlib.decompressobj(31).decompress(cut).count(b"\n")
    yield Hostile("truncated.jsonl.gz", cut, whole, {"truncated": 1})
    joined = b"".join(line(f"member-{n}") for n in range(4))
    middle = len(joined) // 2  # in the midst of a record
    yield Hostile("members.jsonl.gz", gzip.compress(joined[:middle]) + gzip.compress(joined[middle:]), 4)
    broken = bytearray(gzip.compress(line("broken"), 6))
    broken[len(broken) // 2] ^= 0xFF
    yield Hostile(
        "damaged.jsonl.gz",
        gzip.compress(line("damaged-1")) + bytes(broken) + gzip.compress(line("damaged-2")), 2, {"corrupt_member": 1},
    )  # fmt: skip
    yield Hostile("not-gzip.jsonl.gz", line("not-gzip.jsonl.gz"), 1)
    yield Hostile("empty.jsonl.gz", b"")


def bomb(size: int) -> Hostile:
    """A small gzip file whose only text is `size` NUL bytes, and a good record behind it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    pieces = [packer.compress(b'{"text": "')] + [packer.compress(bytes(MB)) for _ in range(size // MB)]
    pieces += [packer.compress(b'"}\n' + line("bomb.jsonl.gz")), packer.flush()]
    return Hostile("bomb.jsonl.gz", b"".join(pieces), 1, {"empty": 1})


def large(size: int) -> Hostile:
    """A document of `size` bytes."""
    piece = "".join(
        f"Sentence {n} of a very long document says that {WORDS[n * n % 19]} is {n % 97}. " for n in range(9_999)
    )
    return jsonl("large.jsonl", {"text": (piece * (size // len(piece) + 1))[:size]}, documents=1)


def tables() -> Iterator[Hostile]:
    """Parquet files whose columns are not what they should be."""
    text = [good("table 1"), good("table 2")]
    yield parquet("table.parquet", {"text": pa.array(text, pa.large_string()).dictionary_encode()}, documents=2)
    yield parquet("integers.parquet", {"text": pa.array([1, 2])}, errors={"wrong_type": 2})
    yield parquet("nulls.parquet", {"text": pa.nulls(2)}, errors={"empty": 2})
    yield parquet("lists.parquet", {"text": pa.array([["a"], ["b"]])}, errors={"wrong_type": 2})
    yield parquet("no-text.parquet", {"body": pa.array(text)}, errors={"missing_text": 2})
    yield parquet(
        "bytes.parquet",
        {"text": pa.array([b"caf\xe9 in latin-1 " + b"of the town " * 20, good("bytes").encode()])},
        documents=2,
    )
    invalid = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\4\0\0\0\6\0\0\0"), pa.py_buffer(b"a\xff\xfeb" + b"ok")
    )
    yield parquet("invalid.parquet", {"text": invalid}, documents=2)
    data = parquet("x", {"text": pa.array(text * 500)}).data
    yield Hostile("cut.parquet", data[: len(data) // 2], errors={"corrupt_file": 1})
    yield Hostile("empty.parquet", b"", errors={"corrupt_file": 1})
    yield parquet("no-rows.parquet", {"text": pa.array([], pa.string())})


def parquet(key: str, columns: dict[str, pa.Array], **outcome: Any) -> Hostile:
    """A Parquet file of these columns."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return Hostile(key, buffer.getvalue(), **outcome)


def pages() -> Iterator[Hostile]:
    """HTML and text files."""
    words = good("page")
    yield Hostile(
        "nested.html", b"<div>" * NESTED_TAGS + words.encode() + b"</div>" * NESTED_TAGS, errors={"too_deep": 1}
    )
    yield Hostile("empty.html", b"", errors={"empty": 1})
    yield Hostile("empty.txt", b"", errors={"empty": 1})
    yield Hostile("binary.txt", bytes(range(256)) * 10, errors={"binary": 1})
    yield Hostile("a\nname <script>alert(2)</script> \"'é.txt", b"The name of this file is odd. " + words.encode(), 1)
    yield Hostile("folder.jsonl/inside.jsonl", line("inside.jsonl"), 1)


def small_corpus() -> list[Hostile]:
    """Everything but the two large files."""
    return [*texts(), *rows(), *compressed(), *tables(), *pages()]
