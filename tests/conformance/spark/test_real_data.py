"""Real files of weather and ocean models read through Spark as xarray reads them.

xarray writes the files of ``real_data`` into repositories through the reference library, in chunks
and in shards; what Spark returns, by default and under options, is compared with what xarray reads
and selects.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
from helpers.arrays.real_data import (
    FOLDER,
    SAMPLES,
    Stored,
    as_column,
    assert_is_dataset,
    load_table,
    open_file,
    repository_of_files,
)
from helpers.grids.cell_grids import assert_cells
from icechunk.xarray import to_icechunk

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore:.*decode_timedelta.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Callable[[str], Stored]:
    """Write each sample once, however many tests read it."""
    folder = tmp_path_factory.mktemp("real")

    @functools.cache
    def write(name: str) -> Stored:
        sample = SAMPLES[name]
        repository = repository_of_files(folder / name)
        session = repository.writable_session("main")
        to_icechunk(open_file(sample.file), session, mode="w", encoding=sample.encoding)
        session.commit(f"the file {sample.file}")
        return Stored(sample=sample, url=(folder / name).as_uri(), repository=repository)

    return write


@pytest.fixture
def read(spark, stored) -> Callable[..., pa.Table]:
    def load(name: str, options: dict[str, str] | None = None) -> pa.Table:
        return load_table(spark, stored(name).url, options)

    return load


# --- whole tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_the_table_that_comes_unasked_is_the_one_of_the_data(read, stored, name):
    sample = stored(name).sample
    found = read(name)
    assert_is_dataset(found, stored(name).xarray(), sample.dims, sample.variables)


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.coords])
def test_coordinates_come_when_they_are_named(read, stored, name):
    """Scalars, those on some of the dimensions, and latitudes of two dimensions."""
    sample = stored(name).sample
    found = read(name, {"coords": ",".join(sample.coords)})
    columns = sample.variables + sample.coords
    assert_is_dataset(found, stored(name).xarray(), sample.dims, columns)


def test_bounds_and_grid_mappings_come_when_they_are_named(read, stored):
    theirs = stored("A1B_north_america").xarray()
    bounds = read("A1B_north_america", {"variables": "time_bnds"})
    assert_is_dataset(bounds, theirs, ("time", "bnds"), ("time_bnds",))
    corners = read("orca2_votemper", {"variables": "nav_lat_bnds,nav_lat"})
    theirs = stored("orca2_votemper").xarray()
    names = ("nav_lat_bnds", "nav_lat")
    assert_is_dataset(corners, theirs, ("dim0", "dim1", "bnds_4"), names)
    mapping = read("rotated_pole", {"variables": "rotated_latitude_longitude"})
    assert mapping.num_rows == 1


def test_stored_values_come_with_decoding_off(read, stored):
    store = stored("SOI_Darwin").repository.readonly_session("main").store
    raw = xr.open_zarr(store, consolidated=False, chunks=None, decode_cf=False)
    found = read("SOI_Darwin", {"decodeCf": "false"})
    values = {"SOI_Darwin": raw["SOI_Darwin"].values}
    assert_cells(found, {"time": raw["time"].values}, values, decoded=False)
    assert found["SOI_Darwin"].null_count == 0


def test_a_mesh_comes_as_the_table_of_its_data(spark, tmp_path):
    """Nodes, edges and what connects them are further sets of dimensions, for who names them."""
    dataset = xr.open_dataset(FOLDER / "mesh_C4_synthetic_float.nc")
    repository = repository_of_files(tmp_path / "mesh")
    session = repository.writable_session("main")
    to_icechunk(dataset, session, mode="w")
    session.commit("a mesh")
    faces = ("nexample_C4_face",)
    assert_is_dataset(load_table(spark, tmp_path / "mesh"), dataset, faces, ("synthetic",))
    options = {"coords": "example_C4_face_x,example_C4_face_y"}
    found = load_table(spark, tmp_path / "mesh", options)
    names = ("synthetic", "example_C4_face_x", "example_C4_face_y")
    assert_is_dataset(found, dataset, faces, names)
    found = load_table(spark, tmp_path / "mesh", {"variables": "example_C4_edge_nodes"})
    edges = ("nexample_C4_edge", "Two")
    assert_is_dataset(found, dataset, edges, ("example_C4_edge_nodes",))


# --- selections -------------------------------------------------------------------------------


def test_labels_of_a_calendar_that_python_has_not(read, stored):
    found = read(
        "A1B_north_america",
        {"sel": "time=1950-06-01:1960-06-01; latitude=30:40; longitude=250:260"},
    )
    chosen = (
        stored("A1B_north_america")
        .xarray()
        .sel(
            time=slice("1950-06-01", "1960-06-01"),
            latitude=slice(30, 40),
            longitude=slice(250, 260),
        )
    )
    assert chosen.sizes["time"] == 11
    sample = SAMPLES["A1B_north_america"]
    assert_is_dataset(found, chosen, sample.dims, sample.variables)


def rows_of(dataset: xr.Dataset, condition: xr.DataArray, dims: tuple[str, ...]) -> set[Any]:
    """Return the cells at which a condition holds, as rows of dimensions and one value."""
    [name] = [name for name in dataset.data_vars if dataset[name].dims == dims]
    labels = [as_column(dataset[dim], (dim,)) for dim in dims]
    picked = np.nonzero(condition.transpose(*dims).values)
    columns = [of_dim[index].tolist() for of_dim, index in zip(labels, picked, strict=True)]
    return set(zip(*columns, dataset[name].values[picked].tolist(), strict=True))


def test_conditions_on_labels_and_values_of_a_sharded_run(read, stored):
    where = "time >= '1990' AND longitude < 250 AND latitude > 20.5 AND air_temperature > 297"
    found = read("E1_north_america", {"where": where})
    theirs = stored("E1_north_america").xarray()
    year = theirs.time.dt.year
    condition = (year >= 1990) & (theirs.longitude < 250) & (theirs.latitude > 20.5)
    condition = condition & (theirs.air_temperature > 297)
    expected = rows_of(theirs, condition, SAMPLES["E1_north_america"].dims)
    assert set(zip(*found.to_pydict().values(), strict=True)) == expected
    assert 100 < found.num_rows == len(expected)


def test_months_of_an_ocean_with_land(read, stored):
    where = "time BETWEEN '2007-03-01' AND '2007-09-30' AND surface_temperature IS NULL"
    theirs = stored("ostia_monthly").xarray()
    sample = SAMPLES["ostia_monthly"]
    half = theirs.sel(time=slice("2007-03-01", "2007-09-30"))
    found = read("ostia_monthly", {"where": where})
    assert found.num_rows == int(half.surface_temperature.isnull().sum()) > 0
    assert found["surface_temperature"].null_count == found.num_rows
    found = read("ostia_monthly", {"sel": "time=2007-03-01:2007-09-30; latitude=-2:1.5"})
    assert_is_dataset(found, half.sel(latitude=slice(-2, 1.5)), sample.dims, sample.variables)


def test_the_nearest_label(read, stored):
    sample = SAMPLES["ostia_monthly"]
    options = {"sel": "time=2008-02-29; latitude=0.3; longitude=123.4", "sel.method": "nearest"}
    found = read("ostia_monthly", options)
    point = {"time": ["2008-02-29"], "latitude": [0.3], "longitude": [123.4]}
    point["time"] = np.array(point["time"], "M8[ns]")
    chosen = stored("ostia_monthly").xarray().sel(point, method="nearest")
    assert found.num_rows == 1
    assert_is_dataset(found, chosen, sample.dims, sample.variables)


def test_positions_on_a_rotated_grid(read, stored):
    sample = SAMPLES["rotated_pole"]
    found = read("rotated_pole", {"isel": "grid_latitude=3:17; grid_longitude=-4:"})
    chosen = stored("rotated_pole").xarray()
    chosen = chosen.isel(grid_latitude=slice(3, 17), grid_longitude=slice(-4, None))
    assert_is_dataset(found, chosen, sample.dims, sample.variables)


@pytest.mark.parametrize(
    ("name", "latitude", "longitude"),
    [("toa_brightness_stereographic", "lat", "lon"), ("orca2_votemper", "nav_lat", "nav_lon")],
)
def test_a_region_by_coordinates_of_two_dimensions(read, stored, name, latitude, longitude):
    sample = SAMPLES[name]
    where = f"{latitude} BETWEEN 40 AND 55 AND {longitude} > 2.5 AND {longitude} < 30"
    options = {"coords": f"{latitude},{longitude}", "where": where}
    found = read(name, options).to_pydict()
    theirs = stored(name).xarray()
    lat, lon = theirs[latitude].values, theirs[longitude].values
    y, x = np.nonzero((lat >= 40) & (lat <= 55) & (lon > 2.5) & (lon < 30))
    values = theirs[sample.variables[0]].values
    # Cells are told apart by their position: neighbours may share a coordinate.
    rows, columns = (
        theirs[dim].values if dim in theirs.variables else np.arange(size)
        for dim, size in zip(sample.dims, values.shape, strict=True)
    )
    expected = zip(
        rows[y].tolist(),
        columns[x].tolist(),
        [None if np.isnan(value) else value for value in values[y, x].tolist()],
        lat[y, x].tolist(),
        lon[y, x].tolist(),
        strict=True,
    )
    assert set(zip(*found.values(), strict=True)) == set(expected)
    assert len(found[latitude]) == len(y) > 50


# --- aggregates and versions ------------------------------------------------------------------


def test_yearly_means(read, stored):
    found = read("A1B_north_america", {"layout": "summary", "block": "time=1"}).to_pandas()
    found = found.set_index("time_first").sort_index()
    theirs = stored("A1B_north_america").xarray()["air_temperature"].astype("float64")
    assert list(found.index) == list(as_column(theirs["time"], ("time",)))
    for statistic in ("min", "max", "mean"):
        expected = getattr(theirs, statistic)(["latitude", "longitude"]).values
        np.testing.assert_allclose(found[f"air_temperature_{statistic}"], expected, rtol=1e-12)
    assert (found["air_temperature_count"] == 37 * 49).all()


def test_tropical_means_by_half_year_leave_land_out(read, stored):
    block = "time=6,latitude=18,longitude=432"
    options = {"layout": "summary", "block": block, "sel": "latitude=-2:2"}
    found = read("ostia_monthly", options).to_pandas().sort_values("time_first")
    theirs = stored("ostia_monthly").xarray()["surface_temperature"].sel(latitude=slice(-2, 2))
    blocks = [theirs.isel(time=slice(start, start + 6)) for start in range(0, 54, 6)]
    assert found["time_last"].tolist() == [block.time.values[-1] for block in blocks]
    for number, block in enumerate(blocks):
        row = found.iloc[number]
        values = block.values.astype("float64")
        assert row["surface_temperature_count"] == np.isfinite(values).sum()
        assert row["surface_temperature_nulls"] == np.isnan(values).sum()
        mean, variance = np.nanmean(values), np.nanvar(values)
        np.testing.assert_allclose(row["surface_temperature_mean"], mean, rtol=1e-9)
        count = row["surface_temperature_count"]
        np.testing.assert_allclose(row["surface_temperature_m2"], variance * count, rtol=1e-6)


def test_a_series_that_grew_reads_as_it_was(spark, tmp_path):
    dataset = open_file("SOI_Darwin.nc")
    repository = repository_of_files(tmp_path / "grown")
    session = repository.writable_session("main")
    to_icechunk(dataset.isel(time=slice(0, 1000)), session, mode="w")
    repository.create_tag("v1", session.commit("the first thousand months"))
    session = repository.writable_session("main")
    to_icechunk(dataset.isel(time=slice(1000, None)), session, append_dim="time")
    session.commit("the rest")
    was = load_table(spark, tmp_path / "grown", {"tag": "v1"})
    assert_is_dataset(was, dataset.isel(time=slice(0, 1000)), ("time",), ("SOI_Darwin",))
    now = load_table(spark, tmp_path / "grown")
    assert_is_dataset(now, dataset, ("time",), ("SOI_Darwin",))
