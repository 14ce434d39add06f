"""Elements of two writes are compared bit by bit, strings by their characters."""

import numpy as np
import pytest

from icechunk_format.dataset.writing.replanning.merge import differs


def strings(*texts):
    # Equal strings that are different objects.
    return np.array(["".join(list(text)) for text in texts], object)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan]), [True, False, False]),
        (np.array([[1, 2]], "i2"), np.array([[1, 3]], "i2"), [[False, True]]),
        (strings("grün", "ab"), strings("grün", "ac"), [False, True]),
        (np.array(["ab", "c"]), np.array(["ab", "d"]), [False, True]),
        (np.zeros(2, "V0"), np.zeros(2, "V0"), [False, False]),
    ],
)
def test_elements_that_differ(one, other, expected):
    assert differs(one, other).tolist() == expected
