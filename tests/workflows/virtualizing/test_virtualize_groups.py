"""Groups of one file have their own lengths of a dimension, and so their own places."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
import xarray as xr
from helpers.archives.running import by_reference, statuses, virtualize

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference

GROUPS = {None: 4, "fast": 8, "fast/slow": 2}


def swath(path, number, lengths=None, at=2e9):
    """Write steps of three groups, each with its own rate; lengths of months in the second."""
    path.unlink(missing_ok=True)
    for group, steps in (lengths or GROUPS).items():
        times = number + np.arange(steps) / steps
        data = xr.Dataset({"v": (("time", "x"), (times * 1000)[:, None] + [0.0, 1.0])})
        data = data.assign_coords(time=("time", times, {"units": "days since 2024-07-01"}))
        how = {"v": {"chunksizes": (2, 2)}}
        mode = "a" if path.exists() else "w"
        data.to_netcdf(path, engine="h5netcdf", group=group, mode=mode, encoding=how)
    os.utime(path, (at, at))
    return str(path)


def assert_is_all(repository, files, groups=GROUPS):
    for group in groups:
        parts = [xr.open_dataset(file, group=group).load() for file in files]
        expected = xr.concat(parts, "time", data_vars="minimal")
        xr.testing.assert_equal(by_reference(repository, group), expected)


def test_each_group_is_as_long_as_its_own_dimension(tmp_path):
    files = [swath(tmp_path / f"{number}.nc", number) for number in range(4)]
    virtualize([files[3], files[1]], tmp_path / "repository")
    assert_is_all(tmp_path / "repository", [files[1], files[3]])
    virtualize([files[2], files[0]], tmp_path / "repository")  # before, and between the others
    assert_is_all(tmp_path / "repository", files)
    swath(tmp_path / "3.nc", 3, {None: 8, "fast": 16, "fast/slow": 2}, at=2e9 + 9)
    assert statuses(virtualize(files, tmp_path / "repository"))["3.nc"] == "refreshed"
    assert_is_all(tmp_path / "repository", files)


def test_groups_may_differ_in_later_files_alone_and_grow(tmp_path):
    alike = dict.fromkeys(GROUPS, 4)
    files = [swath(tmp_path / f"{n}.nc", n, alike if n < 2 else None) for n in range(4)]
    virtualize(files[:2], tmp_path / "repository")
    virtualize(files, tmp_path / "repository")
    assert_is_all(tmp_path / "repository", files)
    swath(tmp_path / "2.nc", 2, at=2e9 + 9)
    assert statuses(virtualize(files, tmp_path / "repository"))["2.nc"] == "refreshed"
    assert_is_all(tmp_path / "repository", files)


def test_a_group_without_steps_is_named(tmp_path):
    files = [swath(tmp_path / "0.nc", 0), swath(tmp_path / "1.nc", 1, {**GROUPS, "fast": 0})]
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    [row] = [row for row in done.report.to_pylist() if row["status"] == "refused"]
    assert row["file"].endswith("1.nc")
    assert "fast" in f"{row['array']} {row['difference']}"
    assert_is_all(tmp_path / "repository", files[:1])


def shared(path, number):
    """Write a group two levels down whose dimensions have coordinates at the root alone."""
    with h5py.File(path, "w") as file:
        file["time"] = number * 3 + np.arange(3.0)
        file["time"].attrs["units"] = "days since 2024-07-01"
        file["time"].attrs["bounds"] = "time_bounds"
        file["x"], file["y"] = [1.0, 2.0], [5.0, 6.0, 7.0]
        for name in "time", "x", "y":
            file[name].make_scale(name)
        file["time_bounds"] = number * 3 + np.arange(3.0)[:, None] + [0.0, 1.0]
        file["upper/lower/v"] = np.arange(6.0).reshape(3, 2) + 10 * number
        file["upper/x"] = [1.0, 2.0]
        file["upper/x"].attrs["level"] = "upper"
        file["upper/x"].make_scale("x")
        values = file["upper/lower/v"]
        values.dims[0].attach_scale(file["time"])
        values.dims[1].attach_scale(file["upper/x"])
        file["time_bounds"].dims[0].attach_scale(file["time"])
        file["time_bounds"].dims[1].attach_scale(file["x"])
    return str(path)


def test_groups_inherit_coordinates_of_their_dimensions(tmp_path):
    files = [shared(tmp_path / f"{number}.nc", number) for number in range(3)]
    virtualize(files[:2], tmp_path / "repository")
    virtualize(files, tmp_path / "repository")
    found = by_reference(tmp_path / "repository", "upper/lower")
    inherited = [xr.open_datatree(file, engine="h5netcdf") for file in files]
    parts = [tree["upper/lower"].to_dataset().load() for tree in inherited]
    expected = xr.concat(parts, "time", data_vars="minimal")
    xr.testing.assert_equal(found.drop_vars("time_bounds"), expected.drop_vars("y"))
    assert found["x"].attrs["level"] == "upper"  # the nearest group above
    assert found["time_bounds"].shape == (9, 2)
    assert "y" not in found.variables


def test_a_coordinate_of_another_length_is_not_inherited(tmp_path):
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["x"] = [1.0, 2.0, 3.0]
        file["x"].make_scale("x")
        file["inner/x_of_inner"] = [1.0, 2.0]
        file["inner/x_of_inner"].make_scale("x")
        file["inner/v"] = [1.0, 2.0]
        file["inner/v"].dims[0].attach_scale(file["inner/x_of_inner"])
        file.move("inner/x_of_inner", "inner/other")
        file["inner/v"].dims[0].label = "x"
    with h5py.File(tmp_path / "1.nc", "w") as file:
        file["x"] = [1.0, 2.0]
        file["x"].make_scale("x")
        file["inner/v"] = [1.0, 2.0]
        file["inner/v"].dims[0].attach_scale(file["x"])
    for number, names in enumerate([{"v", "other"}, {"v", "x"}]):
        virtualize(str(tmp_path / f"{number}.nc"), tmp_path / f"{number}", concat_dim=())
        assert set(by_reference(tmp_path / f"{number}", "inner").variables) == names
