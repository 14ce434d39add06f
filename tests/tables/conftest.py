"""Makes places and repositories in memory that several modules of this folder use."""

import numpy as np
import pytest
from helpers.builder import new_place, new_repository
from helpers.spark.inspected_repositories import GROUP, add_array

from icechunk_format.encoding.manifest.chunk_refs import inline_refs, native_refs, virtual_refs
from icechunk_format.zarr.new_nodes import build_group_metadata


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def weather(request):
    """Two commits: arrays of each kind of chunk; then one chunk more, and new metadata."""
    repository = new_repository(request.param)
    session = repository.writable_session()
    session.create_group("/", build_group_metadata(attributes={"title": "é"}).to_bytes())
    session.create_group("/sea", GROUP)
    add_array(session, "/lat", (4,), (4,), dims=("lat",), dtype="float64")
    attributes = {"units": "K", "standard_name": "air_temperature", "coordinates": "height"}
    add_array(session, "/t", (4, 6), (2, 3), dims=("lat", "lon"), attributes=attributes)
    add_array(session, "/height", (), ())
    add_array(session, "/sea/ice", (8, 8), (2, 2), dims=(None, "x"), shards=(4, 8))
    session.set_chunk("/lat", (0,), b"i" * 9)
    session.set_refs(
        "/t",
        native_refs([(0, 0), (1, 1)], np.arange(24, dtype=np.uint8).reshape(2, 12), [100, 200]),
    )
    session.set_refs(
        "/sea/ice",
        virtual_refs(
            [(0, 0), (1, 0)],
            ["s3://other/a.nc", "s3://other/b.nc"],
            [8, 16],
            [1000, 2000],
            etags=["tag", None],
            last_modified=[0, 1_700_000_000],
        ),
    )
    first = session.commit("write it", metadata={"by": "us"}).snapshot_id
    repository.create_tag("v1", first)
    session = repository.writable_session()
    session.set_refs("/t", inline_refs([(0, 1)], [b"12345"]))
    session.update_metadata("/sea", build_group_metadata(attributes={"new": 1}).to_bytes())
    second = session.commit("change it").snapshot_id
    return repository, first, second


@pytest.fixture
def place():
    """Give a place in memory that nothing was written to."""
    return new_place()
