"""Labels of files are stored as they are read, or refused; none becomes another file's label."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.archives.running import by_reference, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository

pytest.importorskip("virtualizarr")
pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore::UserWarning")]

DAYS = {"units": "days since 1858-11-17"}
OLD = {"units": "days since 0001-01-01"}
# 2024-01-01 and 2023-12-31
DAY, OLD_DAY = 60310, 738886
HELD = {
    "float32 days beside float64": (
        (DAY, "f4", DAYS),
        (DAY + 2 / 1440, "f8", DAYS),
        "2024-01-01T00:02",
    ),
    "float32 days beside minutes": (
        (DAY, "f4", DAYS),
        (DAY * 1440 + 2, "i8", {"units": "minutes since 1858-11-17"}),
        "2024-01-01T00:02",
    ),
    "float64 days beside milliseconds": (
        (OLD_DAY, "f8", OLD),
        (OLD_DAY * 86_400_000 + 7, "i8", {"units": "milliseconds since 0001-01-01"}),
        "2023-12-31T00:00:00.007",
    ),
}
REFUSED = {
    "integer days": (
        (DAY, "i4", DAYS),
        (DAY * 24 + 30, "i4", {"units": "hours since 1858-11-17"}),
    ),
    "float64 days beside microseconds": (
        (OLD_DAY, "f8", OLD),
        (OLD_DAY * 86_400_000_000 + 3, "i8", {"units": "microseconds since 0001-01-01"}),
    ),
    "packed": (
        (20, "i2", {"scale_factor": 0.5}),
        (51, "i2", {"scale_factor": 0.2}),
    ),
    "packed beside float64": ((20, "i2", {"scale_factor": 0.5}), (10.2, "f8", {})),
    "float32 beside float64": ((DAY, "f4", {}), (DAY + 0.00139, "f8", {})),
}


def write(path, label, dtype, attributes):
    data = xr.Dataset(
        {"v": ("time", np.array([float(path.stem)], "f4"))},
        {"time": ("time", np.array([label], dtype), attributes)},
    )
    how = {name: {"_FillValue": None} for name in data.variables}
    data.to_netcdf(path, engine="h5netcdf", encoding=how)
    return str(path)


def files_of(tmp_path, labels):
    return [write(tmp_path / f"{n}.nc", *label) for n, label in enumerate(labels)]


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "grown"])
def test_an_array_that_holds_all_labels_is_used(tmp_path, name, is_new):
    *labels, expected = HELD[name]
    files = files_of(tmp_path, labels)
    if not is_new:
        virtualize(files[:1], tmp_path / "r")
    virtualize(files, tmp_path / "r")
    found = by_reference(tmp_path / "r")
    first = np.datetime64(expected, "D").astype("M8[us]")
    times = found["time"].values.astype("M8[ms]").astype("M8[us]")
    np.testing.assert_array_equal(times, [first, np.datetime64(expected, "us")])
    np.testing.assert_array_equal(found["v"].values, [0, 1])


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "grown"])
def test_labels_that_an_array_does_not_hold_are_refused(tmp_path, name, is_new):
    files = files_of(tmp_path, REFUSED[name])
    if not is_new:
        virtualize(files[:1], tmp_path / "r")
    before = None if is_new else Repository.open(str(tmp_path / "r")).resolve(branch="main")
    with raises(InvalidInputError, match="1.nc", refused=1):
        virtualize(files, tmp_path / "r")
    if before is not None:
        assert Repository.open(str(tmp_path / "r")).resolve(branch="main") == before
