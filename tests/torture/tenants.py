"""Users who may read some of the repositories of a server only, which runs in another process."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

READS_BY_NIGHT, READS_OF_SPARK = 10_000, 300


def may_read(user: int, repository: int) -> bool:
    return (user + repository) % 4 != 0


def _denied(access_key: str, path: str) -> bool:
    """Return True if a request must be refused; the writer of all repositories has no number."""
    user = re.fullmatch(r"user-(\d+)", access_key)
    repository = re.match(r"/bucket/repository-(\d+)/", path)
    if user is None or repository is None:
        return access_key != "writer"
    return not may_read(int(user[1]), int(repository[1]))


def location_of(url: str, key: str, repository: int, client: str = "auto") -> Location:
    options = {"key": key, "secret": f"secret of {key}", "endpoint_url": url, "region": "r"}
    options["max_retries"] = "0"
    return Location(f"s3://bucket/repository-{repository}", client=client, options=options)


def value_of(repository: int) -> bytes:
    return bytes([repository + 1])


def _serve(repositories: int, pipe) -> None:
    from helpers.builder import add_array
    from helpers.servers.http import misbehaving_server

    with misbehaving_server() as server:
        server.clock = time.time
        server.deny_key = _denied
        for number in range(repositories):
            repository = Repository.create(location_of(server.url, "writer", number))
            session = repository.writable_session()
            add_array(session, "/a", (4,))
            session.set_chunk("/a", [0], value_of(number))
            session.commit("first")
        pipe.send(server.url)
        pipe.recv()


@contextmanager
def served_repositories(count: int) -> Iterator[str]:
    """Run a server of so many repositories in a process of its own; return its URL."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(count, theirs))
    process.start()
    try:
        assert ours.poll(120)
        yield ours.recv()
        ours.send("stop")
        process.join(30)
    finally:
        process.kill()


def held_by(process: int) -> tuple[float, int, int]:
    """Return the memory in MB, the descriptors and the threads of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    memory_mb = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024
    descriptors = len(os.listdir(f"/proc/{process}/fd"))
    return memory_mb, descriptors, int(re.search(r"Threads:\s+(\d+)", status)[1])
