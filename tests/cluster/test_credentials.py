"""Named credentials on a cluster, classic and over Spark Connect: no file or page shows them.

Searched are the logs of driver, server, master and executors, the event log and what Spark's UI and
its history server make of it, plans, errors, checkpoints, warehouse, scratch folders and stored
objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import obstore
import pyspark
import pytest
from helpers.servers.s3 import SECRET_KEY, running_s3_server
from helpers.spark.credential_programs import (
    CLASSIC,
    CONNECT,
    PATIENT,
    WRONG_SECRET,
    environment_without_credentials,
    running,
    search,
)

CANARIES = (SECRET_KEY, WRONG_SECRET)
PAGES = ("environment", "jobs", "stages?details=true", "sql?details=true&length=1000", "logs")
SECONDS = 300.0

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def store():
    with running_s3_server() as server:
        yield server


@contextlib.contextmanager
def spark_program(command, environment, log, folder):
    """Run one of Spark's own programs, and stop it at the end."""
    home = Path(pyspark.__file__).parent
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(home / "bin" / command[0]), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "SPARK_HOME": str(home)},
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answer(url):
    """Return a page of a server that may still start."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return response.read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def keep_pages(url, folder):
    """Store what the REST API of a UI shows of its only application."""
    deadline = time.monotonic() + SECONDS
    while not (found := json.loads(answer(f"{url}/api/v1/applications"))):
        assert time.monotonic() < deadline
        time.sleep(1)
    folder.mkdir()
    for page in PAGES:
        if page != "logs" or "history" in folder.name:
            content = answer(f"{url}/api/v1/applications/{found[0]['id']}/{page}")
            (folder / page.partition("?")[0]).write_bytes(content)


def keep_history(folder):
    """Store the pages of a history server."""
    environment, port = environment_without_credentials(folder), free_port()
    settings = {"fs.logDirectory": (folder / "events").as_uri(), "ui.port": port}
    options = [f"-Dspark.history.{name}={value}" for name, value in settings.items()]
    environment["SPARK_HISTORY_OPTS"] = " ".join(options)
    command = ["spark-class", "org.apache.spark.deploy.history.HistoryServer"]
    with spark_program(command, environment, folder / "history.txt", folder):
        keep_pages(f"http://127.0.0.1:{port}", folder / "pages-of-history")


def check(folder, cluster, store, path):
    events = b"".join(f.read_bytes() for f in (folder / "events").rglob("*") if f.is_file())
    assert b"SparkListenerSQLExecutionStart" in events
    assert path.encode() in events
    keep_history(folder)
    assert b"configured.access.key" in (folder / "pages-of-history" / "environment").read_bytes()
    found = search([folder, cluster.folder], CANARIES)
    bucket = store.raw_store(path.split("/")[2])
    objects = [item["path"] for page in obstore.list(bucket) for item in page]
    size = 0
    for key in objects:
        data = bytes(obstore.get(bucket, key).bytes())
        assert not any(canary.encode() in data for canary in CANARIES), key
        size += len(data)
    assert len(objects) > 10
    print(
        f"searched {found.files} files of {found.bytes:,} bytes, {len(objects)} objects of {size:,}"
    )


def test_classic(cluster, store, tmp_path):
    path = f"s3://{store.new_bucket()}/named"
    with running(CLASSIC, tmp_path, path, store.storage_options, cluster.master_url):
        search([tmp_path, cluster.folder], CANARIES)
    check(tmp_path, cluster, store, path)


def test_connect(cluster, store, tmp_path):
    path = f"s3://{store.new_bucket()}/named"
    (tmp_path / "events").mkdir()
    good, port, ui = store.storage_options, free_port(), free_port()
    settings = {
        **PATIENT,
        "spark.master": cluster.master_url,
        "spark.connect.grpc.binding.port": port,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
        "spark.ui.port": ui,
        "spark.log.level": "INFO",
        **{
            f"spark.icechunk.credentials.configured.{name}": value
            for name, value in good.items()
            if name != "key"
        },
        "spark.icechunk.credentials.configured.access.key": good["key"],
    }
    # Outside of the folder that is searched, as it holds them.
    file = tmp_path.parent / f"{tmp_path.name}.conf"
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environment = environment_without_credentials(tmp_path)
    environment["PYSPARK_PYTHON"] = sys.executable
    environment |= {f"ICECHUNK_CREDENTIALS__SERVED__{n.upper()}": v for n, v in good.items()}
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["spark-submit", "--properties-file", str(file), "--class", server, "spark-internal"]
    log = tmp_path / "server.txt"
    with spark_program(command, environment, log, tmp_path) as process:
        deadline = time.monotonic() + SECONDS
        while "Spark Connect server started" not in log.read_text():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(1)
        with running(CONNECT, tmp_path, path, store.storage_options, f"sc://127.0.0.1:{port}"):
            keep_pages(f"http://127.0.0.1:{ui}", tmp_path / "pages")
            search([tmp_path, cluster.folder], CANARIES)
    check(tmp_path, cluster, store, path)
