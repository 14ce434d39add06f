"""Makes places in memory that several modules of this folder use."""

import pytest
from helpers.builder import new_place


@pytest.fixture
def place():
    """Give a place in memory that nothing was written to."""
    return new_place()
