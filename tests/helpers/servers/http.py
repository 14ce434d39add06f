"""A small HTTP server in this process that misbehaves on demand, for storage tests.

It keeps objects by path, knows byte ranges and the conditions of S3, and does what ``faults`` say
before it answers: each fault is taken by one request, in order. With ``chance`` and ``rate``, other
requests meet faults at random; ``deny`` says which requests are not permitted (any more),
``deny_key`` the same by the access key that signed them, and ``clock`` what time it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What to do to one request.

    Attributes
    ----------
    status, code
        Answer with this status and S3 error code.
    drop
        Close the connection without an answer: ``"before"`` or ``"after"`` doing what was asked.
    cut
        Send only so many bytes of the body that was announced.
    method
        Only for requests of this method; others pass.
    delay
        Seconds to wait first.
    """

    status: int | None = None
    code: str = "InternalError"
    drop: str | None = None
    cut: int | None = None
    method: str | None = None
    delay: float = 0.0


RANDOM_FAULTS = (
    Fault(status=503, code="SlowDown"),
    Fault(status=500),
    Fault(drop="before"),
    Fault(drop="after"),
    Fault(cut=3),
    Fault(delay=0.05),
)


@dataclass
class MisbehavingServer:
    """The server's objects, its faults, and the requests that it has seen."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    parts: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    chance: random.Random | None = None
    rate: float = 0.0
    deny: Callable[[str, str], bool] = lambda method, path: False
    deny_key: Callable[[str, str], bool] = lambda access_key, path: False
    clock: Callable[[], float] = lambda: 0.0

    def take_fault(self, method: str) -> Fault:
        with self.lock:
            for fault in self.faults:
                if fault.method in (None, method):
                    self.faults.remove(fault)
                    return fault
            if self.chance is not None and self.chance.random() < self.rate:
                return self.chance.choice(RANDOM_FAULTS)
        return Fault()

    def count(self, method: str) -> int:
        """Return how many requests of a method came."""
        return sum(seen == method for seen, _ in self.requests)


def _handler(server: Callable[[], MisbehavingServer]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Heads and bodies are written apart: a client would wait 40 ms for the second one.
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def handle_one(self):
            state = server()
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with state.lock:
                state.requests.append((self.command, path))
            signed = re.search(r"Credential=([^/]*)/", self.headers.get("Authorization") or "")
            if state.deny(self.command, path) or state.deny_key(signed[1] if signed else "", path):
                self.answer(403, _error_body("AccessDenied"))
                return
            fault = state.take_fault(self.command)
            time.sleep(fault.delay)
            if fault.drop == "before":
                self.close_connection = True
                return
            if fault.status is not None:
                self.answer(fault.status, _error_body(fault.code))
                return
            with state.lock:
                status, headers, content = self.act(state.objects, path, body)
            if fault.drop == "after":
                self.close_connection = True
                return
            self.answer(status, content, headers, cut=fault.cut)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_one

        def act(self, objects, path, body):
            current = objects.get(path)
            query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            if "uploads" in query or "uploadId" in query:
                return self.upload_in_parts(objects, path, query, body)
            if self.command == "PUT":
                wanted = self.headers.get("If-Match")
                # As S3 does: entity tags are compared without their quotes.
                if (
                    wanted and (current is None or wanted.strip('"') != etag(current).strip('"'))
                ) or (self.headers.get("If-None-Match") and current is not None):
                    return 412, {}, _error_body("PreconditionFailed")
                source = self.headers.get("x-amz-copy-source")
                if source is not None:
                    return self.copy(objects, "/" + unquote(source).lstrip("/"), path)
                objects[path] = _without_chunk_signatures(self.headers, body)
                return 200, {"ETag": etag(objects[path])}, b""
            if self.command == "POST" and "delete" in query:
                gone = re.findall(r"<Key>([^<]*)</Key>", body.decode())
                for key in gone:
                    objects.pop(f"{path.rstrip('/')}/{key}", None)
                named = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
                text = f"<DeleteResult>{named}</DeleteResult>"
                return 200, {"Content-Type": "application/xml"}, text.encode()
            if "list-type" in query:
                return self.listing(objects, path.rstrip("/"), query.get("prefix", [""])[0])
            if current is None:
                return 404, {}, _error_body("NoSuchKey")
            headers = {
                "ETag": etag(current),
                "Last-Modified": formatdate(server().clock(), usegmt=True),
            }
            wanted = self.headers.get("Range")
            if wanted is None:
                return 200, headers, current
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            if not first:
                start, stop = max(len(current) - int(last), 0), len(current)
            else:
                start = int(first)
                stop = min(int(last) + 1, len(current)) if last else len(current)
            if start >= len(current):
                return 416, headers, _error_body("InvalidRange")
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(current)}"
            return 206, headers, current[start:stop]

        def listing(self, objects, bucket, prefix):
            now = datetime.fromtimestamp(server().clock(), UTC)
            found = "".join(
                f"<Contents><Key>{key.removeprefix(f'{bucket}/')}</Key><Size>{len(data)}</Size>"
                f"<LastModified>{now:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                f"<ETag>{etag(data)}</ETag></Contents>"
                for key, data in sorted(objects.items())
                if key.startswith(f"{bucket}/{prefix}")
            )
            whole = f"<IsTruncated>false</IsTruncated><KeyCount>{found.count('<Key>')}</KeyCount>"
            text = f"<ListBucketResult>{whole}<Prefix>{prefix}</Prefix>{found}</ListBucketResult>"
            return 200, {"Content-Type": "application/xml"}, text.encode()

        def upload_in_parts(self, objects, path, query, body):
            """Keep parts aside until the upload is completed."""
            parts = server().parts
            name = query.get("uploadId", [str(len(parts))])[0]
            held = parts.setdefault((path, name), {})
            if "uploads" in query:
                told = f"<UploadId>{name}</UploadId>"
                text = f"<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>"
            elif self.command == "PUT":
                data = _without_chunk_signatures(self.headers, body)
                held[int(query["partNumber"][0])] = data
                return 200, {"ETag": etag(data)}, b""
            elif self.command == "DELETE":
                held.clear()
                return 204, {}, b""
            else:
                objects[path] = b"".join(data for _, data in sorted(held.items()))
                told = f"<ETag>{etag(objects[path])}</ETag>"
                text = f"<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>"
            return 200, {"Content-Type": "application/xml"}, text.encode()

        def copy(self, objects, source, target):
            found = objects.get(source)
            if found is None:
                return 404, {}, _error_body("NoSuchKey")
            wanted = self.headers.get("x-amz-copy-source-if-match")
            if wanted and wanted.strip('"') != etag(found).strip('"'):
                return 412, {}, _error_body("PreconditionFailed")
            objects[target] = found
            result = f"<ETag>{etag(found)}</ETag><LastModified>2024-07-01T00:00:00Z</LastModified>"
            return 200, {}, f"<CopyObjectResult>{result}</CopyObjectResult>".encode()

        def answer(self, status, content, headers=None, cut=None):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content if cut is None else content[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


def etag(data: bytes) -> str:
    """Return the entity tag of an object, with its quotes."""
    return f'"{hashlib.md5(data).hexdigest()}"'


def _without_chunk_signatures(headers, body: bytes) -> bytes:
    """Take AWS's chunked encoding off, which botocore uses for checksums."""
    if "aws-chunked" not in (headers.get("Content-Encoding") or ""):
        return body
    result = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        result += rest[:length]
        body = rest[length + 2 :]
    return result


def _error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as the test wanted</Message></Error>".encode()


@contextlib.contextmanager
def misbehaving_server() -> Iterator[MisbehavingServer]:
    """Run the server on a free port until the block ends."""
    states: list[MisbehavingServer] = []
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: states[0]))
    httpd.daemon_threads = True
    states.append(MisbehavingServer(url=f"http://127.0.0.1:{httpd.server_port}"))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield states[0]
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
