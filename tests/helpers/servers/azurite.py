"""A real Azure blob service for tests: Azurite, Microsoft's emulator, on a free local port.

``from azurite_server import running_azurite`` in a session fixture. The server checks signatures,
byte ranges and entity tags; its data are in memory and go with it. Azurite is a Node package: it is
installed once into the environment of the tests, beside the Python packages.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

AZURITE = "azurite@3.35.0"
ACCOUNT = "lab"
# The canary tests look for this secret in everything that the library says.
ACCOUNT_KEY = base64.b64encode(b"canary-account-key-3e58d1").decode()

_API_VERSION = "2021-08-06"
_INSTALL_SECONDS = 300.0
_START_SECONDS = 60.0


class AzuriteMissingError(RuntimeError):
    """Azurite cannot run on this machine; the text says why."""


@dataclass(frozen=True, kw_only=True)
class AzuriteServer:
    """Where the server listens, and who may use it."""

    endpoint_url: str
    account: str = ACCOUNT
    key: str = ACCOUNT_KEY

    @property
    def storage_options(self) -> dict[str, str]:
        """The ``storage.*`` options that reach this server, without their prefix."""
        return {
            "account_name": self.account,
            "account_key": self.key,
            "endpoint_url": self.endpoint_url,
        }

    @property
    def connection_string(self) -> str:
        """The same in one line, as Azure's portal shows it."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={self.key};"
            f"BlobEndpoint={self.endpoint_url};"
        )

    def new_container(self) -> str:
        """Make an empty container and return its name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        date = email.utils.formatdate(usegmt=True)
        # An emulator has the account in the path, and so twice in what is signed.
        signed = (
            f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{_API_VERSION}\n"
            f"/{self.account}/{self.account}/{name}\nrestype:container"
        )
        headers = {
            "x-ms-date": date,
            "x-ms-version": _API_VERSION,
            "Authorization": f"SharedKey {self.account}:{self._signature(signed)}",
        }
        url = f"{self.endpoint_url}/{name}?restype=container"
        request = urllib.request.Request(url, method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=30):
            return name

    def sas_token(self, permissions: str) -> str:
        """Return a shared access signature for the blobs of the account, for one hour."""
        expiry = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        fields = [self.account, permissions, "b", "co", "", expiry, "", "https,http", "2019-12-12"]
        query = {
            "sv": "2019-12-12",
            "ss": "b",
            "srt": "co",
            "sp": permissions,
            "se": expiry,
            "spr": "https,http",
            "sig": self._signature("\n".join(fields) + "\n"),
        }
        return urllib.parse.urlencode(query)

    def _signature(self, text: str) -> str:
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


@contextlib.contextmanager
def running_azurite() -> Iterator[AzuriteServer]:
    """Start a server, wait until it answers, and stop it at the end.

    Raises
    ------
    AzuriteMissingError
        There is no Node, or npm could not install the package.
    RuntimeError
        The server did not answer in time (with the end of its log).
    """
    node, script = shutil.which("node"), _installed()
    if node is None:
        raise AzuriteMissingError("there is no 'node' on this machine")
    folder = tempfile.mkdtemp(prefix="icechunk-spark-azure-")
    log_path = Path(folder, "server.log")
    port = _free_port()
    command = [node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--inMemoryPersistence", "--extentMemoryLimit", "512"]
    # Azurite trails the newest protocol version that clients send.
    command += ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": folder,
        "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}",
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    try:
        _wait_for_port(port, process, log_path)
        yield AzuriteServer(endpoint_url=f"http://127.0.0.1:{port}/{ACCOUNT}")
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> Path:
    """Return the script that starts the server; install the package if it is not there yet."""
    home = Path(sys.prefix, AZURITE.replace("@", "-"))
    script = Path(home, "node_modules", "azurite", "dist", "src", "blob", "main.js")
    if script.exists():
        return script
    npm = shutil.which("npm")
    if npm is None:
        raise AzuriteMissingError("there is no 'npm' on this machine to install Azurite with")
    # Whole or not at all: an interrupted installation must not look like one.
    partial = Path(tempfile.mkdtemp(prefix="azurite-", dir=sys.prefix))
    command = [npm, "install", "--prefix", str(partial), AZURITE]
    command += ["--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
        if done.returncode != 0:
            raise AzuriteMissingError(f"npm could not install {AZURITE}: {done.stderr[-400:]}")
        with contextlib.suppress(OSError):  # another test run was faster
            partial.rename(home)
    except subprocess.TimeoutExpired:
        raise AzuriteMissingError(
            f"npm did not install {AZURITE} within {_INSTALL_SECONDS:g} s"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return script


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log_path.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"Azurite did not start: {error}\n{tail}") from error
            time.sleep(0.1)
        else:
            return
