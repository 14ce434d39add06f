"""Real files of weather and ocean models, how they are stored, and what a table of them holds.

The files are those of ``iris-sample-data``: calendars of 360 days, rotated and curvilinear grids,
dimensions without coordinates, masked oceans. xarray writes them through the reference library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import iris_sample_data
import numpy as np
import xarray as xr
from helpers.builder import reference_repository
from helpers.grids.cell_grids import assert_cells
from helpers.spark.session import by_source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


FOLDER = Path(iris_sample_data.__file__).parent / "sample_data"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A file, how it is stored, and the table that a reader expects of it unasked."""

    file: str
    dims: tuple[str, ...]
    variables: tuple[str, ...]
    coords: tuple[str, ...] = ()
    """Coordinates that can be asked for beside the variables."""
    encoding: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.file).stem


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            file="A1B_north_america.nc",
            dims=("time", "latitude", "longitude"),
            variables=("air_temperature",),
            coords=("forecast_period", "forecast_reference_time", "height"),
            encoding={"air_temperature": {"chunks": (24, 37, 49)}},
        ),
        Sample(
            file="E1_north_america.nc",
            dims=("time", "latitude", "longitude"),
            variables=("air_temperature",),
            encoding={"air_temperature": {"chunks": (12, 10, 10), "shards": (48, 20, 30)}},
        ),
        Sample(
            file="ostia_monthly.nc",
            dims=("time", "latitude", "longitude"),
            variables=("surface_temperature",),
            coords=("forecast_period", "forecast_reference_time"),
            encoding={"surface_temperature": {"chunks": (6, 9, 54), "shards": (18, 18, 108)}},
        ),
        Sample(
            file="rotated_pole.nc",
            dims=("grid_latitude", "grid_longitude"),
            variables=("air_pressure_at_sea_level",),
            coords=("time", "forecast_period", "forecast_reference_time"),
            encoding={"air_pressure_at_sea_level": {"chunks": (5, 7)}},
        ),
        Sample(
            file="orca2_votemper.nc",
            dims=("dim0", "dim1"),
            variables=("votemper",),
            coords=("nav_lat", "nav_lon", "deptht", "time_counter"),
            encoding={"votemper": {"chunks": (50, 180)}, "nav_lat": {"chunks": (148, 17)}},
        ),
        Sample(
            file="toa_brightness_stereographic.nc",
            dims=("y", "x"),
            variables=("data",),
            coords=("lat", "lon", "time"),
            encoding={"data": {"chunks": (32, 32), "shards": (64, 128)}},
        ),
        Sample(
            file="hybrid_height.nc",
            dims=("model_level_number", "grid_latitude", "grid_longitude"),
            variables=("air_potential_temperature",),
            coords=("level_height", "sigma", "surface_altitude", "time"),
            encoding={"air_potential_temperature": {"chunks": (4, 30, 100)}},
        ),
        Sample(file="SOI_Darwin.nc", dims=("time",), variables=("SOI_Darwin",)),
        Sample(
            file="atlantic_profiles.nc",
            dims=("depth", "lat", "lon"),
            variables=("salinity", "theta"),
        ),
        Sample(file="space_weather.nc", dims=("height", "rLat", "rLon"), variables=("Ne",)),
        Sample(
            file="NEMO/nemo_1m_20150101-20150201_grid-T.nc",
            dims=("time_counter", "y", "x"),
            variables=("tos",),
            coords=("nav_lat", "nav_lon"),
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A sample in a repository."""

    sample: Sample
    url: str
    repository: icechunk.Repository

    def xarray(self) -> xr.Dataset:
        """Read ``main`` with xarray, through the reference library."""
        store = self.repository.readonly_session("main").store
        return xr.open_zarr(store, consolidated=False, chunks=None)


def open_file(file: str) -> xr.Dataset:
    """Open a sample file, without what its encoding says of the chunks of NetCDF."""
    dataset = xr.open_dataset(FOLDER / file)
    kept = {"_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar"}
    for variable in dataset.variables.values():
        variable.encoding = {
            key: value
            for key, value in variable.encoding.items()
            if key in kept | {"dtype", "coordinates", "grid_mapping"}
        }
    return dataset


def repository_of_files(path: Path, *prefixes: str) -> icechunk.Repository:
    """Create a repository in which files below ``prefixes`` may be virtual chunks."""
    config = icechunk.RepositoryConfig.default()
    for prefix in prefixes:
        store = icechunk.local_filesystem_store(prefix.removeprefix("file://"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    repository = reference_repository(path, config=config, prefixes=prefixes)
    repository.save_config()
    return repository


def load_table(
    spark: SparkSession, url: str | Path, options: dict[str, str] | None = None
) -> pa.Table:
    """Read a repository with Spark, under some options."""
    return by_source(spark).options(**(options or {})).load(str(url)).toArrow()


def as_column(array: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Return values as a column shows them, ready to broadcast over ``dims``.

    Times of calendars that Python does not have are ISO 8601 texts; others are rounded to
    microseconds, because hours that are kept as floats are off by some nanoseconds.
    """
    values = array.values
    if values.dtype == "M8[ns]":
        values = (values + np.timedelta64(500, "ns")).astype("M8[us]")
    if values.dtype.kind == "O" and values.size and hasattr(values.flat[0], "isoformat"):
        texts = [value.isoformat() for value in values.flat]
        values = np.array(texts, dtype=object).reshape(values.shape)
    added = xr.DataArray(values, dims=array.dims)
    missing = [dim for dim in dims if dim not in added.dims]
    return added.expand_dims(missing).transpose(*dims).values


def assert_is_dataset(
    table: pa.Table, dataset: xr.Dataset, dims: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Check that rows are the cells of some variables of a dataset."""
    labels = {
        dim: as_column(dataset[dim], (dim,)) if dim in dataset.variables else np.arange(size)
        for dim, size in ((dim, dataset.sizes[dim]) for dim in dims)
    }
    values = {name: as_column(dataset[name], dims) for name in names}
    assert_cells(table, labels, values, decoded=True)
