"""Bytes of an input file, uncompressed member by member: where each came from, and what is damaged.

A gzip, zstd, bzip2 or xz file is a chain of members (per-record WARC files, `cat a.gz b.gz`). A damaged member costs
itself only: reading goes on at the next sound one. The compression is told by magic bytes, never by the name.
"""

import bz2
import lzma
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, Protocol

import zstandard
from fastwarc.stream_io import Lz4Reader

CHUNK_BYTES = 1 << 20  # uncompressed input read at once
COMPRESSED_CHUNK_BYTES = 1 << 14  # compressed input fed at once: bounds what one call can blow up to
MAX_ZSTD_WINDOW_BYTES = 1 << 31  # `zstd --long=31` is in use for web dumps
CANDIDATE_BYTES = 1 << 20  # a place that looks like a member start is tried on so many bytes: bzip2 has large blocks

LZ4_MAGIC = b"\x04\x22\x4d\x18"

DamageReason = Literal["truncated", "corrupt_member"]


class Decoder(Protocol):
    """What zlib, bz2, lzma and zstandard decompressors share."""

    @property
    def eof(self) -> bool:
        """Whether the member is complete."""

    @property
    def unused_data(self) -> bytes:
        """What was fed beyond the member's end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Uncompressed bytes that `data` completes."""


@dataclass(frozen=True)
class Codec:
    """One compression: its magic bytes, how a decoder is made, what it raises on damage."""

    magic: bytes
    make: Callable[[], Decoder]
    error: type[Exception]


