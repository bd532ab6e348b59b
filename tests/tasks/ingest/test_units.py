"""Cutting sources into units: fixed by keys and sizes alone, and stable when files are added."""

import itertools

import pytest

from tasks.ingest.sources import InputFile, SourceConfig
from tasks.ingest.units import Range, cut_units, ends_early, is_divisible

KB = 1024
AUTO = SourceConfig(base="x")


def files(sizes: dict[str, int]) -> list[InputFile]:
    return [InputFile(key=key, size=size, sha256=key) for key, size in sizes.items()]


def cut(sizes: dict[str, int], part_bytes: int = 100 * KB, config: SourceConfig = AUTO) -> list[list[Range]]:
    return list(cut_units(files(sizes), config, part_bytes))


def named(units: list[list[Range]]) -> list[tuple[tuple[str, int, int | None], ...]]:
    return [tuple((r.file.key, r.start, r.end) for r in unit) for unit in units]


def test_every_byte_is_in_exactly_one_unit() -> None:
    sizes = {f"{n:03}.jsonl": (n * 7919) % 250_000 for n in range(200)}
    units = cut(sizes)
    for key, size in sizes.items():
        ranges = sorted((r.start, r.end or size) for unit in units for r in unit if r.file.key == key)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert sum(r.size for unit in units for r in unit) == sum(sizes.values())


def test_large_files_are_cut_at_fixed_multiples() -> None:
    assert named(cut({"a.jsonl": 250 * KB})) == [
        (("a.jsonl", 0, 102_400),),
        (("a.jsonl", 102_400, 204_800),),
        (("a.jsonl", 204_800, 256_000),),
    ]


def test_a_file_of_exactly_part_bytes_is_one_unit() -> None:
    assert named(cut({"a.jsonl": 100 * KB, "b.jsonl": 1})) == [(("a.jsonl", 0, None),), (("b.jsonl", 0, None),)]


def test_small_files_are_joined_until_a_unit_is_full() -> None:
    units = cut({f"{n:02}.txt": 20 * KB for n in range(40)})
    for unit in units[:-1]:
        size = sum(r.size for r in unit)
        assert size >= 100 * KB or (size >= 25 * KB and ends_early(unit[-1].file.key))
        assert size - unit[-1].size < 100 * KB


def test_files_are_taken_in_the_order_of_their_keys() -> None:
    sizes = {f"{n:02}.txt": 9 * KB for n in range(30)}
    assert named(cut(dict(reversed(sizes.items())))) == named(cut(sizes))


@pytest.mark.parametrize("added", ["000000.txt_", "000511.txt_", "zzz.txt"])
def test_a_new_file_moves_its_own_unit_and_at_most_the_next_few(added: str) -> None:
    sizes = {f"{n * 7:06}.txt": 10 * KB for n in range(2_000)}
    before, after = named(cut(sizes)), named(cut(sizes | {added: 10 * KB}))
    changed = set(after) - set(before)
    assert 1 <= len(changed) <= 8
    assert len(before) > 200
    assert any(file[0] == added for unit in changed for file in unit)


@pytest.mark.parametrize(
    ("key", "divisible"),
    [
        ("a.jsonl", True),
        ("a.ndjson", True),
        ("a.jsonl.gz", False),  # its positions count uncompressed bytes
        ("a.jsonl.zst", False),
        ("a.parquet", True),
        ("a.warc.gz", True),
        ("a.warc.wet.gz", True),
        ("a.warc", False),
        ("a.txt", False),
        ("a.html", False),
        ("a.py", False),
    ],
)
def test_which_files_can_be_cut(key: str, divisible: bool) -> None:
    assert is_divisible(key, AUTO) is divisible
    assert len(cut({key: 150 * KB})) == (2 if divisible else 1)


def test_the_recipe_can_say_the_format() -> None:
    lines = SourceConfig(base="x", format="lines")
    assert len(cut({"a.txt": 150 * KB}, config=lines)) == 2


def test_no_files_no_units() -> None:
    assert cut({}) == []
