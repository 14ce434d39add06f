"""The tests of VirtualiZarr's Icechunk writer pass, with our rows of ``refs`` below it.

They need a checkout, since its wheel has no ``conftest.py``: ``make peers`` clones it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.peers.suites import checkout, run_suite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly]

NOT_APPLICABLE = {
    "test_writers/test_icechunk.py::test_checksum": (
        "times of objects count whole seconds for us, and the test changes a file in the second "
        "of its checksum"
    ),
}


def test_the_writer_of_virtualizarr(tmp_path: Path) -> None:
    root = checkout("VIRTUALIZARR_CHECKOUT")
    tests = ["virtualizarr/tests/test_writers/test_icechunk.py"]
    found = run_suite(root, tests, NOT_APPLICABLE, tmp_path)
    print(found.summary())
    assert not found.failed, found.output
    assert found.counts["passed"] >= 50, found.summary()