CODECS = (
    Codec(b"\x1f\x8b\x08", lambda: zlib.decompressobj(31), zlib.error),
    Codec(
        b"\x28\xb5\x2f\xfd",
        lambda: zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj(),
        zstandard.ZstdError,
    ),
    Codec(b"BZh", bz2.BZ2Decompressor, OSError),
    Codec(b"\xfd7zXZ\x00", lzma.LZMADecompressor, lzma.LZMAError),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Uncompressed bytes of the member that starts at byte `member` of the file."""

    data: bytes
    member: int


@dataclass(frozen=True, slots=True)
class Damage:
    """The member at byte `member` of the file broke; `error` is the decoder's own words."""

    reason: DamageReason
    member: int
    error: str


def codec_of(head: bytes) -> Codec | None:
    """The compression that a file beginning with `head` has, or None."""
    return next((codec for codec in CODECS if head.startswith(codec.magic)), None)


def read_pieces(file: BinaryIO, start: int = 0, end: int | None = None, record_magic: bytes = b"") -> "Pieces":
    """All pieces of a file, or those of the members in the byte range [start, end).

    With `record_magic`, a range owns the members from its first one that begins with these bytes up to the first such
    member at or after `end`, so that ranges tile a file also where records run over members.
    """
    file.seek(0)
    head = file.read(8)
    if head.startswith(LZ4_MAGIC):
        return _lz4(file) if start == 0 else iter(())
    codec = codec_of(head)
    if codec is None:
        return _plain(file, start, end)
    return _Members(file, codec, record_magic).read(start, end)


Pieces = Iterator[Piece | Damage]


def _plain(file: BinaryIO, start: int, end: int | None) -> Pieces:
    file.seek(start)
    at = start
    while (end is None or at < end) and (data := file.read(CHUNK_BYTES)):
        data = data if end is None else data[: end - at]
        yield Piece(data, 0)
        at += len(data)


def _lz4(file: BinaryIO) -> Pieces:
    file.seek(0)
    reader = Lz4Reader(file)
    try:
        while data := reader.read(CHUNK_BYTES):
            yield Piece(data, 0)
    except OSError as error:
        yield Damage("corrupt_member", 0, str(error))


class _Members:
    """Walks the members of one compressed file."""

    def __init__(self, file: BinaryIO, codec: Codec, record_magic: bytes) -> None:
        self.file, self.codec, self.record_magic = file, codec, record_magic

    def read(self, start: int, end: int | None) -> Pieces:
        at = start if start == 0 else self._next_member(start, end)
        while at is not None:
            if end is not None and at >= end and self._opens_record(at):
                return
            self.file.seek(at)
            head = self.file.read(len(self.codec.magic))
            if not head.strip(b"\0") and self._only_padding(at):
                return
            at = yield from self._member(at, head)

    def _member(self, at: int, head: bytes) -> Generator[Piece | Damage, None, int | None]:
        """Pieces of one member; returns where the next one starts, None at the end."""
        decoder = self.codec.make()
        fed = at + len(head)
        try:
            if not self.codec.magic.startswith(head):
                raise self.codec.error("no member starts here")
            data = decoder.decompress(head)
            while not decoder.eof:
                if data:
                    yield Piece(data, at)
                chunk = self.file.read(COMPRESSED_CHUNK_BYTES)
                if not chunk:
                    yield Damage("truncated", at, "the file ends inside a compressed member")
                    return self._next_member(at + 1)  # damage can make a decoder run over all that follows
                fed += len(chunk)
                data = decoder.decompress(chunk)
            if data:
                yield Piece(data, at)
        except self.codec.error as error:
            yield Damage("corrupt_member", at, str(error))
            return self._next_member(at + 1)
        following = fed - len(decoder.unused_data)
        self.file.seek(following)
        return following if self.file.read(1) else None

    def _only_padding(self, at: int) -> bool:
        """Whether nothing but zero bytes follows (tar and tape blocks leave them)."""
        self.file.seek(at)
        while chunk := self.file.read(CHUNK_BYTES):
            if chunk.strip(b"\0"):
                return False
        return True

    def _next_member(self, start: int, end: int | None = None) -> int | None:
        """The first place in [start, end) where a member begins that decodes (and opens a record)."""
        magic = re.compile(re.escape(self.codec.magic))
        overlap = len(self.codec.magic) - 1
        at = start
        while end is None or at < end:
            self.file.seek(at)
            chunk = self.file.read(CHUNK_BYTES)
            for found in magic.finditer(chunk):
                if end is not None and at + found.start() >= end:
                    return None
                if self._opens_record(at + found.start()):
                    return at + found.start()
            if len(chunk) <= overlap:
                return None
            at += len(chunk) - overlap
        return None

    def _opens_record(self, at: int) -> bool:
        self.file.seek(at)
        decoder = self.codec.make()
        data, left = b"", CANDIDATE_BYTES
        try:
            while not data and not decoder.eof and left > 0 and (chunk := self.file.read(COMPRESSED_CHUNK_BYTES)):
                data = decoder.decompress(chunk)
                left -= len(chunk)
        except self.codec.error:
            return False
        return data.startswith(self.record_magic) if self.record_magic else bool(data) or decoder.eof


class ByteReader:
    """Reads pieces as one stream up to the next damage; `position` counts uncompressed bytes.

    After the end, `damage` says what broke there (None: the real end); `resume` goes on behind it.
    """

    def __init__(self, pieces: Pieces, position: int = 0) -> None:
        self._pieces = pieces
        self._buffer = bytearray()
        self._ended = False
        self._starts: list[int] = []  # uncompressed offset at which each member starts, newest last
        self._members: list[int] = []
        self.position = position
        self._received = position
        self.damage: Damage | None = None

    def fill(self, size: int) -> int:
        """Hold at least `size` bytes in the buffer where there are as many; returns how many are held."""
        while len(self._buffer) < size and not self._ended:
            piece = next(self._pieces, None)
            if isinstance(piece, Piece):
                self._note_member(piece.member)
                self._buffer += piece.data
                self._received += len(piece.data)
            else:
                self._ended, self.damage = True, piece
        return len(self._buffer)

    def _note_member(self, member: int) -> None:
        if not self._members or self._members[-1] != member:
            keep = max(0, bisect_right(self._starts, self.position) - 1)
            self._starts[:keep], self._members[:keep] = [], []
            self._starts.append(self._received)
            self._members.append(member)

    def place(self, position: int) -> tuple[int, int]:
        """(byte of the file at which the member starts, uncompressed bytes into it) of a position still held."""
        index = bisect_right(self._starts, position) - 1
        return (self._members[index], position - self._starts[index]) if index >= 0 else (0, position)

    def peek(self, size: int) -> bytes:
        """The next bytes, without taking them; fewer only before the end or a damage."""
        self.fill(size)
        return bytes(self._buffer[:size])

    def read(self, size: int) -> bytes:
        """Take bytes; fewer only before the end or a damage."""
        self.fill(size)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        """Pass over bytes without holding them; returns how many there were."""
        left = size
        while left and (held := self.fill(1)):
            step = min(held, left)
            del self._buffer[:step]
            self.position += step
            left -= step
        return size - left

    def unread(self, data: bytes) -> None:
        """Put bytes back that were just read."""
        self._buffer[:0] = data
        self.position -= len(data)

    def search(self, pattern: re.Pattern[bytes], limit: int) -> int:
        """Distance of the next match of `pattern` within `limit` bytes, or -1."""
        self.fill(limit)
        found = pattern.search(self._buffer, 0, limit)
        return found.start() if found else -1

    def resume(self) -> None:
        """Go on behind the damage."""
        self.position += len(self._buffer)
        self._buffer.clear()
        self._ended, self.damage = False, None
