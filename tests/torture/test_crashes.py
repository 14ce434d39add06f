"""A process that writes is killed at any request: its branch is as it was, or has the whole change.

A process is killed before, within or after the n-th request to its storage. What is left is read,
verified, changed by the same call again, and collected; all of it equals a run that was not killed.
This is done once for all kills after the same writes that leave the same files, such as those at
reads.

``make nightly`` tries every request of every call (ten minutes of one core); one of them, with its
table, and with inline chunks instead of objects::

    CRASHED_CALLS="rechunk,merge" python -m pytest tests/torture/test_crashes.py -s -k night
    CRASHED_CHUNKS=inline python -m pytest tests/torture/test_crashes.py -s -k night

The requests to the table of a mirror have a test of their own: test_mirror_killed_requests.
"""

from __future__ import annotations

import os

import pytest
from torture.calls import CALLS
from torture.crashes import crashes_of
from torture.processes import elsewhere

BY_DAY = (
    *(("write replaceWhere", 2), ("batch of a stream", 1), ("delete labels", 2), ("merge", 2)),
    *(("rechunk", 1), ("collect_garbage", 2), ("upgrade", 1)),
)
# Those of the night, and about how many requests of each: all, unless it is said.
CHOSEN = os.environ.get("CRASHED_CALLS", ",".join(CALLS)).split(",")
MOST = int(os.environ.get("CRASHES", "0")) or None
CHUNKS = os.environ.get("CRASHED_CHUNKS", "wide")
NEED_REFERENCE = ("virtualize", "mirror")


@pytest.fixture(scope="module")
def forking():
    with elsewhere() as call:
        yield call


def shown(row):
    states = ", ".join(f"{count} {state}" for state, count in sorted(row.states.items()))
    name = f"{row.name}, v{row.spec_version}"
    return f"| {name} | {row.requests} | {row.crashes} | {row.followed} | {states} |"


@pytest.mark.parametrize(("name", "spec_version"), BY_DAY)
def test_a_killed_call_leaves_all_or_nothing(tmp_path, forking, name, spec_version):
    row = forking(crashes_of, tmp_path / "worlds", name, spec_version, 1)
    assert not row.wrong, "\n".join(row.wrong)
    assert row.crashes > 1


def by_night():
    return [
        pytest.param(
            name,
            version,
            marks=[pytest.mark.needs_reference] if name.startswith(NEED_REFERENCE) else [],
        )
        for name in CHOSEN for version in CALLS[name].versions
    ]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("name", "spec_version"), by_night())
def test_by_night_each_request_of_each_call(tmp_path, forking, name, spec_version):
    row = forking(crashes_of, tmp_path / "worlds", name, spec_version, MOST, None, CHUNKS)
    print(shown(row))
    assert not row.wrong, "\n".join(row.wrong)
