"""The edges of cells along an axis."""

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.zonal.axes import cell_axis


def test_edges_lie_midway_and_positions_count_cells():
    axis = cell_axis("lat", np.array([10.0, 6.0, 4.0, 3.0]))
    assert axis.edges.tolist() == [12, 8, 5, 3.5, 2.5]
    assert axis.position(np.array([12, 10, 8, 3.5, 3.0, 2.5])).tolist() == [0, 0.5, 1, 3, 3.5, 4]
    outside = axis.position(np.array([20.0, -20.0]))
    assert outside[0] < 0
    assert outside[1] > 4


def test_labels_rounded_to_float32_have_even_edges():
    axis = cell_axis("lon", np.arange(3600, dtype=np.float32) * np.float32(0.1))
    assert axis.even_ends is not None
    assert np.allclose(axis.edges[[0, -1]], [-0.05, 359.95], atol=1e-4)


def test_bounds_go_before_labels():
    bounds = np.array([[0, 1], [1, 4], [4, 9]])
    assert cell_axis("x", np.array([0.5, 2, 5]), bounds=bounds).edges.tolist() == [0, 1, 4, 9]
    down = cell_axis("x", np.array([5, 2, 0.5]), bounds=bounds[::-1])
    assert down.edges.tolist() == [9, 4, 1, 0]


def test_bounds_with_gaps_are_told_and_left():
    with pytest.warns(UserWarning, match="with gaps or overlaps"):
        axis = cell_axis("x", np.array([1.0, 2, 3]), bounds=np.zeros((3, 2)))
    assert axis.edges.tolist() == [0.5, 1.5, 2.5, 3.5]


def test_cells_end_at_the_poles():
    axis = cell_axis("lat", np.linspace(90, -90, 5), ends_at_poles=True)
    assert axis.edges.tolist() == [90, 67.5, 22.5, -22.5, -67.5, -90]
    assert axis.stretches.tolist() == [2, 1, 1, 1, 2]
    assert axis.position(np.array([90.0, -90.0])).tolist() == [0.5, 4.5]
    with raises(InvalidInputError, match="some are beyond the poles", coordinate="lat"):
        cell_axis("lat", np.linspace(200, -200, 5), ends_at_poles=True)


def test_longitudes_that_jump_go_on():
    axis = cell_axis("lon", np.array([90.0, 179.0, -91.0]), period=360.0)
    assert axis.labels.tolist() == [90, 179, 269]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([1.0], "has one label and no bounds"),
        ([1.0, 3.0, 2.0], "all ascend or all descend"),
        ([1.0, np.nan], "are not numbers"),
        ([], "0 labels"),
    ],
)
def test_labels_that_bound_no_cells_are_refused(labels, told):
    with raises(InvalidInputError, match=told, coordinate="lat"):
        cell_axis("lat", np.array(labels))
