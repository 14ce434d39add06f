"""A run that ends before or after any of its requests leaves a whole snapshot, and is made up for.

The table lies on a server that carries out no request from the k-th one on, or carries out the
k-th one and never answers again. All k are tried.
"""

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from helpers.mirroring.grid import Grid, rows_of
from helpers.servers.http import Fault, misbehaving_server

from icechunk_format.errors import IcechunkError
from icechunk_format.workflows.mirroring import DeltaTarget, bring_up_to_date
from icechunk_format.workflows.running import in_process

OPTIONS = {
    "AWS_ACCESS_KEY_ID": "a key",
    "AWS_SECRET_ACCESS_KEY": "a secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "max_retries": "0",
}


@pytest.fixture(scope="module")
def server():
    with misbehaving_server() as running:
        yield running


@pytest.fixture(scope="module")
def elsewhere():
    """Run a function in another process, since deltalake blocks the threads of this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda *call: pool.submit(*call).result(60)


def ends_at(server, number, *, after):
    """Let the server answer no request from a number on; `after` carries that one out."""
    seen = itertools.count(1)

    def deny(method, path):
        this = next(seen)
        if after and this == number:
            server.faults.append(Fault(drop="after"))
            return False
        return this >= number

    server.deny = deny
    return seen


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("work", ["first", "refresh"])
def test_a_run_may_end_at_any_request(server, elsewhere, tmp_path, work, after):
    grid = Grid(tmp_path)
    options = {**OPTIONS, "AWS_ENDPOINT_URL": server.url}
    place = DeltaTarget.of(f"s3://{work}-{after}/table".lower(), options)
    request = replace(grid.request(rowsPerPartition=32), target=place)
    stored, before = {}, None
    if work == "refresh":
        elsewhere(bring_up_to_date, request, in_process)
        stored, before = dict(server.objects), grid.rows()
        grid.change("wind", (1, 1))
    outcomes = set()
    for number in itertools.count(1):
        server.objects.clear()
        server.objects.update(stored)
        seen = ends_at(server, number, after=after)
        failed = False
        try:
            elsewhere(bring_up_to_date, request, in_process)
        except IcechunkError as error:
            failed = True
            told = str(error)
        server.deny = lambda method, path: False
        server.faults.clear()
        found = elsewhere(rows_of, place)
        is_new = found is not None and found.equals(grid.rows())
        assert is_new or found == before, f"request {number}"
        assert is_new or failed
        assert not failed or told.isprintable()
        outcomes.add((failed, is_new))
        again = elsewhere(bring_up_to_date, request, in_process)
        assert (again.rows == 0) is is_new
        assert elsewhere(rows_of, place).equals(grid.rows())
        if next(seen) <= number:
            break
    assert number > 5
    # A commit may be carried out without an answer, or the look at it afterwards fail.
    assert outcomes == {(True, False), (True, True), (False, True)}
