"""Labels that doubles cannot tell apart have no steps that Spark can compute with."""

import numpy as np
import pytest

from icechunk_format.workflows.sampling.axis import Axis


@pytest.mark.parametrize("step", [1, -1])
def test_labels_that_are_one_double_have_no_steps(step):
    labels = (2**53 + np.array([0, 1], np.int64))[::step]
    assert Axis(labels, None, name="x", method="exact").even_steps(2) is None


def test_labels_that_doubles_hold_have_steps():
    labels = 2**53 + np.array([0, 2], np.int64)
    assert Axis(labels, None, name="x", method="exact").even_steps(2) == (2.0**53, 2.0)
