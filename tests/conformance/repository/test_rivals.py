"""Sixteen processes commit to one branch: nothing is lost or merged, as the reference sees it too.

On a local folder, and on a real S3 server. What was reported to have landed is in the history once,
with its chunks, and nothing else is.
"""

import asyncio
import uuid
from urllib.parse import urlsplit

import icechunk
import pytest
from helpers.servers.s3 import running_s3_server
from helpers.sessions.competing_processes import compete, expected_after, prepare
from helpers.sessions.model import stored_contents
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location

icechunk.set_logs_filter("off")


@pytest.fixture(scope="module")
def s3_server():
    with running_s3_server() as server:
        yield server


def reference_storage(server, location):
    if server is None:
        return icechunk.local_filesystem_storage(location.url)
    return icechunk.s3_storage(
        bucket=urlsplit(location.url).netloc,
        prefix=urlsplit(location.url).path.strip("/"),
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
    )


def reference_chunks(session):
    prototype = default_buffer_prototype()

    async def collect():
        keys = [key async for key in session.store.list() if "/c/" in key]
        values = await asyncio.gather(*(session.store.get(key, prototype) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


@pytest.mark.parametrize("spec_version", [2, 1])
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_sixteen_processes_lose_nothing_and_merge_nothing(tmp_path, request, place, spec_version):
    server, location = None, Location(str(tmp_path))
    if place == "s3":
        server = request.getfixturevalue("s3_server")
        url = f"s3://{server.new_bucket()}/{uuid.uuid4()}"
        location = Location(url, options=server.storage_options)
    prepare(location, spec_version)
    messages, chunks = expected_after(compete(location))

    ours = Repository.open(location)
    history = list(ours.ancestry())
    assert sorted(info.message for info in history) == sorted(messages)
    times = [info.flushed_at for info in history]
    assert times == sorted(set(times), reverse=True)
    contents = stored_contents(ours, ours.resolve())
    assert {key: data for key, data in contents.items() if "/c/" in key} == chunks
    if spec_version == 2:
        assert len(list(ours.operations())) == len(messages)

    theirs = icechunk.Repository.open(reference_storage(server, location))
    found = [info.message for info in theirs.ancestry(branch="main")]
    assert sorted(found) == sorted(messages)
    assert reference_chunks(theirs.readonly_session("main")) == chunks
