"""Grids that list chunks beyond the shape of their array are no damage: zarr-python shrinks so."""

from __future__ import annotations

import json

import numpy as np
import zarr
from helpers.builder import reference_repository

from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.zarr.zarr_json import parse_array_metadata


def problems(path) -> list[str]:
    return [row["problem"] for row in verify(str(path)).to_pylist() if row["severity"] != "info"]


def test_an_array_that_was_shrunk_below_its_listed_chunks(tmp_path):
    repository = reference_repository(tmp_path)
    session = repository.writable_session("main")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            session.store, name="v", shape=(9,), chunks=[[2, 3, 4]], dtype="i4"
        )
        array[:] = np.arange(9)
        session.commit("create")
        for size in (7, 4, 2):
            session = repository.writable_session("main")
            zarr.open_array(session.store, path="v").resize((size,))
            session.commit("shrink")
            assert problems(tmp_path) == []
    ours = Repository.open(str(tmp_path)).writable_session("main")
    document = parse_array_metadata(ours.node("/v").user_data, node_path="/v").with_shape((8,))
    ours.update_metadata(
        "/v",
        json.dumps(document.raw).encode(),
        shape=document.shape,
        num_chunks=document.grid.num_chunks,
    )
    ours.commit("Grow again")
    assert problems(tmp_path) == []
    with zarr.config.set({"array.rectilinear_chunks": True}):
        found = zarr.open_array(repository.readonly_session("main").store, path="v")[:]
    np.testing.assert_array_equal(found[:2], [0, 1])
    np.testing.assert_array_equal(found[2:], 0)
