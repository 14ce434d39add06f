"""Bounds of a scalar time get the dimension that the scalar becomes."""

from __future__ import annotations

import netCDF4
import numpy as np
import pytest
from helpers.archives.running import by_reference, virtualize

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


def write(folder, numbers, *, units="seconds since 2000-01-01 12:00:00"):
    for number in numbers:
        with netCDF4.Dataset(folder / f"{number}.nc", "w") as file:
            file.createDimension("x", 2)
            file.createDimension("nb", 2)
            time = file.createVariable("time", "f8", ())
            time.units, time.bounds = units, "time_bounds"
            time[...] = 300 + 600 * number
            bounds = file.createVariable("time_bounds", "f8", ("nb",))
            bounds[:] = [600 * number, 600 * number + 600]
            file.createVariable("v", "f4", ("x",))[:] = [number, 7]


def check(path, count):
    found = by_reference(path, decode_times=False)
    assert found["v"].dims == ("time", "x")
    assert found["v"].values[:, 0].tolist() == list(range(count))
    assert found["time_bounds"].dims == ("time", "nb")
    expected = [[600 * n, 600 * n + 600] for n in range(count)]
    assert found["time_bounds"].values.tolist() == expected


def test_scans_with_bounds_are_concatenated(tmp_path):
    write(tmp_path, range(3))
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    check(tmp_path / "repository", 3)


def test_later_scans_are_appended(tmp_path):
    for count in (1, 2, 4):
        write(tmp_path, range(count))
        virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
        check(tmp_path / "repository", count)


def test_bounds_follow_the_units_of_their_times(tmp_path):
    write(tmp_path, [0, 1])
    with netCDF4.Dataset(tmp_path / "1.nc", "a") as file:
        file["time"].units = "minutes since 2000-01-01 12:00:00"
        file["time"][...] = 15
        file["time_bounds"][:] = [10, 20]
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    found = by_reference(tmp_path / "repository", decode_times=False)
    np.testing.assert_array_equal(found["time"], [300, 900])
    np.testing.assert_array_equal(found["time_bounds"], [[0, 600], [600, 1200]])
