"""Chunks and receipts are held to the chunk grid of their array; a smaller shape cuts chunks."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import box_of_grid
from icechunk_format.repository.changes.grid_checks import (
    check_grid_of_v1,
    check_receipts,
    check_regular,
    grid_of,
    whole_chunks_after,
)
from icechunk_format.repository.files import ManifestReceipt

REGULAR = {"name": "regular", "configuration": {"chunk_shape": [3, 4]}}


def node(shape, num_chunks, grid=REGULAR):
    array = SimpleNamespace(shape=shape, num_chunks=num_chunks)
    return SimpleNamespace(array=array, path="/a", user_data=json.dumps({"chunk_grid": grid}))


def test_an_array_without_elements_has_a_first_chunk():
    assert grid_of(node((0, 9), (0, 3))).tolist() == [[0, 1], [0, 3]]
    assert grid_of(node((7, 9), (3, 2))).tolist() == [[0, 3], [0, 2]]
    assert grid_of(SimpleNamespace(array=None)).shape == (0, 2)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((7, 8), None),
        ((9, 8), None),
        ((6, 8), (2, 2**32)),
        ((5, 9), (1, 2**32)),
        ((7, 7), (2**32, 1)),
        ((2, 3), (0, 0)),
        ((0, 8), (0, 2**32)),
    ],
)
def test_only_whole_chunks_are_left_along_shorter_axes(shape, expected):
    counts = tuple(-(-length // size) for length, size in zip(shape, (3, 4), strict=True))
    assert whole_chunks_after(node((7, 8), (3, 2)), node(shape, counts)) == expected


@pytest.mark.parametrize(
    "grid",
    [
        {"name": "rectilinear", "configuration": {"chunk_shape": [3, 4]}},
        {"name": "regular", "configuration": {}},
        {"name": "regular", "configuration": {"chunk_shape": [3]}},
        {"name": "regular", "configuration": {"chunk_shape": [0, "4"]}},
    ],
)
def test_the_last_chunk_of_another_grid_counts_as_cut(grid):
    before = node((7, 8), (3, 2), grid)
    assert whole_chunks_after(before, node((6, 8), (2, 2), grid)) == (1, 2**32)
    assert whole_chunks_after(before, node((6, 3), (2, 1), grid)) == (1, 0)
    assert whole_chunks_after(before, node((0, 8), (0, 2), grid)) == (0, 2**32)


def test_groups_are_not_shortened():
    group = SimpleNamespace(array=None)
    assert whole_chunks_after(group, node((7, 8), (3, 2))) is None
    assert whole_chunks_after(node((7, 8), (3, 2)), group) is None


@pytest.mark.parametrize(
    "document",
    ["{", "[]", "{}", '{"chunk_grid": {"name": "regular", "configuration": 3}}', "[" * 100_000],
)
def test_only_regular_grids_can_be_shifted(document):
    check_regular(node((7, 8), (3, 2)))
    with raises(InvalidInputError, found=None, match="only the chunks of a 'regular' grid"):
        check_regular(SimpleNamespace(path="/a", user_data=document))
    with raises(InvalidInputError, found="rectilinear"):
        check_regular(node((7, 8), (3, 2), {"name": "rectilinear", "configuration": {}}))


def test_version_1_has_only_regular_grids():
    for document in (b"{}", b"{", b'{"chunk_grid": {"name": "regular", "configuration": {}}}'):
        check_grid_of_v1("/a", document)
    with raises(InvalidInputError, found="other", name="/a", match="use a repository of spec ver"):
        check_grid_of_v1("/a", b'{"chunk_grid": {"name": "other", "configuration": {}}}')


def test_receipts_match_their_chunks_and_the_grid():
    grid = box_of_grid((3, 2))
    coords = np.array([[0, 1], [2, 0]], np.uint32)
    receipt = ManifestReceipt.of(ManifestId(bytes(12)), 1, coords)
    check_receipts("/a", [receipt], grid)
    for extents in [((0, 3),), ((0, 3), (0, 1)), ((0, 3), (0, 3)), ()]:
        with raises(InvalidInputError, match="do not match its chunks", extents=extents):
            check_receipts("/a", [receipt, replace(receipt, extents=extents)], grid)
    with raises(InvalidInputError, match="resize the array first", coords=(2, 1)):
        check_receipts("/a", [receipt], box_of_grid((2, 2)))
    for count in (0, 1, 3):
        with raises(InvalidInputError, found=count, expected=2):
            check_receipts("/a", [replace(receipt, num_chunk_refs=count)], grid)
    empty = ManifestReceipt.of(ManifestId(bytes(12)), 1, coords[:0])
    with raises(InvalidInputError, found=0, expected=0):
        check_receipts("/a", [empty], grid)
