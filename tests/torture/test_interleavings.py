"""Two calls at once leave what one after the other leaves, or one of them raises ConflictError.

Each call runs in a process of its own. The first stops before a request, the second runs up to one
of its requests or to its end, and the first goes on. Cells are compared by their labels, with
attributes, configurations, and branches and tags with their histories.

More of them, or those of one seed::

    cd tests/torture
    INTERLEAVED=10000 INTERLEAVED_SEED=1 python -m pytest test_interleavings.py -s -k night
"""

from __future__ import annotations

import os
import random

import pytest
from torture.interleavings import run_interleavings
from torture.processes import elsewhere

BY_DAY, BY_NIGHT = {2: 12, 1: 8}, 10_000


@pytest.mark.parametrize("spec_version", BY_DAY)
def test_calls_within_calls_leave_what_an_order_leaves(tmp_path, spec_version):
    with elsewhere() as forking:
        report = forking(
            run_interleavings, tmp_path / "worlds", spec_version, 1, BY_DAY[spec_version]
        )
    assert not report.wrong, "\n".join(report.wrong)
    assert report.outcomes["a serial order"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("spec_version", BY_DAY)
def test_a_night_of_interleavings(tmp_path, spec_version):
    seed = int(os.environ.get("INTERLEAVED_SEED", random.randrange(10**6)))
    number = int(os.environ.get("INTERLEAVED", BY_NIGHT)) // 2
    with elsewhere() as forking:
        report = forking(run_interleavings, tmp_path / "worlds", spec_version, seed, number)
    outcomes = dict(report.outcomes)
    print(f"v{spec_version}, seed {seed}: {report.runs} runs of {report.pairs} pairs: {outcomes}")
    assert not report.wrong, "\n".join(report.wrong)
