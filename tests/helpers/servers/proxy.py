"""A proxy in front of an S3 server that is as unreliable as storage at its limits.

It throttles reads and writes of each folder as S3 does, resets and stalls connections, loses
answers, sends a write twice and returns the second answer (as clients and load balancers that
repeat do), cuts bodies, lets keys expire and has a clock of its own. ``seen`` has each request with
its outcome; no request is lost in counting.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from helpers.servers.s3 import S3Server

TOLERATED = 900
"""Seconds by which the clock of a client may differ, as on S3."""


class Trouble(Enum):
    """Ways in which the proxy treats a request."""

    SLOW_DOWN = "503 SlowDown, and nothing is done"
    BROKEN = "500 InternalError, and nothing is done"
    RESET = "the connection is reset before the request arrives"
    STALL = "the request arrives, and no answer comes for as long as the client waits"
    LOST = "the request is carried out, and the connection is reset before the answer"
    TWICE = "the request is carried out twice, and the second answer is returned"
    CUT = "the body of the answer ends too early"
    SOME_REFUSED = "a deletion of many objects reports SlowDown for half of them"


RANDOM = tuple(Trouble)


@dataclass(frozen=True)
class Seen:
    """A request, and its outcome: a status, or the trouble that it met."""

    method: str
    path: str
    outcome: str


@dataclass
class Bucket:
    """Tokens for requests, which come back with time."""

    rate: float
    left: float
    at: float

    def take(self, now: float, tokens: int, most: float) -> bool:
        self.left = min(most, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= tokens
        return True


@dataclass
class Proxy:
    """The proxy's address, its limits and faults, and the requests that it has seen.

    Parameters
    ----------
    limits
        Reads and writes in a second that a folder allows; None for no limit.
    burst
        Seconds of the limit that a folder which rested allows at once.
    troubles
        The next requests for which ``meets`` is True have these troubles, in order.
    chance, rate
        Decides which other requests have one of ``RANDOM``.
    expired
        Keys of access that have expired.
    skew
        Seconds by which the clock of the server is ahead.
    stall_seconds
        Seconds after which a stalled connection is closed.
    """

    server: S3Server
    upstream: tuple[str, int]
    limits: tuple[float, float] | None = None
    burst: float = 0.2
    troubles: list[Trouble] = field(default_factory=list)
    meets: Callable[[str, str], bool] = lambda method, path: True
    chance: random.Random | None = None
    rate: float = 0.0
    kinds: tuple[Trouble, ...] = RANDOM
    expired: set[str] = field(default_factory=set)
    skew: float = 0.0
    stall_seconds: float = 5.0
    seen: list[Seen] = field(default_factory=list)
    _buckets: dict[tuple[str, bool], Bucket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, method: str, path: str, outcome: object) -> None:
        with self._lock:
            self.seen.append(Seen(method, path, str(outcome)))

    def met(self, outcome: object) -> int:
        """Return how many requests had an outcome."""
        return sum(one.outcome == str(outcome) for one in self.seen)

    def trouble_of(self, method: str, path: str) -> Trouble | None:
        with self._lock:
            if self.troubles and self.meets(method, path):
                return self.troubles.pop(0)
            if self.chance is not None and self.chance.random() < self.rate:
                return self.chance.choice(self.kinds)
        return None

    def is_over_limit(self, method: str, path: str, tokens: int) -> bool:
        if self.limits is None:
            return False
        writes = method not in ("GET", "HEAD")
        limit = self.limits[writes]
        with self._lock:
            now = time.monotonic()
            key = path.rpartition("/")[0], writes
            bucket = self._buckets.setdefault(key, Bucket(limit, limit * self.burst, now))
            return not bucket.take(now, tokens, limit * self.burst)


def _handler(proxy: Proxy) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        upstream: http.client.HTTPConnection | None = None

        def log_message(self, *_):
            pass

        def handle_one(self):
            with contextlib.suppress(ConnectionError):
                self.serve()

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_one

        def serve(self):
            method, path = self.command, unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            deletes = body.count(b"<Key>") if method == "POST" and "delete" in self.query() else 0
            refusal = self.refusal()
            if refusal is not None:
                proxy.note(method, path, refusal[1])
                self.answer_error(*refusal)
                return
            trouble = proxy.trouble_of(method, path)
            # Nothing but deletions of many objects has parts that can be refused.
            if trouble is Trouble.SOME_REFUSED and not deletes:
                trouble = None
            if trouble is None and proxy.is_over_limit(method, path, max(1, deletes)):
                trouble = Trouble.SLOW_DOWN
            if trouble is Trouble.SLOW_DOWN:
                proxy.note(method, path, trouble)
                self.answer_error(503, "SlowDown")
            elif trouble is Trouble.BROKEN:
                proxy.note(method, path, trouble)
                self.answer_error(500, "InternalError")
            elif trouble in (Trouble.RESET, Trouble.STALL):
                proxy.note(method, path, trouble)
                if trouble is Trouble.STALL:
                    self.wait_for_client()
                self.reset()
            else:
                answer = self.forwarded(body)
                if trouble is Trouble.TWICE:
                    answer = self.forwarded(body)
                proxy.note(method, path, trouble or answer[0])
                if trouble is Trouble.LOST:
                    self.reset()
                elif trouble is Trouble.SOME_REFUSED:
                    self.answer(*_with_some_refused(body, *answer))
                else:
                    self.answer(*answer, cut=trouble is Trouble.CUT)

        def query(self):
            return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

        def refusal(self):
            """Return status and code for expired keys and requests from another time."""
            signed = self.headers.get("Authorization") or ""
            if any(f"Credential={key}/" in signed for key in proxy.expired):
                return 400, "ExpiredToken"
            sent = self.headers.get("x-amz-date")
            if sent is not None:
                at = datetime.strptime(sent, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
                if abs(time.time() + proxy.skew - at) > TOLERATED:
                    return 403, "RequestTimeTooSkewed"
            return None

        def forwarded(self, body):
            """Return status, headers and body of the server behind."""
            for is_last in (False, True):
                if self.upstream is None:
                    self.upstream = http.client.HTTPConnection(*proxy.upstream)
                try:
                    self.upstream.request(self.command, self.path, body, dict(self.headers))
                    response = self.upstream.getresponse()
                    content = response.read()
                except (http.client.HTTPException, OSError):
                    self.upstream.close()
                    self.upstream = None
                    if is_last:
                        raise
                else:
                    break
            skipped = ("transfer-encoding", "connection", "date", "server")
            headers = {k: v for k, v in response.getheaders() if k.lower() not in skipped}
            if proxy.skew and "Last-Modified" in headers:
                at = parsedate_to_datetime(headers["Last-Modified"])
                at += timedelta(seconds=proxy.skew)
                headers["Last-Modified"] = format_datetime(at, usegmt=True)
            return response.status, headers, content

        def answer(self, status, headers, content, *, cut=False):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() != "content-length" or self.command == "HEAD":
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if cut and content:
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
            else:
                self.wfile.write(content)

        def answer_error(self, status, code):
            text = f"<Error><Code>{code}</Code><Message>as at a limit</Message></Error>"
            self.answer(status, {"Content-Type": "application/xml"}, text.encode())

        def wait_for_client(self):
            """Wait until the client closes the connection, or for the time of a stall."""
            self.connection.settimeout(proxy.stall_seconds)
            with contextlib.suppress(OSError):
                self.connection.recv(1)

        def reset(self):
            """Close the connection with a reset instead of an orderly end."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def finish(self):
            with contextlib.suppress(OSError):
                super().finish()
            if self.upstream is not None:
                self.upstream.close()

    return Handler


def _with_some_refused(body, status, headers, content):
    """Return an answer to a deletion that reports each second object as throttled."""
    keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())[::2]
    refused = "".join(
        f"<Error><Key>{key}</Key><Code>SlowDown</Code><Message>as at a limit</Message></Error>"
        for key in keys
    )
    text = content.decode()
    for key in keys:
        text = re.sub(rf"<Deleted>\s*<Key>{re.escape(key)}</Key>.*?</Deleted>", "", text)
    return status, headers, text.replace("</DeleteResult>", f"{refused}</DeleteResult>").encode()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request, client_address):
        """Ignore connections that clients closed."""


@contextlib.contextmanager
def running_proxy(server: S3Server) -> Iterator[Proxy]:
    """Run a proxy in front of a server until the block ends."""
    parts = urlsplit(server.endpoint_url)
    httpd = _Server(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    url = f"http://127.0.0.1:{httpd.server_port}"
    upstream = str(parts.hostname), int(parts.port or 80)
    proxy = Proxy(replace(server, endpoint_url=url), upstream)
    httpd.RequestHandlerClass = _handler(proxy)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
