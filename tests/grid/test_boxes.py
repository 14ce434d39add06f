"""Boxes that share a coordinate are found as overlapping; boxes that only touch are not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.grid.boxes import first_overlap

RANGES = st.tuples(st.integers(0, 5), st.integers(0, 3)).map(lambda r: (r[0], r[0] + r[1]))


@given(
    st.integers(0, 3).flatmap(
        lambda ndim: st.lists(st.lists(RANGES, min_size=ndim, max_size=ndim), max_size=5).map(
            lambda boxes: np.array(boxes, dtype=np.uint32).reshape(len(boxes), ndim, 2)
        )
    )
)
def test_an_overlap_is_found_when_there_is_one(boxes):
    def share(one, other):
        return all(
            max(a, c) < min(b, d)
            for (a, b), (c, d) in zip(boxes[one].tolist(), boxes[other].tolist(), strict=True)
        )

    pairs = [(i, j) for j in range(len(boxes)) for i in range(j) if share(i, j)]
    found = first_overlap(boxes)
    assert found in pairs if pairs else found is None
