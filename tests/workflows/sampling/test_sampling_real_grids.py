"""Grids that are not latitude by longitude: an ocean's tripole, a rotated pole, a projection."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.sampled_points import sampled
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError

pytestmark = pytest.mark.needs_reference

ROTATED, STEREO = "air_pressure_at_sea_level", "data"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Open a sample file of iris as a dataset in a repository."""
    from helpers.arrays.real_data import open_file
    from helpers.reference.xarray_datasets import opened, store_dataset

    folder = tmp_path_factory.mktemp("real")
    made = {}
    for file, variable in (
        ("orca2_votemper.nc", "votemper"),
        ("rotated_pole.nc", ROTATED),
        ("toa_brightness_stereographic.nc", STEREO),
    ):
        dataset = open_file(file)
        chunks = tuple(-(-size // 4) for size in dataset[variable].shape)
        path = store_dataset(dataset, folder / file, {variable: {"chunks": chunks}})
        made[file] = (opened(path), dataset)
    return made


def values_of(dataset, on, name, **options):
    return np.array(sampled(dataset, on, variables=[name], **options)[name], dtype="f8")


def arc(lat, lon, lats, lons):
    """Return great-circle distances in degrees, by the haversine formula."""
    lat, lon, lats, lons = map(np.deg2rad, (lat, lon, lats, lons))
    half = np.sin((lats - lat) / 2) ** 2
    half = half + np.cos(lat) * np.cos(lats) * np.sin((lons - lon) / 2) ** 2
    return np.rad2deg(2 * np.arcsin(np.sqrt(np.clip(half, 0, 1))))


def test_the_nearest_cell_of_an_ocean_grid(real):
    pytest.importorskip("scipy")
    ours, theirs = real["orca2_votemper.nc"]
    random = np.random.default_rng(2)
    lat, lon = random.uniform(-75, 89, 300), random.uniform(-180, 360, 300)
    found = values_of(ours, {"nav_lat": lat, "nav_lon": lon}, "votemper")
    lats, lons = theirs["nav_lat"].values.ravel(), theirs["nav_lon"].values.ravel()
    values = theirs["votemper"].values.ravel()
    for row in range(300):
        away = arc(lat[row], lon[row], lats.astype("f8"), lons.astype("f8"))
        # Grids with a fold hold some cells twice; any of the nearest is right.
        nearest = values[away <= away.min() + 1e-4]
        assert found[row] in nearest or (np.isnan(found[row]) and np.isnan(nearest).any())
    on_cells = {"nav_lat": lats[5000:5010], "nav_lon": lons[5000:5010] + 360}
    near = values_of(ours, on_cells, "votemper", tolerance={"nav_lat": 0.01})
    np.testing.assert_array_equal(near, values[5000:5010])
    with raises(InvalidInputError, dims=("dim0", "dim1")):
        values_of(ours, {"nav_lat": lat}, "votemper")
    with raises(InvalidInputError, match="use 'nearest'", coordinate="nav_lat"):
        values_of(ours, {"nav_lat": lat, "nav_lon": lon}, "votemper", method="linear")


def test_points_far_from_a_curvilinear_region_are_outside(real):
    pytest.importorskip("scipy")
    ours, theirs = real["toa_brightness_stereographic.nc"]
    lat = theirs["lat"].values[20:140:10, 20:240:10].ravel().astype("f8")
    lon = theirs["lon"].values[20:140:10, 20:240:10].ravel().astype("f8")
    found = values_of(ours, {"lat": lat, "lon": lon}, STEREO)
    expected = theirs[STEREO].values[20:140:10, 20:240:10].ravel()
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(values_of(ours, {"lat": [-60.0], "lon": [0.0]}, STEREO)).all()


def test_points_move_into_a_projection_and_a_rotated_grid(real):
    pyproj = pytest.importorskip("pyproj")
    ours, theirs = real["toa_brightness_stereographic.nc"]
    lat = theirs["lat"].values[::7, ::5].ravel().astype("f8")
    lon = theirs["lon"].values[::7, ::5].ravel().astype("f8")
    found = values_of(ours, {"y": lat, "x": lon}, STEREO, crs="EPSG:4326")
    np.testing.assert_array_equal(found, theirs[STEREO].values[::7, ::5].ravel())

    ours, theirs = real["rotated_pole.nc"]
    y, x = np.meshgrid(theirs["grid_latitude"], theirs["grid_longitude"], indexing="ij")
    rotated = pyproj.CRS.from_cf(dict(theirs["rotated_latitude_longitude"].attrs))
    back = pyproj.Transformer.from_crs(rotated, "EPSG:4326", always_xy=True)
    lon, lat = back.transform(x.ravel().astype("f8"), y.ravel().astype("f8"))
    found = values_of(ours, {"grid_latitude": lat, "grid_longitude": lon}, ROTATED, crs="EPSG:4326")
    np.testing.assert_array_equal(found, theirs[ROTATED].values.ravel())
    # Web Mercator is in metres, and the grid in degrees.
    mercator = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:3857", always_xy=True)
    low = np.abs(lat) < 80
    east, north = mercator.transform(lon[low], lat[low])
    found = values_of(ours, {"grid_latitude": north, "grid_longitude": east}, ROTATED, crs=3857)
    np.testing.assert_array_equal(found, theirs[ROTATED].values.ravel()[low])


def test_points_of_another_reference_system_are_refused(real):
    ours, _ = real["toa_brightness_stereographic.nc"]
    degrees = {"y": np.linspace(51.0, 53.0, 20), "x": np.full(20, -1.0)}
    with raises(
        InvalidInputError,
        match=r"look like degrees.*'y' and 'x' are lengths",
        columns=("y_of_point", "x_of_point"),
    ):
        sampled(ours, degrees, variables=[STEREO])
    assert sampled(ours, degrees, variables=[STEREO], crs="grid")[STEREO] == [None] * 20
    origin = {name: values[[0] * 50] for name, values in degrees.items()}
    with pytest.warns(UserWarning, match="look like degrees"):
        assert sampled(ours, origin, variables=[STEREO])[STEREO] == [None] * 50
    ours, _ = real["rotated_pole.nc"]
    one = pa.array([1.0])
    both = {"grid_latitude": one, "grid_longitude": one}
    with raises(InvalidInputError, option="crs", found="EPSG:nowhere"):
        sampled(ours, both, variables=[ROTATED], crs="EPSG:nowhere")
    with raises(InvalidInputError, match="name both", option="crs"):
        sampled(
            ours,
            {"grid_latitude": one},
            variables=[ROTATED],
            keep=["grid_longitude"],
            crs="EPSG:4326",
        )
