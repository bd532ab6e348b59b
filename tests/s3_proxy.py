"""A proxy before the S3 server of the tests: passes requests on, and answers 503 where it is told to refuse."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "date", "server"}


class S3Proxy(ThreadingHTTPServer):
    """`refuses(method, path)` decides for each request; `refused` counts."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.refuses: Callable[[str, str], bool] = lambda method, path: False
        self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.refuses(self.command, self.path):
            self.server.refused += 1
            self._answer(503, {}, b"<Error><Code>ServiceUnavailable</Code><Message>try again</Message></Error>")
            return
        upstream = http.client.HTTPConnection(self.server.target, timeout=30)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        response = upstream.getresponse()
        self._answer(response.status, dict(response.getheaders()), response.read())
        upstream.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is for the test."""


@contextmanager
def s3_proxy_to(target: str) -> Iterator[S3Proxy]:
    """A running proxy to an endpoint."""
    proxy = S3Proxy(target)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
