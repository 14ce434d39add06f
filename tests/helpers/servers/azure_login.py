"""Microsoft Entra ID for tests: gives tokens to a service principal, and lets them into Azurite.

Azurite checks the claims of tokens only over TLS, and never their signatures. So this server takes
its place: it answers the request for a token, and hands requests with that token to Azurite, signed
by a shared access signature.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.servers.azurite import AzuriteServer

TENANT = "tests-tenant"
CLIENT_ID = "tests-client"
# The canary tests look for these in everything that the library says.
CLIENT_SECRET = "canary-client-secret-71c0"
ACCESS_TOKEN = "canary-entra-token-b2d9"


@dataclass(frozen=True, kw_only=True)
class AzureLogin:
    """The address of the server."""

    url: str
    account: str

    @property
    def endpoint_url(self) -> str:
        """The blob service behind it."""
        return f"{self.url}/{self.account}"


@contextlib.contextmanager
def running_login(azure: AzuriteServer) -> Iterator[AzureLogin]:
    """Start a server in front of Azurite, and stop it at the end."""
    front = _Front(("127.0.0.1", 0), _Handler)
    front.inner = urllib.parse.urlsplit(azure.endpoint_url).netloc
    front.signature = azure.sas_token("rwdlc")
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield AzureLogin(url=f"http://127.0.0.1:{front.server_address[1]}", account=azure.account)
    finally:
        front.shutdown()
        front.server_close()


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    inner: str
    signature: str


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Front

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._hand_on()

    def do_HEAD(self) -> None:
        self._hand_on()

    def do_PUT(self) -> None:
        self._hand_on()

    def do_POST(self) -> None:
        if self.path != f"/{TENANT}/oauth2/v2.0/token":
            self._hand_on()
            return
        length = int(self.headers.get("Content-Length", 0))
        given = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
        if (given.get("client_id"), given.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            self._answer(401, {}, b'{"error": "invalid_client"}')
            return
        token = {"access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 3600}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(token).encode())

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {ACCESS_TOKEN}":
            self._answer(401, {}, b"")
            return
        hidden = ("authorization", "host", "connection")
        headers = {n: v for n, v in self.headers.items() if n.lower() not in hidden}
        separator = "&" if "?" in self.path else "?"
        inner = http.client.HTTPConnection(self.server.inner, timeout=60)
        try:
            inner.request(
                self.command, f"{self.path}{separator}{self.server.signature}", body, headers
            )
            response = inner.getresponse()
            content = response.read()
        finally:
            inner.close()
        hidden = ("connection", "transfer-encoding", "date", "content-length")
        found = {n: v for n, v in response.getheaders() if n.lower() not in hidden}
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(response.status, found, content, length=length)

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
