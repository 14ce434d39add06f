"""A copy from one bucket to another, each with its own credentials, which nothing shows."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable
from helpers.mirroring.grid import Grid
from helpers.servers.s3 import ACCESS_KEY, SECRET_KEY

from icechunk_format.errors import IcechunkError
from icechunk_format.maintenance import copy
from icechunk_format.options.read import ReadRequest
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
    find_files,
    freshness,
)
from icechunk_format.workflows.running import in_process


@pytest.fixture
def delta_options(s3_server):
    return {
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def test_a_copy_between_buckets(s3_server, delta_options, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    grid = Grid(tmp_path)
    source = Location(f"s3://{s3_server.new_bucket()}/grid", options=s3_server.storage_options)
    copy(grid.repository.location, source)
    target = DeltaTarget.of(f"s3://{s3_server.new_bucket()}/table", delta_options)
    request = MirrorRequest(
        read=ReadRequest(path=source.url, storage_options=s3_server.storage_options),
        target=target,
        selection=Selection.of({"rowsPerPartition": 16}),
    )
    seen: list[object] = []

    def run(function, tasks):
        seen.extend((function, list(tasks)))
        return in_process(function, tasks)

    assert bring_up_to_date(request, run).rows == 48
    grid.change("wind", (1, 1))
    copy(grid.repository.location, source)

    def locate(url):
        return Location(url, options=s3_server.storage_options)

    assert freshness(target, locate=locate).snapshots_behind == 1
    done = bring_up_to_date(request, run)
    assert (done.version, done.files_added, done.files_removed) == (1, 1, 1)
    assert bring_up_to_date(request, run).rows == 0
    table = DeltaTable(target.url, storage_options=delta_options)
    rows = table.to_pyarrow_table().sort_by([("time", "ascending"), ("y", "ascending")])
    assert rows.equals(grid.rows())
    found = find_files(target)
    assert all(path.startswith(target.url) for path in found.paths)
    told = [repr(seen), json.dumps(table.history(), default=str), repr(found), repr(target)]
    assert not any(secret in text for secret in (ACCESS_KEY, SECRET_KEY) for text in told)


def test_wrong_credentials_are_told_without_them(s3_server, delta_options, tmp_path):
    grid = Grid(tmp_path)
    secret = "wrong-" + SECRET_KEY
    wrong = {**delta_options, "AWS_SECRET_ACCESS_KEY": secret, "max_retries": "0"}
    request = MirrorRequest(
        read=ReadRequest(path=grid.place),
        target=DeltaTarget.of(f"s3://{s3_server.new_bucket()}/table", wrong),
        selection=Selection.of({}),
    )
    with pytest.raises(IcechunkError) as raised:
        bring_up_to_date(request, in_process)
    text = str(raised.value)
    assert secret not in text
    assert "\n" not in text
    assert "s3://" in text
