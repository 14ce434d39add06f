"""The reference's own Python tests pass over our implementation, as far as it has counterparts.

They run from a checkout of https://github.com/earth-mover/icechunk: ``make peers`` clones it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.peers.reference_suite import EXAMPLES, LEFT_OUT, NOT_APPLICABLE, RUN, S3_IN_FOLDER
from helpers.peers.suites import checkout, run_suite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly]


@pytest.mark.parametrize("name", RUN)
def test_a_file_of_the_reference(name: str, tmp_path: Path) -> None:
    root = checkout("ICECHUNK_CHECKOUT") / "icechunk-python"
    tests, in_folder = [f"tests/{name}"], name in S3_IN_FOLDER
    examples = EXAMPLES.get(name)
    found = run_suite(
        root, tests, NOT_APPLICABLE, tmp_path, s3_in_folder=in_folder, examples=examples
    )
    print(f"\n{name}: {found.summary()}")
    assert not found.failed, found.output
    assert found.counts["passed"], found.summary()


def test_every_file_of_the_reference_is_listed() -> None:
    tests = checkout("ICECHUNK_CHECKOUT") / "icechunk-python" / "tests"
    found = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py")}
    assert found - {*RUN, *LEFT_OUT} == set()
