"""One process that reads many repositories for many users serves each with its own rights.

A user may read some of the repositories only. Whatever other users of the process have read before,
and whatever its caches keep, a read without the right fails, and one with it gives the bytes of
that repository. Memory, threads and open files do not grow with the number of reads::

    TENANT_READS=10000 pytest -s tests/torture/test_tenants.py -k night
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from torture.tenants import (
    READS_BY_NIGHT,
    held_by,
    location_of,
    may_read,
    served_repositories,
    value_of,
)

from icechunk_format.errors import StorageError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage import location as location_module
from icechunk_format.tables import open_dataset

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts by /proc")


@pytest.fixture
def served(request):
    """Return the URL of a server of so many repositories."""
    with served_repositories(request.param) as url:
        yield url


@dataclass
class Held:
    """Memory, descriptors and threads of a process."""

    memory_mb: float
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        return cls(*held_by(os.getpid()))


def read_all(url: str, reads: int, repositories: int, users: int, pipe) -> None:
    """Read as different users in threads; send what the process held meanwhile, and mistakes."""
    chance, wrong, held = random.Random(1), [], []
    turns = [(chance.randrange(users), chance.randrange(repositories)) for _ in range(reads)]
    lock, next_turn = threading.Lock(), iter(turns)

    def work():
        while True:
            with lock:
                turn = next(next_turn, None)
            if turn is None:
                return
            user, number = turn
            try:
                repository = Repository.open(location_of(url, f"user-{user}", number))
                snapshot_id = repository.resolve(branch="main")
                found = open_dataset(repository, snapshot_id).read("a").tobytes()[:1]
            except StorageError as error:
                if may_read(user, number):
                    wrong.append(f"{turn}: {error}")
            except BaseException as error:
                wrong.append(f"{turn}: {error!r}")
            else:
                if not may_read(user, number) or found != value_of(number):
                    wrong.append(f"{turn}: read {found}")

    for part in range(4):
        next_turn = iter(turns[part * reads // 4 : (part + 1) * reads // 4])
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held.append(Held.now())
    caches = len(location_module._opened), metadata_cache().used_bytes
    pipe.send((held, wrong[:10], caches))


def served_to_all(url: str, reads: int, repositories: int, users: int) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (url, reads, repositories, users, theirs)
    process = context.Process(target=read_all, args=arguments)
    process.start()
    try:
        held, wrong, (storages, cached) = ours.recv()
    finally:
        process.join(60)
        process.kill()
    print(f"\n{reads:,} reads of {repositories} repositories as {users} users: {held}")
    assert wrong == []
    assert process.exitcode == 0
    assert storages <= location_module._MAX_OPENED
    assert cached <= 256 * 2**20
    assert held[-1].threads <= 400
    assert held[-1].descriptors <= 600
    assert held[-1].memory_mb <= held[1].memory_mb + 60


@pytest.mark.parametrize("served", [10], indirect=True)
def test_users_of_one_process_have_their_own_rights(served):
    served_to_all(served, 120, 10, 6)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("served", [100], indirect=True)
def test_a_night_of_users(served):
    served_to_all(served, int(os.environ.get("TENANT_READS", READS_BY_NIGHT)), 100, 20)
