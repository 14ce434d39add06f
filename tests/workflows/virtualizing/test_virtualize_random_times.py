"""Files that count their times in any way are what ``open_mfdataset`` makes of them, or refused."""

from __future__ import annotations

import datetime
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cftime
import numpy as np
import pytest
import xarray as xr
from helpers.archives.running import by_reference, virtualize
from helpers.examples import by_day
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xarray.coding.times import decode_cf_datetime

from icechunk_format.errors import InvalidInputError

pytest.importorskip("virtualizarr")
pytest.importorskip("dask")
pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]

SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
MILLISECOND = 1000
STANDARD = ("standard", "gregorian", None)
GREGORIAN = (*STANDARD, "proleptic_gregorian")


@dataclass(frozen=True, slots=True)
class Coding:
    """Units, reference date and type by which a file counts its times."""

    unit: str
    year: int | None  # of the reference date; None for the first time of the file
    dtype: str
    calendar: str | None

    def reference(self, first):
        date = first if self.year is None else first.replace(year=self.year, month=1, day=1, hour=0)
        return date.strftime("%Y-%m-%d %H:%M:%S"), date

    def encode(self, dates, first):
        """Return numbers, attributes, and whether they are these dates exactly."""
        text, origin = self.reference(first)
        since = [(date - origin) / datetime.timedelta(seconds=1) for date in np.ravel(dates)]
        exact = [Fraction(round(number)) / SECONDS[self.unit] for number in since]
        dtype = np.dtype(self.dtype)
        if dtype.kind == "i":
            limits = np.iinfo(dtype)
            fits = all(n.denominator == 1 and limits.min <= n <= limits.max for n in exact)
            dtype = dtype if fits else np.dtype("float64")
        numbers = np.array([float(n) for n in exact]).astype(dtype)
        is_exact = dtype != "float32" or all(
            Fraction(float(n)) == e for n, e in zip(numbers, exact, strict=True)
        )
        attributes = {"units": f"{self.unit} since {text}"}
        if self.calendar is not None:
            attributes["calendar"] = self.calendar
        return numbers.reshape(np.shape(dates)), attributes, is_exact


@st.composite
def archives(draw):
    calendar = draw(st.sampled_from(["standard", "proleptic_gregorian", "noleap", "360_day"]))
    others = STANDARD if calendar == "standard" else (calendar,)
    count = draw(st.integers(1, 4))
    odd = draw(st.integers(0, 3 * count))
    coding = st.builds(
        Coding,
        st.sampled_from(list(SECONDS)),
        st.sampled_from([None, 1900, 2000]),
        st.sampled_from(["int16", "int32", "int64", "float32", "float64"]),
        st.sampled_from(others),
    )
    common = draw(st.one_of(st.none(), coding))
    codings = [common or draw(coding) for _ in range(count)]
    if odd < count:
        strange = draw(st.sampled_from(["standard", "proleptic_gregorian", "noleap", "360_day"]))
        own = codings[odd]
        codings[odd] = Coding(own.unit, own.year, own.dtype, strange)
    return {
        "codings": codings,
        "start": (
            draw(st.integers(1990, 2040)),
            draw(st.integers(1, 12)),
            draw(st.integers(1, 28)),
        ),
        "hours": draw(st.sampled_from([1, 6, 24])),
        "steps": [draw(st.integers(1, 3)) for _ in range(count)],
        "bounds": draw(st.sampled_from([None, "bounds", "climatology"])),
        "group": draw(st.sampled_from([None, 1, 2])),
        "scalar": draw(st.sampled_from([None, "alike", "own"])),
        "valid": draw(st.booleans()),
        "order": draw(st.permutations(range(count))),
        "calls": draw(st.integers(1, 2)),
    }


