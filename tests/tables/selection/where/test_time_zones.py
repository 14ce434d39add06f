"""Zones are read as Spark reads them, and local times do not depend on the machine's zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest

from icechunk_format.tables.selection.where.time_zones import time_zone, to_wall_times

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("+02", 7200),
        ("+2", 7200),
        ("-5", -18_000),
        ("-05:30", -19_800),
        ("+0530", 19_800),
        ("UTC+01:02:03", 3723),
        ("GMT-01:02:03", -3723),
        ("Z", 0),
        ("UTC", 0),
        ("UT", 0),
        ("GMT", 0),
    ],
)
def test_offsets(name: str, seconds: int) -> None:
    assert time_zone(name).utcoffset(None) == timedelta(seconds=seconds)


@pytest.fixture
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_tokyo")
def test_the_zone_of_the_machine_does_not_matter() -> None:
    # The hour before and after clocks are set forward in Berlin, at times that no other test uses.
    change = datetime(2019, 3, 31, 1, tzinfo=UTC).timestamp() * 1e6
    times = np.array([change - 1_234_567, change + 1_234_567], np.int64)
    offsets = (to_wall_times(times, "Europe/Berlin") - times) // 3_600_000_000
    assert offsets.tolist() == [1, 2]
