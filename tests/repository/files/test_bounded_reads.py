"""References are cut into boxes of bounded size along the longest axis."""

import numpy as np

from icechunk_format.repository.files import cut_into_boxes


def test_the_longest_axis_is_cut_wherever_the_box_is():
    # One manifest of 100 rows, far from the origin along the axis of one chunk.
    extents = np.array([[[0, 100], [1_000, 1_001]]], np.uint32)
    boxes = list(cut_into_boxes(extents, np.array([1_000]), (100, 1), 300))
    assert [box.box.tolist() for box in boxes] == [
        [[low, low + 25], [1_000, 1_001]] for low in range(0, 100, 25)
    ]
    assert all(box.references <= 301 for box in boxes)
