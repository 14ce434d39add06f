"""The reference collects garbage while we use it again: nothing that a ref shows is lost.

Both work at one server. While the reference marks, between its reading of ``repo`` and its update
of it, the server lets us change the repository.
"""

import time
from datetime import UTC, datetime, timedelta

import icechunk
import pytest
from helpers.files.maintenance_repositories import build_untidy
from helpers.servers.http import misbehaving_server

from icechunk_format.storage.location import Location

icechunk.set_logs_filter("off")


@pytest.fixture
def server():
    with misbehaving_server() as running:
        running.clock = time.time
        yield running


def built_at(server):
    options = {"key": "k", "secret": "s", "endpoint_url": server.url, "region": "us-east-1"}
    return build_untidy(2, Location("s3://bucket/repository", options=options))


def reference_at(server):
    storage = icechunk.s3_storage(
        bucket="bucket",
        prefix="repository",
        region="us-east-1",
        endpoint_url=server.url,
        allow_http=True,
        force_path_style=True,
        access_key_id="k",
        secret_access_key="s",
    )
    return icechunk.Repository.open(storage)


def collect_while(server, action):
    """Let the reference collect, and act once it reads manifests to keep: it marks."""
    theirs = reference_at(server)
    done = []

    def hook(method, path):
        if not done and method == "GET" and "/manifests/" in path:
            done.append(path)
            action()
        return False

    server.deny = hook
    summary = theirs.garbage_collect(datetime.now(UTC) + timedelta(seconds=60))
    assert done
    return summary


def restore(built):
    built.repository.restore("main", built.ids["side 5"])


def amend(built):
    # The parent of "side 4" stays, so the new version stands on nothing that goes.
    built.repository.reset_branch("side", built.ids["side 4"])
    session = built.repository.writable_session("side")
    session.set_chunks("/values", [[20, 0]], [b"amended"])
    session.amend("amended")


@pytest.mark.parametrize("revive", [restore, amend])
def test_garbage_that_is_used_again_while_the_reference_marks_stays(server, revive):
    built, shown = built_at(server), {}

    def action():
        revive(built)
        shown.update(built.contents())

    summary = collect_while(server, action)
    assert summary.snapshots_deleted
    assert built.contents() == shown
