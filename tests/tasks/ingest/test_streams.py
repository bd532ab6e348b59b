"""Members of compressed files: damage costs one member, ranges tile a file, positions name the member."""

import bz2
import gzip
import io
import lzma
import random
import re
from collections.abc import Callable

import pytest
import zstandard
from fastwarc.stream_io import Lz4Writer

from tasks.ingest.streams import ByteReader, Damage, Piece, read_pieces

Compress = Callable[[bytes], bytes]
CODECS: dict[str, Compress] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
BLOCKS = [f"record {n} ".encode() * (50 + n) for n in range(12)]


def read_all(data: bytes, start: int = 0, end: int | None = None, magic: bytes = b"") -> tuple[bytes, list[Damage]]:
    pieces = list(read_pieces(io.BytesIO(data), start, end, magic))
    whole = b"".join(piece.data for piece in pieces if isinstance(piece, Piece))
    return whole, [piece for piece in pieces if isinstance(piece, Damage)]


@pytest.mark.parametrize("codec", CODECS)
def test_all_members_are_read(codec: str) -> None:
    data = b"".join(CODECS[codec](block) for block in BLOCKS)
    assert read_all(data) == (b"".join(BLOCKS), [])


def test_plain_files_and_ranges_of_them() -> None:
    data = b"".join(BLOCKS)
    assert read_all(data) == (data, [])
    assert read_all(data, 10, 30) == (data[10:30], [])
    assert read_all(b"") == (b"", [])


def test_lz4() -> None:
    file = io.BytesIO()
    with Lz4Writer(file) as writer:
        writer.write(b"".join(BLOCKS))
    assert read_all(file.getvalue()) == (b"".join(BLOCKS), [])
    whole, _ = read_all(file.getvalue()[:200])
    assert b"".join(BLOCKS).startswith(whole)


@pytest.mark.parametrize("codec", CODECS)
def test_a_cut_file_keeps_what_came_before(codec: str) -> None:
    members = [CODECS[codec](block) for block in BLOCKS]
    data = b"".join(members)
    whole, damages = read_all(data[: len(data) - len(members[-1]) // 2])
    assert whole.startswith(b"".join(BLOCKS[:-1]))
    assert [damage.reason for damage in damages] == ["truncated"]
    assert damages[0].member == len(data) - len(members[-1])


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_broken_member_costs_itself_only(codec: str) -> None:
    members = [CODECS[codec](block) for block in BLOCKS]
    bad = bytearray(members[5])
    bad[len(bad) // 2 : len(bad) // 2 + 4] = b"\xff\x00\xff\x00"
    whole, damages = read_all(b"".join([*members[:5], bytes(bad), *members[6:]]))
    assert whole.startswith(b"".join(BLOCKS[:5]))
    assert whole.endswith(b"".join(BLOCKS[6:]))
    assert [(damage.reason, damage.member) for damage in damages] == [("corrupt_member", sum(map(len, members[:5])))]


def test_what_follows_the_members() -> None:
    data = CODECS["gzip"](BLOCKS[0])
    assert read_all(data + bytes(5_000)) == (BLOCKS[0], [])  # tapes and tar pad with zeros
    whole, damages = read_all(data + b"no gzip at all")
    assert whole == BLOCKS[0]
    assert [(damage.reason, damage.member) for damage in damages] == [("corrupt_member", len(data))]
    whole, damages = read_all(data + bytes(100) + data)
    assert whole == BLOCKS[0] * 2
    assert len(damages) == 1


def test_random_damage_never_loses_a_sound_member() -> None:
    members = [CODECS["gzip"](block) for block in BLOCKS]
    data = b"".join(members)
    for seed in range(150):
        draw = random.Random(seed)
        broken = bytearray(data)
        at = draw.randrange(3, len(data))  # the first magic bytes tell that the file is compressed
        for offset in range(at, min(len(data), at + draw.choice([1, 3, 20]))):
            broken[offset] ^= draw.randrange(1, 256)
        whole, _ = read_all(bytes(broken))
        start = 0
        for member, block in zip(members, BLOCKS, strict=True):
            touched = start < at + 20 and at < start + len(member)
            assert touched or block in whole, (seed, at)
            start += len(member)


@pytest.mark.parametrize("step", [1, 37, 100, 10_000])
def test_ranges_tile_a_file_of_members(step: int) -> None:
    blocks = [b"REC" + block for block in BLOCKS]
    # the second half of each third record lies in a member of its own
    halves = [half for n, b in enumerate(blocks) for half in ([b] if n % 3 else [b[:99], b[99:]])]
    data = b"".join(CODECS["gzip"](half) for half in halves)
    found = [read_all(data, start, start + step, b"REC") for start in range(0, len(data), step)]
    assert b"".join(whole for whole, _ in found) == b"".join(blocks)
    assert [damages for _, damages in found if damages] == []
    assert all(whole.startswith(b"REC") for whole, _ in found if whole)


def test_a_reader_knows_where_each_byte_came_from() -> None:
    members = [CODECS["gzip"](block) for block in BLOCKS]
    reader = ByteReader(read_pieces(io.BytesIO(b"".join(members))))
    position = 0
    for n, block in enumerate(BLOCKS):
        assert reader.place(position) == (sum(map(len, members[:n])), 0) or n == 0 or reader.fill(1)
        reader.fill(1)
        assert reader.place(reader.position) == (sum(map(len, members[:n])), 0)
        assert reader.read(5) == block[:5]
        assert reader.place(reader.position) == (sum(map(len, members[:n])), 5)
        assert reader.skip(len(block) - 5) == len(block) - 5
        position += len(block)
    assert reader.position == position
    assert (reader.fill(1), reader.damage) == (0, None)


def test_a_reader_stops_at_a_damage_and_goes_on_behind_it() -> None:
    members = [CODECS["gzip"](block) for block in BLOCKS[:3]]
    members[1] = members[1][:10] + b"\xff\xff\xff\xff" + members[1][14:]
    reader = ByteReader(read_pieces(io.BytesIO(b"".join(members))))
    assert reader.read(10_000).startswith(BLOCKS[0])
    assert reader.damage is not None
    assert reader.damage.member == len(members[0])
    reader.resume()
    assert reader.read(10_000) == BLOCKS[2]
    assert reader.damage is None


def test_a_reader_searches_and_takes_back() -> None:
    reader = ByteReader(iter([Piece(b"abc", 0), Piece(b"def", 0), Piece(b"ghi", 0)]))
    assert reader.search(re.compile(b"d"), 100) == 3
    assert reader.search(re.compile(b"d"), 3) == -1
    assert reader.peek(4) == b"abcd"
    assert reader.read(5) == b"abcde"
    reader.unread(b"de")
    assert (reader.position, reader.read(100)) == (3, b"defghi")
