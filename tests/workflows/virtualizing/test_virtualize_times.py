"""Times of files are instants: whatever calendar, units and type each file counts them in."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.archives.running import by_reference, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError

pytest.importorskip("virtualizarr")
pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore::UserWarning")]


def write(path, times, units, dtype="int64", calendar="standard", **others):
    """Write a file; ``others`` are further coordinates and variables."""
    own = {"units": units, "calendar": calendar, **others.pop("time_attributes", {})}
    values = np.arange(len(times), dtype="f4") + 10 * int(path.stem)
    data = xr.Dataset(
        {"v": ("time", values)}, {"time": ("time", np.array(times, dtype), own), **others}
    )
    how = {name: {"_FillValue": None} for name in data.variables}
    how["v"]["chunksizes"] = (1,)
    data.to_netcdf(path, engine="h5netcdf", encoding=how)
    return str(path)


def test_calendars_are_not_mixed(tmp_path):
    files = [
        write(tmp_path / "0.nc", [0, 1], "days since 2000-02-27"),
        write(tmp_path / "1.nc", [4, 5], "days since 2000-02-27"),
        write(tmp_path / "2.nc", [0, 1], "days since 2000-03-07", calendar="noleap"),
        write(tmp_path / "3.nc", [0, 1], "days since 2000-03-09", calendar="proleptic_gregorian"),
    ]
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    assert [statuses(done)[f"{n}.nc"] for n in range(4)] == ["taken", "taken", "refused", "taken"]
    [row] = [row for row in done.report.to_pylist() if row["status"] == "refused"]
    assert row["array"] == "time"
    assert "the attribute calendar" in row["difference"]
    expected = ["2000-02-27", "2000-02-28", "2000-03-02", "2000-03-03", "2000-03-09", "2000-03-10"]
    found = by_reference(tmp_path / "repository")["time"].values
    np.testing.assert_array_equal(found, np.array(expected, found.dtype))


def test_gregorian_calendars_are_not_mixed_before_the_reform(tmp_path):
    files = [
        write(tmp_path / "0.nc", [0, 1], "days since 1500-01-01"),
        write(tmp_path / "1.nc", [0], "days since 1500-01-03", calendar="proleptic_gregorian"),
    ]
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    assert statuses(done) == {"0.nc": "taken", "1.nc": "refused"}


@pytest.mark.parametrize("name", ["reference", "valid"])
def test_times_without_the_dimension_are_compared_as_instants(name, tmp_path):
    def one(number, start, numbers, units):
        other = ("valid" if name == "valid" else (), numbers, {"units": units})
        return write(tmp_path / f"{number}.nc", [start], "hours since 2024-07-01", **{name: other})

    zero = 0 if name == "reference" else [0, 24]
    day = 24 if name == "reference" else [24, 48]
    files = [
        one(0, 0, day, "hours since 2024-06-30"),
        one(1, 1, zero, "hours since 2024-07-01"),
        one(2, 2, zero, "hours since 2024-07-02"),
    ]
    how = {"loadable": ("time", name)}
    virtualize(files[:2], tmp_path / "alike", **how)
    found = by_reference(tmp_path / "alike")[name]
    expected = np.array(["2024-07-01", "2024-07-02"][: found.size], found.dtype)
    np.testing.assert_array_equal(found.values.reshape(-1), expected)
    with raises(InvalidInputError, match="its values differ", refused=1):
        virtualize(files, tmp_path / "alike", **how)
    if name == "valid":
        with raises(InvalidInputError, match="its values differ", refused=1):
            virtualize(files, tmp_path / "repository", **how)
        return
    virtualize(files, tmp_path / "repository")  # scalars are converted wherever they are
    found = by_reference(tmp_path / "repository")[name]
    expected = np.array(["2024-07-01", "2024-07-01", "2024-07-02"], found.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("attribute", ["bounds", "climatology"])
@pytest.mark.parametrize("loadable", [None, ("time",)])
def test_bounds_are_converted_with_their_times(attribute, loadable, tmp_path):
    def one(day):
        bounds = (("time", "side"), np.array([[0, 1], [1, 2]]))
        return write(
            tmp_path / f"{day}.nc", [0, 1], f"hours since 2024-07-0{day}", calendar="standard",
            time_attributes={attribute: "limits"}, limits=bounds,
        )  # fmt: skip

    files = [one(1), one(2), one(3)]
    how = {"loadable": loadable}
    virtualize(files[:2], tmp_path / "repository", **how)
    virtualize(files, tmp_path / "repository", **how)
    found = by_reference(tmp_path / "repository", decode_times=False)
    assert found["time"].values.tolist() == [0, 1, 24, 25, 48, 49]
    expected = found["time"].values[:, None] + [0, 1]
    np.testing.assert_array_equal(found["limits"].values, expected)
    done = virtualize(files, tmp_path / "refused", loadable=(), on_mismatch="skip")
    assert statuses(done) == {"1.nc": "taken", "2.nc": "refused", "3.nc": "refused"}
    assert {row["array"] for row in done.report.to_pylist()[1:]} == {"limits"}


@pytest.mark.parametrize(
    ("dtype", "units", "wide"),
    [
        ("int32", "seconds since 1956-07-01", "int64"),
        ("int16", "hours since 2024-07-01", "int64"),
        ("float32", "minutes since 1900-01-01", "float64"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_type_that_cannot_hold_converted_times_becomes_wider(
    dtype, units, wide, at_once, tmp_path
):
    odd = "00:00" if units.startswith("hours") else "00:07"
    files = [
        write(tmp_path / "0.nc", [0, 60], units, dtype),
        write(tmp_path / "1.nc", [0, 60], f"minutes since 2029-08-01 {odd}", dtype),
        write(tmp_path / "2.nc", [0, 60], f"minutes since 2031-08-01 {odd}", dtype),
    ]
    if not at_once:
        virtualize(files[:1], tmp_path / "repository")
        assert by_reference(tmp_path / "repository", decode_times=False)["time"].dtype == dtype
    done = virtualize(files, tmp_path / "repository")
    assert done.files_added == (3 if at_once else 2)
    raw = by_reference(tmp_path / "repository", decode_times=False)
    assert (raw["time"].dtype, raw["time"].attrs["units"]) == (wide, units)
    assert raw["v"].values.tolist() == [0, 1, 10, 11, 20, 21]
    expected = np.concatenate([xr.open_dataset(file)["time"].values for file in files])
    found = by_reference(tmp_path / "repository")["time"].values
    assert (abs(found - expected) < np.timedelta64(1, "ms")).all()
    assert virtualize(files, tmp_path / "repository").files_added == 0


def test_missing_times_stay_missing(tmp_path):
    def one(day, other):
        attributes = {"units": f"hours since 2024-07-0{day}", "_FillValue": np.int32(-1)}
        return write(
            tmp_path / f"{day}.nc", [0], f"hours since 2024-07-0{day}",
            seen=("time", np.array([other], "i4"), attributes),
        )  # fmt: skip

    files = [one(1, 3), one(2, -1), one(3, 3)]
    virtualize(files, tmp_path / "repository", loadable=("time", "seen"))
    found = by_reference(tmp_path / "repository")["seen"].values
    assert np.isnat(found).tolist() == [False, True, False]
    assert str(found[2])[:13] == "2024-07-03T03"


def test_an_odd_first_file_does_not_refuse_files_with_their_own_units(tmp_path):
    def one(number, dtype="f4", steps=2):
        path = tmp_path / f"{number}.nc"
        times = np.arange(steps), {"units": f"hours since 2024-07-0{number + 1}"}
        attributes = {"title": f"number {number}"}
        data = xr.Dataset({"v": ("time", np.full(steps, number, dtype))}, attrs=attributes)
        data = data.assign_coords(time=("time", *times))
        data.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (1,)}})
        return str(path)

    files = [one(0, "f8"), *(one(number, steps=number + 1) for number in range(1, 6))]
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    assert statuses(done) == {"0.nc": "refused", **{f"{n}.nc": "taken" for n in range(1, 6)}}
    found = by_reference(tmp_path / "repository")["v"]
    assert found.dtype == "float32"
    assert found.values.tolist() == [n for n in range(1, 6) for _ in range(n + 1)]


@pytest.mark.parametrize("unit", ["months", "years"])
def test_a_concatenated_coordinate_of_months_stays_encoded(unit, tmp_path):
    files = [
        write(tmp_path / f"{n}.nc", [2 * n, 2 * n + 1], f"{unit} since 2000-01-01")
        for n in range(3)
    ]
    done = virtualize(files[::2], tmp_path / "repository")
    assert all(f"'{unit} since 2000-01-01'" in row["note"] for row in done.report.to_pylist())
    virtualize(files, tmp_path / "repository")  # in between
    found = by_reference(tmp_path / "repository", decode_times=False)
    assert found["time"].values.tolist() == list(range(6))
    assert found["time"].attrs["units"] == f"{unit} since 2000-01-01"
    assert found["v"].values.tolist() == [0, 1, 10, 11, 20, 21]


def test_months_since_another_date_are_refused(tmp_path):
    files = [write(tmp_path / f"{n}.nc", [n], f"months since 200{n}-01-01") for n in range(2)]
    with raises(InvalidInputError, refused=1) as caught:
        virtualize(files, tmp_path / "repository")
    assert "the attribute units is" in caught.value.message
    assert "loadable" not in caught.value.message


def test_months_of_30_days_are_converted(tmp_path):
    files = [
        write(tmp_path / "0.nc", [0, 1], "months since 2000-01-01", calendar="360_day"),
        write(tmp_path / "1.nc", [0, 1], "months since 2000-03-01", calendar="360_day"),
    ]
    virtualize(files, tmp_path / "repository")
    found = by_reference(tmp_path / "repository", decode_times=False)
    assert found["time"].values.tolist() == [0, 1, 2, 3]
