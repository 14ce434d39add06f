"""Random maps of indices, with the new index of each element as a list."""

import numpy as np
from hypothesis import strategies as st

from icechunk_format.grid.index_maps import IndexMap


def ranges_of(positions):
    """Return the ranges of ascending positions."""
    found = []
    for at in positions:
        if found and found[-1][1] == at:
            found[-1][1] = at + 1
        else:
            found.append([at, at + 1])
    return np.array(found, np.int64).reshape(-1, 2)


@st.composite
def index_maps(draw, before=None):
    """Draw a map, and the new index of each element as a list."""
    if before is None:
        before = draw(st.integers(0, 12))
    how = draw(st.sampled_from(["resized", "shifted", "dropped", "inserted", "indices"]))
    same = list(range(before))
    if how == "resized":
        after = draw(st.integers(0, 15))
        return IndexMap.resized(before, after), [i if i < after else -1 for i in same]
    if how == "shifted":
        offset, after = draw(st.integers(-14, 14)), draw(st.integers(0, 15))
        found = [i + offset if 0 <= i + offset < after else -1 for i in same]
        return IndexMap.shifted(before, offset, after), found
    if how == "dropped":
        gone = sorted(draw(st.sets(st.sampled_from(same)))) if same else []
        kept = [i for i in same if i not in gone]
        found = [kept.index(i) if i in kept else -1 for i in same]
        return IndexMap.dropped(before, ranges_of(gone)), found
    after = before + draw(st.integers(0, 4))
    new = draw(st.permutations(range(after)))
    if how == "inserted":
        fresh = sorted(new[before:])
        return IndexMap.dropped(after, ranges_of(fresh)).inverse, sorted(new[:before])
    found = [at if draw(st.booleans()) else -1 for at in new[:before]]
    return IndexMap.of_indices(np.array(found, np.int64), after), found
