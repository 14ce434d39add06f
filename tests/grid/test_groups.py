"""Groups of chunks cover an array once, keep the edges of chunks, and stay below a bound."""

import math

import numpy as np
import pytest

from icechunk_format.grid.axes import RegularAxis, RunAxis
from icechunk_format.grid.groups import edges_of, join, windows


def edges_of_chunks(rng, size):
    """Return the edges of chunks of one length, or of any."""
    if rng.random() < 0.5:
        return np.append(np.arange(0, size, rng.integers(1, size + 1)), size)
    inner = rng.choice(np.arange(1, size), rng.integers(0, size), replace=False) if size > 1 else []
    return np.unique(np.concatenate([[0], inner, [size]])).astype(np.int64)


@pytest.mark.parametrize("seed", range(60))
def test_pieces_cover_each_element_once(seed):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 13, rng.integers(1, 4)).tolist()
    source, target = ([edges_of_chunks(rng, size) for size in shape] for _ in range(2))
    common = windows(source, target)
    most = int(rng.integers(1, 2 * math.prod(shape)))
    parts, groups = join(source, target, common, most), join(target, source, common, most)
    seen = np.zeros(shape, int)
    for number in range(len(parts)):
        for group, (lower, upper) in groups.meeting(parts.box(number)):
            low, high = groups.box(group)
            assert all(a <= b < c <= d for a, b, c, d in zip(low, lower, upper, high, strict=True))
            seen[tuple(map(slice, lower, upper))] += 1
    assert (seen == 1).all()
    for own, chunks in ((parts, source), (groups, target)):
        # A task reads and writes whole chunks, so each is decoded and encoded by one task.
        assert all(np.isin(a, b).all() for a, b in zip(own.edges, chunks, strict=True))
        largest_chunk = math.prod(int(np.diff(edges).max()) for edges in chunks)
        assert own.largest <= max(most, largest_chunk)


@pytest.mark.parametrize("seed", range(30))
def test_groups_are_no_smaller_than_memory_asks_for(seed):
    """Half of the memory would hold a group along one more chunk, unless a window ends before."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(20, 60, 2).tolist()
    source = [np.append(np.arange(0, n, c), n) for n, c in zip(shape, (1, shape[1]), strict=True)]
    target = [np.append(np.arange(0, n, c), n) for n, c in zip(shape, (shape[0], 1), strict=True)]
    most = int(rng.integers(2 * max(shape), math.prod(shape)))
    for own, other in ((source, target), (target, source)):
        found = join(own, other, windows(source, target), most)
        assert 2 * found.largest > most or len(found) == 1
        assert len(found) <= math.ceil(math.prod(shape) / found.largest)


def test_edges_of_groups_of_several_chunks():
    axes = [RegularAxis(10, 3), RunAxis.of_edges(np.array([0, 1, 4, 9, 10])), RegularAxis(0, 3)]
    assert [edges_of(axis).tolist() for axis in axes] == [[0, 3, 6, 9, 10], [0, 1, 4, 9, 10], [0]]
    assert [edges_of(axis, 3).tolist() for axis in axes] == [[0, 9, 10], [0, 9, 10], [0]]
