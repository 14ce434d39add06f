"""Chunks that a change does not store again are deleted."""

import numpy as np
import pytest

from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.groups.changing import chunks_before, emptied
from icechunk_format.zarr.chunk_grid import ChunkGrid


def refs_at(*coords):
    return ChunkRefs.blank(np.array(coords, np.uint32), KIND_NATIVE)


def test_chunks_that_are_not_stored_are_emptied():
    coords = np.array([[0, 0], [0, 1], [1, 0]])
    stored = [refs_at([0, 1]), refs_at([4, 4])]
    assert emptied(coords, stored).tolist() == [[0, 0], [1, 0]]
    assert emptied(coords, []).tolist() == coords.tolist()
    assert emptied(coords[:0], stored).shape == (0, 2)


@pytest.mark.parametrize(
    ("old_shape", "chunks"),
    [
        (None, []),
        ((7, 4), [[1, 0], [1, 1], [2, 0], [2, 1]]),
        ((6, 2), [[1, 0]]),
        ((3, 4), []),
        ((100, 100), [[1, 0], [1, 1], [2, 0], [2, 1]]),
    ],
)
def test_chunks_before_are_those_of_the_old_array(old_shape, chunks):
    grid = ChunkGrid.regular((8, 4), (3, 2))
    found = chunks_before(grid, (3, 0), (8, 4), old_shape)
    assert found.shape[1] == 2
    assert joined_coords([found], 2).tolist() == chunks


def test_an_array_that_ends_in_a_chunk_where_the_box_begins_had_none():
    grid = ChunkGrid.regular((8, 4), (3, 2))
    for old_shape in ((4, 4), (4, 0), (8, 1)):
        assert chunks_before(grid, (4, 1), (8, 4), old_shape).shape == (0, 2)


def test_an_array_without_axes_has_one_chunk():
    grid = ChunkGrid.regular((), ())
    assert chunks_before(grid, (), (), None).shape == (0, 0)
    assert chunks_before(grid, (), (), ()).shape == (1, 0)
