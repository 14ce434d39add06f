"""Arrays of moved chunks equal NumPy's, and two changes at once equal one after the other."""

import numpy as np
import pytest
from helpers.grids.index_maps import index_maps, ranges_of
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.grid.axes import RegularAxis, RunAxis
from icechunk_format.grid.boxes import beyond, inside_box
from icechunk_format.grid.chunk_moves import ChunkMoves, chunk_sources, spread
from icechunk_format.grid.index_maps import IndexMap

FILL = -1


@st.composite
def axes(draw, size):
    """Draw chunks of an axis, also chunks longer than the array and unequal ones."""
    if draw(st.booleans()) or not size:
        return RegularAxis(size, draw(st.integers(1, 6)))
    cuts = draw(st.sets(st.integers(0, size - 1), max_size=4))
    runs = RunAxis.of_edges(np.array(sorted({0, size + draw(st.integers(0, 2)), *cuts}))).runs
    return RunAxis(size, runs)


class Stored:
    """Chunks of an array, each with its stored size and the number of times it was written."""

    def __init__(self, axes, values):
        self.axes = tuple(axes)
        self.shape = tuple(axis.size for axis in axes)
        self.chunks = {}
        for at in self.grid():
            self.write(at, values)

    def grid(self):
        return list(np.ndindex(*(axis.count for axis in self.axes)))

    def coords(self):
        return np.array(self.grid(), np.int64).reshape(len(self.grid()), len(self.axes))

    def box(self, at):
        return tuple(slice(*axis.bounds(n)) for axis, n in zip(self.axes, at, strict=True))

    def write(self, at, values):
        part = values[self.box(at)]
        if (part != FILL).any():
            sizes = [axis.full_size(n) for axis, n in zip(self.axes, at, strict=True)]
            whole = np.full(sizes, FILL)
            whole[tuple(map(slice, part.shape))] = part
            self.chunks[at] = whole

    def values(self):
        found = np.full(self.shape, FILL)
        for at, chunk in self.chunks.items():
            box = self.box(at)
            found[box] = chunk[tuple(slice(0, each.stop - each.start) for each in box)]
        return found

    def rewritten(self, new_axes, maps):
        """Return the array after a change: chunks are moved by their plan, others are written."""
        moves = ChunkMoves.of(self.axes, new_axes, maps)
        found = Stored(new_axes, np.full([axis.size for axis in new_axes], FILL))
        values = rewritten(self.values(), maps)
        is_placed, places = moves.placed(self.coords())
        pairs = zip(places[is_placed].tolist(), self.coords()[is_placed].tolist(), strict=True)
        moved = {tuple(place): at for place, at in pairs}
        for at in found.grid():
            source = tuple(moved.get(at, ()))
            if at not in moved:
                found.write(at, values)
            elif source in self.chunks:
                found.chunks[at] = self.chunks[source]
        check_plan(moves, found, moved)
        return found


def rewritten(values, maps):
    """Return the values of an array after a change, by NumPy alone."""
    for axis, indices in enumerate(maps):
        shape = list(values.shape)
        shape[axis] = indices.after
        found = np.full(shape, FILL)
        new = indices.of(np.arange(indices.before))
        at = np.flatnonzero(new >= 0)
        index = (slice(None),) * axis
        found[(*index, new[at])] = values[(*index, at)]
        values = found
    return values


def check_plan(moves, after, moved):
    """Check the chunks that stay at the start, and the rows of all other boxes."""
    seen = set()
    for at in np.ndindex(*moves.still):
        assert moved[at] == list(at)
        seen.add(at)
    for axis, low, high in beyond(moves.still, [axis.count for axis in after.axes]):
        rows = moves.rows_taken(axis, low, high)
        box = np.stack([low, high], axis=1)
        for at in np.ndindex(*np.subtract(high, low)):
            at = tuple(np.add(at, low).tolist())
            assert at not in seen
            seen.add(at)
            assert at in moved or not rows[at[axis] - low[axis]]
            if rows.any():
                [source] = np.array([moved.get(at, moves.source_box(box)[:, 0])])
                assert inside_box(source[None], moves.source_box(box)).all()
    assert seen == set(after.grid())


