"""Rows of references become virtual and inline chunks, or are refused with the array and column."""

from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_VIRTUAL
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import ArrayTarget
from icechunk_format.groups.changing.reference_rows import (
    array_names,
    check_coords,
    chunk_coords,
    references,
)
from icechunk_format.repository.chunks.source import checked_source
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import NO_ACCESS
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata


def target(names):
    return ArrayTarget.of_new(
        build_array_metadata(
            shape=(4, 3),
            data_type=data_type_from_numpy(np.dtype("i1")),
            chunk_shape=(1, 1),
            dimension_names=names,
            node_path="/g/t",
        )
    )


TARGET = target(["y", "x"])
VIRTUAL = {"kind": "virtual", "location": "s3://b/x", "offset": 1, "length": 2}
SCHEMA = {
    "kind": pa.string(),
    "location": pa.string(),
    "offset": pa.int64(),
    "length": pa.int64(),
    "data": pa.binary(),
    "etag": pa.string(),
    "last_modified": pa.timestamp("us", "UTC"),
}


def refs_of(*rows, without=()):
    """Return the references of rows, the first at the chunk (0, 0), the next at (1, 0)."""
    columns = {
        name: pa.array([row.get(name) for row in rows], kind)
        for name, kind in SCHEMA.items()
        if name not in without
    }
    coords = np.array([[n, 0] for n in range(len(rows))], np.int64).reshape(-1, 2)
    source = checked_source(Location("memory:///here"), NO_ACCESS)
    return references(TARGET, coords, pa.table(columns), source)


def test_a_new_array_has_names_for_its_dimensions():
    for names, dims in ((["y", None], ("y", "dim_1")), (None, ("dim_0", "dim_1"))):
        found = target(names)
        assert (found.name, found.path, found.dims) == ("t", "/g/t", dims)


def test_virtual_and_inline_rows_keep_their_coordinates():
    refs, prefixes = refs_of(
        VIRTUAL,
        {"kind": "inline", "data": b"zz"},
        {**VIRTUAL, "location": "S3://b/y", "offset": 7, "length": 8},
    )
    rows = np.lexsort(refs.coords.T[::-1])
    assert refs.coords[rows].tolist() == [[0, 0], [1, 0], [2, 0]]
    assert refs.kind[rows].tolist() == [KIND_VIRTUAL, KIND_INLINE, KIND_VIRTUAL]
    assert refs.length[rows].tolist() == [2, 2, 8]
    assert [refs.location(rows[n]) for n in (0, 2)] == ["s3://b/x", "s3://b/y"]
    assert [refs.offset[rows[n]] for n in (0, 2)] == [1, 7]
    assert prefixes == {"s3://b/"}


def test_etags_and_times_are_kept_where_they_are_known():
    when = datetime(2024, 7, 1, tzinfo=UTC)
    refs, _ = refs_of({**VIRTUAL, "etag": "e", "last_modified": when}, VIRTUAL)
    assert [refs.etag(row) for row in (0, 1)] == ["e", None]
    assert refs.last_modified.tolist() == [int(when.timestamp()), 0]
    for without in ((), ("etag",), ("last_modified",), ("etag", "last_modified")):
        refs, _ = refs_of(VIRTUAL, VIRTUAL, without=without)
        assert [refs.etag(row) for row in (0, 1)] == [None, None]
        assert not refs.last_modified.any()


@pytest.mark.parametrize(
    ("row", "without", "facts"),
    [
        ({**VIRTUAL, "kind": "native"}, (), {"variable": "t", "kind": "native"}),
        ({**VIRTUAL, "kind": None}, (), {"variable": "t", "kind": "None"}),
        ({**VIRTUAL, "location": None}, (), {"variable": "t", "column": "location"}),
        ({**VIRTUAL, "offset": None}, (), {"variable": "t", "column": "offset"}),
        (VIRTUAL, ("length",), {"variable": "t", "column": "length"}),
        ({"kind": "inline"}, (), {"variable": "t", "column": "data"}),
        ({**VIRTUAL, "location": "s3://b/../x"}, (), {"variable": "t"}),
        ({**VIRTUAL, "location": "relative/x"}, (), {"variable": "t"}),
    ],
)
def test_rows_that_are_no_references_are_refused(row, without, facts):
    with raises(InvalidInputError, **facts):
        refs_of(VIRTUAL, row, without=without)


def test_the_kind_that_cannot_be_written_is_named_among_others():
    inline = {"kind": "inline", "data": b"x"}
    with raises(InvalidInputError, variable="t", kind="native"):
        refs_of(VIRTUAL, inline, {"kind": "native"})


def test_columns_of_another_kind_may_be_missing():
    refs, _ = refs_of(VIRTUAL, without=("data",))
    assert refs.kind.tolist() == [KIND_VIRTUAL]
    columns = ("location", "offset", "length")
    refs, prefixes = refs_of({"kind": "inline", "data": b"x"}, without=columns)
    assert (refs.kind.tolist(), prefixes) == ([KIND_INLINE], set())


def test_chunks_outside_of_the_grid_are_refused():
    inside = [[0, 0], [3, 2]]
    check_coords(TARGET, np.array(inside, np.int64), (4, 3))
    for wrong in ([4, 0], [0, 3], [-1, 0], [0, -1]):
        with raises(InvalidInputError, variable="t", chunk=tuple(wrong)):
            check_coords(TARGET, np.array([*inside, wrong, [9, 9]], np.int64), (4, 3))


def test_a_chunk_is_a_list_of_numbers_for_each_dimension():
    lists = pa.list_(pa.int32())
    for column in (
        pa.array([[0, 1], [2, 3]], lists),
        pa.chunked_array([[[0, 1]], [[2, 3]]], lists),
    ):
        assert chunk_coords(column, 2, "t").tolist() == [[0, 1], [2, 3]]
    assert chunk_coords(pa.array([[], []], lists), 0, "t").shape == (2, 0)
    assert chunk_coords(pa.array([], lists), 2, "t").shape == (0, 2)
    for wrong in ([[0, 1], None], [[0, None]], [[0]], [[0, 1], [0, 1, 2]]):
        with raises(InvalidInputError, variable="t"):
            chunk_coords(pa.array(wrong, lists), 2, "t")


def test_references_outside_of_the_grid_are_refused():
    rows = [{"kind": "inline", "data": b"z"}] * 5
    with raises(InvalidInputError, variable="t", chunk=(4, 0)):
        refs_of(*rows)


def test_arrays_are_named_by_the_last_segment_of_their_paths():
    paths = ["/g/t", "/u", "v", "/g/t"]
    for column in (pa.array(paths), pa.chunked_array([paths[:2], paths[2:]])):
        assert array_names(column).to_pylist() == ["t", "u", "v", "t"]


def test_the_containers_of_the_repository_are_named():
    containers = [
        VirtualChunkContainer(url_prefix="s3://c/", store_kind="s3"),
        VirtualChunkContainer(url_prefix="s3://d/", store_kind="s3", name="named"),
        VirtualChunkContainer(url_prefix="s3://no-slash", store_kind="s3"),
    ]
    source = SimpleNamespace(containers=containers, access=NO_ACCESS)
    rows = pa.table({name: pa.array([VIRTUAL.get(name)], kind) for name, kind in SCHEMA.items()})
    known = ("s3://c/", "s3://d/ (named)")
    with raises(InvalidInputError, location="s3://b/x", containers=known):
        references(TARGET, np.array([[0, 0]]), rows, source)
