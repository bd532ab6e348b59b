"""Cutting a source into units of about `part_bytes`: a new file moves its own unit and at most the next few.

Files are taken in the order of their keys. A file above part_bytes is cut at fixed multiples where its format allows;
small ones are joined until they hold part_bytes, or a quarter of it at a file whose key hashes to 0 mod 16 (that end
depends on the key alone, so cuts fall at the same files again soon after an insertion: after 16 on average).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from tasks.ingest.sources import COMPRESSED, InputFile, SourceConfig, format_of

EARLY_END_SHARE = 4
EARLY_END_MODULUS = 16


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, end) of a file; end None is the file's end."""

    file: InputFile
    start: int = 0
    end: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the range."""
        return (self.file.size if self.end is None else self.end) - self.start


def cut_units(files: Sequence[InputFile], config: SourceConfig, part_bytes: int) -> Iterator[list[Range]]:
    """The units of one source, in the order of their keys."""
    held: list[Range] = []
    size = 0
    for file in sorted(files, key=lambda file: file.key):
        if file.size > part_bytes and is_divisible(file.key, config):
            if held:
                yield held
                held, size = [], 0
            starts = range(0, file.size, part_bytes)
            yield from ([Range(file, start, min(start + part_bytes, file.size))] for start in starts)
            continue
        held.append(Range(file))
        size += file.size
        if size >= part_bytes or (size >= part_bytes // EARLY_END_SHARE and ends_early(file.key)):
            yield held
            held, size = [], 0
    if held:
        yield held


def is_divisible(key: str, config: SourceConfig) -> bool:
    """Whether ranges of the file can be read by themselves.

    WARC and MediaWiki by their compressed members, what is plain by its lines and pages, Parquet by row groups.
    Compressed lines are not: their positions count uncompressed bytes, which nobody knows without reading all that
    comes before.
    """
    match format_of(key, config):
        case "parquet" | "mediawiki":
            return True
        case "warc" | "wet":
            return COMPRESSED.search(key) is not None
        case "jsonl" | "lines":
            return COMPRESSED.search(key) is None
        case _:
            return False


def ends_early(key: str) -> bool:
    """Whether a unit that holds enough ends at this file."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) % EARLY_END_MODULUS == 0
