"""Boxes are read in batches of encoded chunks, with and without shards."""

import icechunk
import numpy as np
import pytest
import zarr
from helpers.builder import reference_repository

from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset


@pytest.mark.parametrize("shards", [None, (4, 8), (8, 8)])
@pytest.mark.parametrize("nbytes", [1, 100, 700, 1 << 30])
def test_any_batch_gives_the_same_values(tmp_path, shards, nbytes):
    icechunk.set_logs_filter("off")
    path = str(tmp_path / "repository")
    session = reference_repository(path).writable_session("main")
    array = zarr.group(session.store).create_array(
        "a", shape=(13, 16), chunks=(2, 4), shards=shards, dtype="i4", fill_value=7
    )
    values = np.arange(208, dtype="i4").reshape(13, 16)
    values[4:8, 4:8] = 7
    array[...] = values
    session.commit("made")
    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve())
    reader = dataset.source.open().reader("/a")
    for lower, upper in [((0, 0), (13, 16)), ((3, 5), (9, 13)), ((2, 4), (4, 8)), ((5, 5), (5, 9))]:
        found = reader.read_box(lower, upper, nbytes)
        np.testing.assert_array_equal(found, values[lower[0] : upper[0], lower[1] : upper[1]])
