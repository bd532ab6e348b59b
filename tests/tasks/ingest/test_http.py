"""Stored HTTP responses: what is encoded is decoded, what only claims to be is taken as it is."""

import gzip
import io
import zlib

import pytest
from fastwarc.stream_io import BrotliWriter

from tasks.ingest.http import decode_content, join_chunks, parse_headers, parse_response

BODY = b"<html><body>hello, world</body></html>" * 20
LIMIT = 1 << 20


def chunked(body: bytes, size: int, end: bytes = b"0\r\n\r\n") -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;name=v\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("fields", "stored", "note"),
    [
        ("Server: x", BODY, None),
        ("Transfer-Encoding: chunked", chunked(BODY, 100), None),
        ("Transfer-Encoding: chunked", chunked(BODY, 100).replace(b"\r\n", b"\n"), None),
        ("Transfer-Encoding: chunked", BODY, "not chunked"),
        ("Transfer-Encoding: chunked", chunked(BODY, 100, end=b""), "chunks cut off"),
        ("Content-Encoding: gzip", gzip.compress(BODY), None),
        ("Content-Encoding: GZIP", gzip.compress(BODY), None),
        ("Content-Encoding: gzip", BODY, "not gzip"),
        ("Content-Encoding: deflate", zlib.compress(BODY), None),
        ("Content-Encoding: deflate", raw_deflate(BODY), None),
        ("Content-Encoding: identity", BODY, None),
        ("Content-Encoding: unheard-of", BODY, None),
        ("Content-Encoding: deflate, gzip", gzip.compress(zlib.compress(BODY)), None),
        ("Transfer-Encoding: gzip, chunked", chunked(gzip.compress(BODY), 50), None),
        ("Content-Encoding: gzip\r\nTransfer-Encoding: chunked", chunked(gzip.compress(BODY), 50), None),
        ("Content-Encoding: br", BODY, "not br"),
    ],
)
def test_bodies_are_decoded(fields: str, stored: bytes, note: str | None) -> None:
    block = f'HTTP/1.1 200 OK\r\n{fields}\r\nContent-Type: Text/HTML; Charset="UTF-8"\r\n\r\n'.encode() + stored
    response = parse_response(block, LIMIT)
    assert response is not None
    assert (response.status, response.content_type, response.charset_label) == (200, "text/html", "UTF-8")
    assert response.body == BODY
    assert response.note == note


def test_brotli() -> None:
    file = io.BytesIO()
    with BrotliWriter(file) as writer:
        writer.write(BODY)
    packed = file.getvalue()
    assert decode_content(packed, "br", LIMIT) == (BODY, None)
    decoded, note = decode_content(packed[:-2], "br", LIMIT)
    assert (BODY.startswith(decoded) and note == "content cut off") or (decoded, note) == (packed[:-2], "not br")


def test_a_cut_or_corrupt_body_gives_what_it_had() -> None:
    packed = gzip.compress(bytes(range(256)) * 100)
    decoded, note = decode_content(packed[: len(packed) // 2], "gzip", LIMIT)
    assert (bytes(range(256)) * 100).startswith(decoded)
    assert note == "content cut off"
    noise = gzip.compress(b"".join(str(n * n).encode() for n in range(5_000)))
    decoded, note = decode_content(noise[:3_000] + b"\xff" * 300 + noise[3_300:], "gzip", LIMIT)
    assert decoded.startswith(b"0149162536")
    assert note == "corrupt content"


def test_a_bomb_is_stopped_just_above_the_limit() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    decoded, note = decode_content(bomb, "gzip", LIMIT)
    assert (len(decoded), note) == (LIMIT + 1, None)


@pytest.mark.parametrize("block", [b"", b"GET / HTTP/1.1\r\n\r\n", b"<html>", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_response(block: bytes) -> None:
    assert parse_response(block, LIMIT) is None


def test_a_response_without_body_or_header_end() -> None:
    response = parse_response(b"HTTP/1.0 404 Not Found\r\nContent-Type: text/plain", LIMIT)
    assert response is not None
    assert (response.status, response.content_type, response.body) == (404, "text/plain", b"")


def test_bad_chunks_keep_what_is_there() -> None:
    assert join_chunks(b"3\r\nabc\r\nzz\r\nrest") == (b"abczz\r\nrest", "bad chunk")
    assert join_chunks(b"5\r\nab") == (b"ab", "chunks cut off")
    assert join_chunks(b"") == (b"", "not chunked")


def test_headers_fold_and_repeat() -> None:
    head = b"WARC/1.0\r\nA:\r\n 1\r\nB: two\r\n\tthree\r\nb: other\r\nno colon\r\nC:\xff:x"
    assert parse_headers(head) == {"a": "1", "b": "two three", "c": "\ufffd:x"}