@settings(deadline=None)
@given(st.data())
def test_a_composed_change_equals_its_parts(data):
    """rewrite(compose(a, b)) == rewrite(b) after rewrite(a)."""
    ndim = data.draw(st.integers(0, 3))
    sizes = [data.draw(st.sampled_from([0, 1, 5, 8, 12])) for _ in range(ndim)]
    if data.draw(st.booleans()):
        sizes = sizes[:1] * ndim
    grids = [data.draw(axes(size)) for size in sizes]
    first = [data.draw(index_maps(before=size))[0] for size in sizes]
    second = [data.draw(index_maps(before=a.after))[0] for a in first]
    if len(set(sizes)) == 1 and data.draw(st.booleans()):
        # A repeated dimension changes along all of its axes.
        first, second = first[:1] * ndim, second[:1] * ndim
    values = np.arange(np.prod([g.size for g in grids], dtype=int)).reshape([g.size for g in grids])
    if values.size and data.draw(st.booleans()):
        values = np.where(values % data.draw(st.integers(2, 5)) == 0, values, FILL)
    stored = Stored(grids, values)
    new = [grid.resized(a.after) for grid, a in zip(grids, first, strict=True)]
    last = [grid.resized(b.after) for grid, b in zip(new, second, strict=True)]
    once = stored.rewritten(new, first)
    assert np.array_equal(once.values(), rewritten(values, first))
    twice = once.rewritten(last, second)
    both = stored.rewritten(last, [a.then(b) for a, b in zip(first, second, strict=True)])
    assert np.array_equal(both.values(), twice.values())


@settings(deadline=None)
@given(st.data())
def test_chunks_are_used_again_wherever_they_can_be(data):
    indices, new_index = data.draw(index_maps())
    old, new = data.draw(axes(indices.before)), data.draw(axes(indices.after))
    elements = {at: [new_index[i] for i in range(*old.bounds(at))] for at in range(old.count)}
    expected = []
    for at in range(new.count):
        own, size = list(range(*new.bounds(at))), new.full_size(at)
        fits = (n for n in elements if elements[n] == own and old.full_size(n) == size)
        expected.append(next(fits, -1))
    assert chunk_sources(old, new, indices).tolist() == expected
    for at, places in elements.items():
        held = [n for n in range(new.count) if set(range(*new.bounds(n))) & set(places)]
        assert spread(old, new, indices, at).tolist() == held


@pytest.mark.parametrize(
    ("gone", "sources", "still"),
    [
        ([], [0, 1, 2], 3),
        ([9], [0, 1, -1], 2),
        ([8, 9], [0, 1], 2),
        ([0, 1, 2, 3], [1, 2], 0),
        ([4, 5, 6, 7], [0, 2], 1),
        ([5], [0, -1, -1], 1),
        (range(10), [], 0),
    ],
)
def test_dropped_labels(gone, sources, still):
    old = RegularAxis(10, 4)
    indices = IndexMap.dropped(10, ranges_of(gone))
    found = chunk_sources(old, old.resized(indices.after), indices)
    assert found.tolist() == sources
    assert ChunkMoves(sources=(found,)).still == (still,)


def test_an_edge_chunk_that_grows_is_written():
    """Its bytes beyond the edge may be anything."""
    old, new = RegularAxis(10, 4), RegularAxis(12, 4)
    assert chunk_sources(old, new, IndexMap.resized(10, 12)).tolist() == [0, 1, -1]


def test_a_longer_stored_chunk_is_written():
    old, new = RegularAxis(4, 4), RegularAxis(4, 5)
    assert chunk_sources(old, new, IndexMap.resized(4, 4)).tolist() == [-1]
