"""Small archives: a few files of a dataset, in the ways that formats have of storing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS, ROWS, COLUMNS = 4, 6, 8
DIMS = ("time", "y", "x")
COMPRESSED = {"t2m": {"chunksizes": (2, ROWS, 4), "zlib": True, "complevel": 1, "shuffle": True}}


def dataset(number: int, *, steps: int = STEPS, start: int | None = None) -> xr.Dataset:
    """Return the data of one file: hours that follow those of the file before."""
    first = STEPS * number if start is None else start
    hours = np.arange(first, first + steps)
    grid = np.arange(ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS)
    values = grid[None] + 100 * hours[:, None, None].astype("float32")
    return xr.Dataset(
        {"t2m": (DIMS, values, {"units": "K", "long_name": "temperature"})},
        {
            "time": ("time", hours, {"units": "hours since 2024-07-01", "calendar": "standard"}),
            "y": ("y", np.linspace(60, 50, ROWS), {"units": "degrees_north"}),
            "x": ("x", np.arange(COLUMNS) * 0.5, {"units": "degrees_east"}),
        },
        attrs={"title": "small", "history": f"made as file {number}"},
    )


def archive(
    folder: Path, make: Callable[[Path, int], object] | None = None, count: int = 3
) -> list[str]:
    """Write files ``0.nc`` and so on, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        (make or compressed)(path, number)
    return [str(path) for path in paths]


def compressed(path: Path, number: int, **how: Any) -> None:
    """Write NetCDF4 with chunks of two steps, shuffled and compressed."""
    dataset(number, **how).to_netcdf(path, engine="h5netcdf", encoding=COMPRESSED)


def packed(path: Path, number: int) -> None:
    """Write 16-bit integers with a scale, an offset and missing values."""
    data = dataset(number)
    data["t2m"] = data["t2m"].where(data["t2m"] != 5)
    settings = {
        "dtype": "int16",
        "scale_factor": 0.5,
        "add_offset": 100.0,
        "_FillValue": -9999,
        "chunksizes": (1, ROWS, COLUMNS),
        "zlib": True,
    }
    data.to_netcdf(path, engine="h5netcdf", encoding={"t2m": settings})


def contiguous(path: Path, number: int) -> None:
    """Write NetCDF4 without chunks."""
    dataset(number).to_netcdf(path, engine="h5netcdf")


def months(path: Path, number: int) -> None:
    """Write files of different lengths without chunks, as months have them."""
    lengths = (3, 2, 4)
    start = sum(lengths[:number])
    dataset(number, steps=lengths[number], start=start).to_netcdf(path, engine="h5netcdf")


def records(path: Path, number: int) -> None:
    """Write NetCDF3 with record variables."""
    how = {"format": "NETCDF3_64BIT", "encoding": {"time": {"dtype": "int32"}}}
    dataset(number).to_netcdf(path, engine="scipy", unlimited_dims=["time"], **how)


def classic(path: Path, number: int) -> None:
    """Write NetCDF3 without record variables."""
    how = {"format": "NETCDF3_64BIT", "encoding": {"time": {"dtype": "int32"}}}
    dataset(number).to_netcdf(path, engine="scipy", **how)


def by_h5py(
    path: Path,
    number: int,
    dtype: Any = ">f4",
    *,
    fill: Any = None,
    with_gap: bool = False,
) -> None:
    """Write HDF5 with dimension scales: big endian, enums, or chunks that nobody wrote."""
    data = dataset(number)
    with h5py.File(path, "w") as file:
        for name in DIMS:
            file[name] = data[name].values
            file[name].make_scale(name)
            for key, value in data[name].attrs.items():
                file[name].attrs[key] = value
        array = file.create_dataset(
            "t2m", (STEPS, ROWS, COLUMNS), dtype, chunks=(2, ROWS, 4), fillvalue=fill
        )
        values = data["t2m"].values
        if h5py.check_enum_dtype(array.dtype):
            values = (values % 3).astype("i1")
        if with_gap:
            array[:2] = values[:2]
        else:
            array[:] = values
        for axis, name in enumerate(DIMS):
            array.dims[axis].attach_scale(file[name])


def enums(path: Path, number: int) -> None:
    """Write HDF5 whose values are members of an enumeration."""
    by_h5py(path, number, h5py.enum_dtype({"clear": 0, "cloud": 1, "rain": 2}, basetype="i1"))


def gaps(path: Path, number: int) -> None:
    """Write HDF5 with a fill value and chunks that nobody wrote."""
    by_h5py(path, number, "<f4", fill=-5.0, with_gap=True)


def texts(path: Path, number: int) -> None:
    """Write a coordinate of texts beside the time, and a scalar that is the same everywhere."""
    data = dataset(number)
    names = np.array([f"run {hour}" for hour in data["time"].values], dtype=object)
    data = data.assign_coords(run=("time", names), height=2.0)
    data.to_netcdf(path, engine="h5netcdf", encoding={"t2m": {"chunksizes": (2, ROWS, 4)}})


KINDS = {
    "compressed": compressed,
    "packed": packed,
    "contiguous": contiguous,
    "months": months,
    "netcdf3 records": records,
    "netcdf3 classic": classic,
    "big endian": by_h5py,
    "enums": enums,
    "gaps": gaps,
    "texts": texts,
}
