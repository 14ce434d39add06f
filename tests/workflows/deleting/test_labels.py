"""The labels of a long dimension are deleted without a list of its positions."""

import numpy as np
import pytest
from workflows.deleting.test_delete import delete, made, put, read

from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.workflows.deleting import labels


def test_kept_ranges_are_spans(tmp_path, monkeypatch):
    size, place = 2**20, str(tmp_path / "repository")
    made(place, lambda s: put(s, "v", np.arange(size, dtype="i4"), (size,), ["x"]))
    made_lengths, arange = [], np.arange

    def counted(*given, **how):
        found = arange(*given, **how)
        made_lengths.append(len(found))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(np, "arange", counted)
        delete(place, isel="x=0:3")
    assert max(made_lengths) < 1000
    assert np.array_equal(read(place, "v"), np.arange(3, size))


@pytest.mark.parametrize("drop", [[0], [3], [9], [0, 9], [2, 3, 7], [0, 1, 2]])
def test_old_positions_of_each_range_of_kept_ones(drop):
    runs = np.array([[at, at + 1] for at in drop])
    back = IndexMap.dropped(10, runs).inverse
    kept = np.delete(np.arange(10), drop)
    for start in range(len(kept)):
        for stop in range(start + 1, len(kept) + 1):
            found = labels._kept_in(back, 10, start, stop)
            assert found.positions().tolist() == kept[start:stop].tolist()
