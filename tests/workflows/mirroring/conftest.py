"""The grid that the tests of copies mirror."""

import pytest
from helpers.mirroring.grid import Grid


@pytest.fixture
def grid(tmp_path):
    return Grid(tmp_path)