def write(path, drawn, number):
    """Write a file; return whether its numbers are its dates exactly."""
    coding = drawn["codings"][number]
    step = datetime.timedelta(hours=drawn["hours"])
    origin = cftime.datetime(*drawn["start"], calendar=coding.calendar or "standard")
    before = sum(drawn["steps"][:number])
    is_exact = []

    def times(dates, *dims, **others):
        numbers, attributes, exact = coding.encode(dates, first)
        is_exact.append(exact)
        return dims, numbers, attributes | others

    for group, rate in [(None, 1), ("inner", drawn["group"])][: 1 + bool(drawn["group"])]:
        count = drawn["steps"][number] * rate
        dates = [origin + step * (before + n / rate) for n in range(count)]
        first = dates[0].replace(minute=0)
        named = {drawn["bounds"]: "limits"} if drawn["bounds"] else {}
        data = {"v": (("time", "x"), (before * rate + np.arange(count))[:, None] * 2.0 + [0, 1])}
        coords = {"time": times(dates, "time", **named)}
        if drawn["bounds"]:
            sides = times([[date, date + step / rate] for date in dates], "time", "side")
            coords["limits"] = sides[:2]
        if drawn["scalar"]:
            coords["reference"] = times(origin + before * step * (drawn["scalar"] == "own"))
        if drawn["valid"]:
            coords["valid"] = times([origin, origin + step], "valid")
        data = xr.Dataset(data, coords)
        how = {name: {"_FillValue": None} for name in data.variables} | {
            "v": {"chunksizes": (1, 2)}
        }
        data.to_netcdf(
            path, engine="h5netcdf", group=group, mode="a" if group else "w", encoding=how
        )
    return all(is_exact)


def is_countable(drawn):
    """Return True if integers count all times in the units of every file."""
    step = Fraction(drawn["hours"], drawn["group"] or 1)
    days = [c for c in drawn["codings"] if c.unit == "days" and c.dtype.startswith("int")]
    hours = [c for c in drawn["codings"] if c.unit == "hours" and c.dtype.startswith("int")]
    return (not days or step % 24 == 0) and (not hours or step % 1 == 0)


def instants(values, calendar):
    """Return microseconds since an epoch of the calendar."""
    flat = np.ravel(values)
    if flat.dtype == object:
        epoch = cftime.datetime(1970, 1, 1, calendar=calendar)
        return np.array([(date - epoch) / datetime.timedelta(microseconds=1) for date in flat])
    return flat.astype("M8[us]").astype("i8").astype("f8")


def assert_near(found, expected, calendar):
    assert np.shape(found) == np.shape(expected)
    difference = instants(found, calendar) - instants(expected, calendar)
    assert np.abs(difference).max(initial=0) <= MILLISECOND


def decoded_limits(data):
    units, calendar = data["time"].attrs["units"], data["time"].attrs.get("calendar", "standard")
    return decode_cf_datetime(data["limits"].values, units, calendar)


@given(archives())
@settings(max_examples=by_day(12), deadline=None, suppress_health_check=list(HealthCheck))
def test_random_archives_are_what_xarray_opens(drawn):
    count, calendars = len(drawn["codings"]), {c.calendar for c in drawn["codings"]}
    is_mixed = len(calendars) > 1 and not calendars <= set(GREGORIAN)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, f"{number}.nc")) for number in range(count)]
        is_exact = [write(file, drawn, number) for number, file in enumerate(files)]
        listed, repository = [files[n] for n in drawn["order"]], Path(folder, "repository")
        try:
            if drawn["calls"] == 2:
                virtualize(listed[:1], repository)
            virtualize(listed, repository)
        except InvalidInputError:
            may_refuse = (
                is_mixed
                or not all(is_exact)
                or not is_countable(drawn)
                or (drawn["calls"] == 2 and drawn["scalar"])  # it was one value of all files
            )
            assert may_refuse
            return
        assert not is_mixed
        calendar = calendars.pop() or "standard"
        for group in [None, "inner"][: 1 + bool(drawn["group"])]:
            with xr.open_mfdataset(
                files, combine="nested", concat_dim="time", data_vars="minimal", coords="minimal",
                compat="override", join="override", engine="h5netcdf", group=group,
            ) as opened:  # fmt: skip
                expected = opened.load()
            found = by_reference(repository, group)
            np.testing.assert_array_equal(found["v"], expected["v"])
            for name in {"time", "valid"} & set(expected.variables):
                assert_near(found[name].values, expected[name].values, calendar)
            parts = [xr.open_dataset(file, group=group).load() for file in files]
            if drawn["bounds"]:
                own = [xr.open_dataset(f, group=group, decode_times=False) for f in files]
                limits = np.concatenate([decoded_limits(part) for part in own])
                raw = by_reference(repository, group, decode_times=False)
                assert_near(decoded_limits(raw), limits, calendar)
            if drawn["scalar"]:
                each = [np.full(part.sizes["time"], part["reference"].values) for part in parts]
                whole = np.broadcast_to(found["reference"].values, found.sizes["time"])
                assert_near(whole, np.concatenate(each), calendar)
