"""A stored HTTP response to its body: status, headers, chunks joined, content decoded.

Archives are loose with these headers: many store the body already joined or decoded and leave the header. So what does
not look encoded is taken as it is, and a body that breaks off in the middle gives what it had.
"""

import io
import re
import zlib
from dataclasses import dataclass

from fastwarc.stream_io import BrotliReader

HEAD_END = re.compile(rb"\r?\n\r?\n")
STATUS = re.compile(rb"HTTP/[\d.]+\s+(\d{3})", re.IGNORECASE)
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
BROTLI_STEP_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `note` names what was wrong with its body, if anything was."""

    status: int
    content_type: str
    charset_label: str | None
    body: bytes
    note: str | None = None


def parse_response(block: bytes, limit_bytes: int) -> Response | None:
    """The response in a record's block, its body decoded up to `limit_bytes` and one more; None when it is no HTTP."""
    status = STATUS.match(block)
    if not status:
        return None
    end = HEAD_END.search(block)
    headers = parse_headers(block[: end.start()] if end else block)
    body = block[end.end() :] if end else b""
    notes = []
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body, note = join_chunks(body)
        notes.append(note)
    # what was applied last comes off first
    for coding in reversed(f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".split(",")):
        body, note = decode_content(body, coding.strip().lower(), limit_bytes)
        notes.append(note)
    content_type = headers.get("content-type", "")
    found = CHARSET.search(content_type)
    return Response(
        int(status.group(1)),
        content_type.split(";")[0].strip().lower(),
        found.group(1) if found else None,
        body,
        "; ".join(note for note in notes if note) or None,
    )


def parse_headers(head: bytes) -> dict[str, str]:
    """Header fields by lower-case name; the first of several counts, continued lines are joined."""
    fields: dict[str, str] = {}
    name = ""
    for line in head.decode("utf-8", "replace").splitlines():
        if line[:1] in (" ", "\t") and name:
            fields[name] = f"{fields[name]} {line.strip()}".strip()
            continue
        key, colon, value = line.partition(":")
        if colon:
            name = key.strip().lower()
            fields.setdefault(name, value.strip())
    return fields


def join_chunks(body: bytes) -> tuple[bytes, str | None]:
    """The chunks of a body joined; a body without chunks is returned as it is."""
    chunks: list[bytes] = []
    at = 0
    while size := CHUNK_SIZE.match(body, at):
        length = int(size.group(1), 16)
        if length == 0:
            return b"".join(chunks), None
        chunks.append(body[size.end() : size.end() + length])
        at = size.end() + length
        if at > len(body):
            return b"".join(chunks), "chunks cut off"
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
    if not chunks:
        return body, "not chunked"
    return b"".join([*chunks, body[at:]]), "bad chunk" if at < len(body) else "chunks cut off"


def decode_content(body: bytes, coding: str, limit_bytes: int) -> tuple[bytes, str | None]:
    """A body decoded; as it is where the coding is none, unknown, or already undone."""
    if coding in ("gzip", "x-gzip", "deflate"):
        for window in (31,) if coding != "deflate" else (15, -15):  # deflate: zlib by the standard, raw in practice
            decoded, note = _inflate(body, window, limit_bytes)
            if decoded:
                return decoded, note
        return body, f"not {coding}" if body else None
    if coding == "br":
        return _unbrotli(body, limit_bytes)
    return body, None


def _inflate(body: bytes, window: int, limit_bytes: int) -> tuple[bytes, str | None]:
    decoder = zlib.decompressobj(window)
    try:
        decoded = decoder.decompress(body, limit_bytes + 1)
    except zlib.error:
        return _inflate_slowly(body, window, limit_bytes), "corrupt content"
    return decoded, None if decoder.eof or len(decoded) > limit_bytes else "content cut off"


def _inflate_slowly(body: bytes, window: int, limit_bytes: int) -> bytes:
    """What comes before the damage: zlib gives nothing of a call that fails, so feed little by little."""
    decoder, decoded = zlib.decompressobj(window), bytearray()
    try:
        for at in range(0, len(body), 64):
            decoded += decoder.decompress(body[at : at + 64])
            if len(decoded) > limit_bytes:
                break
    except zlib.error:
        pass
    return bytes(decoded)


def _unbrotli(body: bytes, limit_bytes: int) -> tuple[bytes, str | None]:
    reader, decoded = BrotliReader(io.BytesIO(body)), bytearray()
    try:
        while len(decoded) <= limit_bytes and (chunk := reader.read(BROTLI_STEP_BYTES)):
            decoded += chunk
    except OSError:
        return (bytes(decoded), "content cut off") if decoded else (body, "not br")
    return bytes(decoded), None
