"""Starts a real standalone cluster on loopback: one master and two workers of pip's pyspark."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from helpers.spark.session import environment_of_a_program

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_SECONDS = 240


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_reference: builds its repositories with the icechunk and zarr wheels"
    )


@dataclass
class Cluster:
    """A running cluster; ``workers`` are the processes that the tests may kill."""

    master_url: str
    web_port: int
    environment: dict[str, str]
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_workers(self) -> None:
        """Start what is missing of two workers, and wait for them."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 2:
            name = f"worker-{secrets.token_hex(4)}"
            # Spark never runs two attempts of a task on one host, so each worker has its own.
            hosts = {_host_of(worker) for worker in self.workers}
            host = min({"127.0.0.1", "127.0.0.2"} - hosts)
            self.workers.append(
                _spark_class(
                    "worker.Worker",
                    "--host",
                    host,
                    "--webui-port",
                    "0",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(self.folder / name),
                    self.master_url,
                    environment={**self.environment, "SPARK_LOCAL_IP": host},
                    log=self.folder / f"{name}.log",
                )
            )
        self.wait_for(2)

    def alive_workers(self) -> int:
        """Count the workers that the master knows and believes alive."""
        import json

        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.web_port}/json/", timeout=5
            ) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return 0

    def wait_for(self, workers: int) -> None:
        """Wait until the master has that many living workers."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.alive_workers() != workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster has {self.alive_workers()} of {workers} workers")
            time.sleep(0.5)


def _host_of(worker: subprocess.Popen[bytes]) -> str:
    arguments: Any = worker.args
    return str(arguments[arguments.index("--host") + 1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _spark_class(
    name: str, *arguments: str, environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as stream:
        return subprocess.Popen(
            ["bash", str(program), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[Any]) -> None:
    """End a process and the executors that it started: they share its process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=15)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    environment = environment_of_a_program(
        SPARK_HOME=str(Path(pyspark.__file__).parent),
        SPARK_LOCAL_DIRS=str(folder / "local"),
        SPARK_DAEMON_MEMORY="256m",
    )
    port, web_port = _free_port(), _free_port()
    started = Cluster(
        master_url=f"spark://127.0.0.1:{port}",
        web_port=web_port,
        environment=environment,
        folder=folder,
    )
    master = _spark_class(
        "master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        str(web_port),
        environment=environment,
        log=folder / "master.log",
    )
    try:
        started.start_workers()
        yield started
    finally:
        for process in (*started.workers, master):
            _stop(process)


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from helpers.spark.repositories import build_weather

    return build_weather(tmp_path_factory.mktemp("repositories") / "weather")
