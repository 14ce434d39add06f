"""Chunk grids find the chunks that a list of all chunk borders gives, without making that list."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.grid.axes import listed_edges
from icechunk_format.zarr.chunk_grid import ChunkGrid, parse_chunk_grid


def regular(*chunk_shape: Any) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def rectilinear(*chunk_shapes: Any) -> dict[str, Any]:
    configuration = {"kind": "inline", "chunk_shapes": list(chunk_shapes)}
    return {"name": "rectilinear", "configuration": configuration}


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, Any, list[int]]:
    """Draw an extent, a JSON entry, and the sizes of all chunks it means."""
    if draw(st.booleans()):
        extent, size = draw(st.integers(0, 40)), draw(st.integers(1, 15))
        return extent, size, [size] * -(-extent // size)
    entries = draw(
        st.lists(
            st.one_of(st.integers(1, 9), st.tuples(st.integers(1, 9), st.integers(1, 4)).map(list)),
            min_size=1,
            max_size=6,
        )
    )
    sizes: list[int] = []
    for entry in entries:
        sizes += [entry] if isinstance(entry, int) else [entry[0]] * entry[1]
    extent = draw(st.integers(0, sum(sizes)))
    return extent, entries, sizes


@given(st.lists(axes(), max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_equals_a_list_of_borders(drawn: list[tuple[int, Any, list[int]]], data: Any) -> None:
    shape = tuple(extent for extent, _, _ in drawn)
    grid = parse_chunk_grid(rectilinear(*(entry for _, entry, _ in drawn)), shape)
    assert grid.shape == shape
    assert pickle.loads(pickle.dumps(grid)) == grid
    assert hash(pickle.loads(pickle.dumps(grid))) == hash(grid)
    assert parse_chunk_grid(grid.to_json(), shape) == grid
    for axis, (extent, _, sizes) in enumerate(drawn):
        borders = [0, *itertools.accumulate(sizes)]
        used = [i for i in range(len(sizes)) if borders[i] < extent]
        assert grid.num_chunks[axis] == len(used)
        assert listed_edges(grid.axes[axis]).tolist() == [*borders[: len(used)], extent]
        assert grid.axes[axis].distinct_sizes() >= {sizes[i] for i in used}
        for i in used:
            assert grid.axes[axis].bounds(i) == (borders[i], min(borders[i + 1], extent))
        elements = np.arange(extent)
        expected = [next(i for i in used if e < borders[i + 1]) for e in elements]
        assert grid.axes[axis].chunk_of(elements).tolist() == expected
    coords = list(np.ndindex(*grid.num_chunks))
    for at in coords:
        bounds = [axis.bounds(i) for axis, i in zip(grid.axes, at, strict=True)]
        assert grid.box_of(at) == (tuple(b[0] for b in bounds), tuple(b[1] for b in bounds))
        full = tuple(drawn[axis][2][i] for axis, i in enumerate(at))
        assert grid.full_chunk_shape(at) == full
    lo = [data.draw(st.integers(-2, n + 2)) for n in shape]
    hi = [data.draw(st.integers(-2, n + 2)) for n in shape]
    first, end = grid.chunks_of_box(lo, hi)
    for axis in range(len(shape)):
        inside = np.arange(max(lo[axis], 0), min(hi[axis], shape[axis]))
        held = set(grid.axes[axis].chunk_of(inside).tolist())
        assert set(range(first[axis], end[axis])) == held


def test_grids_of_billions_of_chunks_cost_nothing() -> None:
    grid = parse_chunk_grid(rectilinear([[2, 10**15], [5, 10**17]], 1), (5 * 10**17, 2**62))
    assert grid.num_chunks == (10**15 + (5 * 10**17 - 2 * 10**15) // 5, 2**62)
    assert grid.axes[0].bounds(10**15 + 7) == (2 * 10**15 + 35, 2 * 10**15 + 40)
    assert grid.axes[0].chunk_of(np.array([2 * 10**15 + 36])) == 10**15 + 7
    with raises(UnsupportedError, match="can be listed", num_chunks=100600000000000000):
        listed_edges(grid.axes[0])


def test_a_regular_grid() -> None:
    grid = parse_chunk_grid(regular(3, 4), (7, 8))
    assert grid == ChunkGrid.regular((7, 8), (3, 4))
    assert grid != 3
    assert grid.chunk_shape == (3, 4)
    assert grid.num_chunks == (3, 2)
    assert grid.box_of((2, 1)) == ((6, 4), (7, 8))
    assert grid.full_chunk_shape((2, 1)) == (3, 4)
    assert "regular" in repr(grid)
    bigger = grid.resized((10, 8))
    assert bigger.num_chunks == (4, 2)
    scalar = parse_chunk_grid(regular(), ())
    assert scalar.num_chunks == ()
    assert scalar.box_of(()) == ((), ())
    assert scalar.chunks_of_box((), ()) == ((), ())


def test_a_rectilinear_axis_grows_by_a_chunk() -> None:
    grid = parse_chunk_grid(rectilinear([3, 4], 2), (7, 5))
    assert grid.chunk_shape is None
    assert grid.resized((10, 9)).to_json() == rectilinear([3, 4, 3], 2)
    assert grid.resized((11, 9)).to_json() == rectilinear([3, [4, 2]], 2)
    assert grid.resized((2, 0)).num_chunks == (1, 0)
    assert grid.resized((2, 0)).to_json() == grid.to_json()


def test_sizes_that_older_software_wrote() -> None:
    assert parse_chunk_grid(regular(0, 5), (0, 5)).chunk_shape == (1, 5)
    assert parse_chunk_grid(regular(0, 5), (3, 5), unit=[4, 5]).chunk_shape == (4, 5)
    assert parse_chunk_grid(regular(True), (3,)).chunk_shape == (1,)
    assert parse_chunk_grid(regular([2, 2]), (3,)).to_json() == rectilinear([[2, 2]])
    assert parse_chunk_grid(rectilinear([4.0, True]), (5,)).to_json() == rectilinear([4, 1])


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "regular",
        {"name": "regular"},
        regular(),
        regular(1, 2),
        regular(0.5),
        regular(-1),
        regular(None),
        regular("3"),
        regular(2**63),
        regular(float("nan")),
        regular(float("inf")),
        regular([]),
        regular([5]),
        rectilinear(0),
        rectilinear([]),
        rectilinear([9]),
        rectilinear([[5, 0]]),
        rectilinear([[5, -1]]),
        rectilinear([[5, True]]),
        rectilinear([[5, 2.0]]),
        rectilinear([[5]]),
        rectilinear([[5, 2, 3]]),
        rectilinear([[[5], 2]]),
        rectilinear([[2**62, 2**62]]),
        rectilinear([10, None]),
        rectilinear({}),
    ],
)
def test_grids_that_do_not_fit_are_format_errors(value: Any) -> None:
    with pytest.raises(FormatError) as caught:
        parse_chunk_grid(value, (10,), node_path="/a")
    assert caught.value.facts["object_key"] == "/a"
    assert caught.value.facts["field"].startswith("chunk_grid")


@pytest.mark.parametrize(
    "value", ["hexagonal", {"name": "rectilinear", "configuration": {"kind": "elsewhere"}}]
)
def test_grids_that_are_not_known(value: Any) -> None:
    with pytest.raises(UnsupportedError):
        parse_chunk_grid(value, (10,))


def test_questions_outside_the_grid() -> None:
    grid = ChunkGrid.regular((7,), (3,))
    for call in (
        lambda: grid.box_of((3,)),
        lambda: grid.box_of((-1,)),
        lambda: grid.full_chunk_shape((3,)),
        lambda: grid.resized((7, 7)),
        lambda: grid.resized((-1,)),
        lambda: ChunkGrid.regular((7,), (3, 3)),
        lambda: ChunkGrid.regular((7,), (0,)),
        lambda: ChunkGrid.regular((-7,), (1,)),
    ):
        with pytest.raises(InvalidInputError):
            call()
