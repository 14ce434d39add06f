"""Paths that the reference stores and nobody can name: they hide no other node, and stay."""

import asyncio

import icechunk
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.buffer.cpu import Buffer

from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset


def place(path):
    return icechunk.local_filesystem_storage(str(path))


async def contents(store):
    prototype = default_buffer_prototype()
    return {
        key: (await store.get(key, prototype)).to_bytes()
        async for key in store.list()
        if not key.startswith("ok")
    }


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("odd", ["nul\0x", "a//b", "a/./b", "./a", "a/", "b/c/"])
def test_an_odd_path_hides_no_other_node_and_stays(tmp_path, odd, spec_version):
    theirs = icechunk.Repository.create(place(tmp_path), spec_version=spec_version)
    session = theirs.writable_session("main")
    zarr.create_group(session.store)
    array = zarr.create_array(session.store, name="ok", shape=(2,), dtype="i4", chunks=(1,))
    array[:] = [3, 4]

    async def write_odd():
        document = await session.store.get("ok/zarr.json", default_buffer_prototype())
        await session.store.set(f"{odd}/zarr.json", document)
        await session.store.set(f"{odd}/c/0", Buffer.from_bytes(bytes(range(99))))

    asyncio.run(write_odd())
    session.commit("an odd path")
    before = asyncio.run(contents(theirs.readonly_session("main").store))

    ours = Repository.open(str(tmp_path))
    dataset = open_dataset(ours, ours.resolve())
    assert [variable.name for variable in dataset.data_variables] == ["ok"]
    with_odd = ours.writable_session("main")
    with_odd.set_chunk("/ok", [0], b"\5\0\0\0")
    with_odd.commit("another chunk")
    assert asyncio.run(contents(theirs.readonly_session("main").store)) == before
    (path,) = (node.path for node in ours.snapshot(ours.resolve()).nodes if node.path not in "/ok")
    kinds = verify(str(tmp_path))["kind"].to_pylist()
    assert "node-path-odd" in kinds
    without = ours.writable_session("main")
    without.delete(path)
    without.commit("no odd path")
    assert asyncio.run(contents(theirs.readonly_session("main").store)).keys() == {"zarr.json"}
