"""A condition of replaceWhere has one meaning for rows and labels, in every type and zone."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.dimensions import DimensionIndices
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.tables.writing.prepare import prepare_write

HOURS = [dt.datetime(2024, 7, 1) + dt.timedelta(hours=n) for n in range(72)]
NTZ, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
DAY = "x >= '2024-07-02' AND x < '2024-07-03'"


def shown(at, kind, zone):
    """Return the clock that a condition sees, as the column shows it."""
    if kind == UTC:
        at = at.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    return at


def table(labels, kind):
    return pa.table({"x": pa.array(labels, kind), "v": np.ones(len(labels))})


def region(place, rows, where, zone):
    options = WriteOptions(mode="overwrite", replace_where=where)
    prepared = prepare_write(place, rows.schema, options)
    found = DimensionIndices(prepared, {"x": rows["x"]}).replaced_region(zone)
    return found["x"].positions().tolist()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("kind", [NTZ, UTC], ids=str)
@pytest.mark.parametrize(
    ("where", "holds"),
    [
        (DAY, lambda at: at.day == 2),
        ("date(x) = '2024-07-02'", lambda at: at.day == 2),
        ("hour(x) = 6", lambda at: at.hour == 6),
        (
            "x = TIMESTAMP_NTZ '2024-07-02 00:00:00'",
            lambda at: at == dt.datetime(2024, 7, 2),
        ),
    ],
)
def test_times(tmp_path, zone, kind, where, holds):
    place = str(tmp_path / "r")
    write_table(place, table(HOURS, NTZ), WriteOptions(dims=("x",)))
    wanted = [n for n, at in enumerate(HOURS) if holds(shown(at, kind, zone))]
    inside = table([HOURS[wanted[0]]], kind)
    assert region(place, inside, where, zone) == wanted
    outside = next(at for n, at in enumerate(HOURS) if n not in wanted)
    with raises(InvalidInputError, match="leaves out 1 label", option="replaceWhere"):
        region(place, table([outside], kind), where, zone)


def test_new_labels_are_checked_as_they_will_be_read(tmp_path):
    place = str(tmp_path / "r")
    write_table(place, table(HOURS, NTZ), WriteOptions(dims=("x",)))
    late = dt.datetime(2024, 7, 4, 3)  # 3 July in New York
    where = "x >= '2024-07-03' AND x < '2024-07-04'"
    wanted = [n for n, at in enumerate(HOURS) if shown(at, UTC, "America/New_York").day == 3]
    assert region(place, table([late], UTC), where, "America/New_York") == wanted


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_floats_are_compared_as_they_are_stored(tmp_path, kind):
    place = str(tmp_path / "r")
    write_table(place, table([0.0, 0.1, 0.2], pa.float32()), WriteOptions(dims=("x",)))
    rows = table([0.1], kind)
    assert region(place, rows, "x > 0.05 AND x < 0.15", "UTC") == [1]
    with raises(InvalidInputError, match="such as x=0.10000000149011612"):
        region(place, rows, "x > 0.05 AND x <= 0.1", "UTC")


def test_dates_are_compared_with_stored_times(tmp_path):
    place = str(tmp_path / "r")
    write_table(place, table(HOURS, NTZ), WriteOptions(dims=("x",)))
    rows = table([dt.date(2024, 7, 2)], pa.date32())
    assert region(place, rows, DAY, "America/New_York") == list(range(24, 48))


@pytest.mark.parametrize(
    ("kind", "labels", "where", "wanted"),
    [
        (pa.int64(), [1, 2, 3], "x >= 2", [1, 2]),
        (pa.int32(), [1, 2, 3], "x IN (1, 3)", [0, 2]),
        (pa.string(), ["a", "b", "c"], "x < 'c'", [0, 1]),
        (pa.duration("us"), [1, 2, 3], "x > INTERVAL '0.000001' SECOND", [1, 2]),
    ],
)
def test_other_types(tmp_path, kind, labels, where, wanted):
    place = str(tmp_path / "r")
    write_table(place, table(labels, kind), WriteOptions(dims=("x",)))
    assert region(place, table([labels[wanted[0]]], kind), where, "UTC") == wanted
