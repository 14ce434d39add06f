"""Horizontal coordinates of made-up and of real grids: what they are, and which are circular."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.horizontal.axes import (
    Circle,
    circle_of,
    detected_circle,
    horizontal_grid,
)
from icechunk_format.workflows.horizontal.reference_systems import axis_scale, given_crs, grid_crs

pytestmark = pytest.mark.needs_reference


@pytest.fixture
def real(tmp_path):
    """Open a sample file of iris as a dataset in a repository."""
    from helpers.arrays.real_data import open_file
    from helpers.reference.xarray_datasets import opened, store_dataset

    def open_sample(file):
        return opened(store_dataset(open_file(file), tmp_path / file))

    return open_sample


@pytest.mark.parametrize(
    ("file", "variable", "kind", "names", "dims"),
    [
        (
            "ostia_monthly.nc",
            "surface_temperature",
            "geographic",
            ("latitude", "longitude"),
            ("latitude", "longitude"),
        ),
        (
            "rotated_pole.nc",
            "air_pressure_at_sea_level",
            "rotated",
            ("grid_latitude", "grid_longitude"),
            ("grid_latitude", "grid_longitude"),
        ),
        ("toa_brightness_stereographic.nc", "data", "projected", ("y", "x"), ("y", "x")),
        (
            "orca2_votemper.nc",
            "votemper",
            "geographic",
            ("nav_lat", "nav_lon"),
            ("dim0", "dim1"),
        ),
    ],
)
def test_real_grids(real, file, variable, kind, names, dims):
    dataset = real(file)
    grid = horizontal_grid(dataset.variables[variable], dataset.variables)
    assert grid is not None
    assert (grid.kind, (grid.y.name, grid.x.name), grid.dims) == (kind, names, dims)
    assert grid.is_curvilinear is (file == "orca2_votemper.nc")


def test_a_series_has_no_horizontal_grid(real):
    dataset = real("SOI_Darwin.nc")
    assert horizontal_grid(dataset.variables["SOI_Darwin"], dataset.variables) is None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.arange(0.0, 360.0, 2.5), Circle(period=360, is_closed=True)),
        (np.arange(0.0, 360.0, 2.5)[::-1], Circle(period=360, is_closed=True)),
        (np.arange(-180, 180, dtype="f4"), Circle(period=360, is_closed=True)),
        (np.linspace(0.0, 360.0, 361), Circle(period=360, is_closed=True, is_repeated=True)),
        (
            np.linspace(-180, 180, 36_001, dtype="f4"),
            Circle(period=360, is_closed=True, is_repeated=True),
        ),
        (np.arange(225.0, 316.0), Circle(period=360, is_closed=False)),
        (np.array([350, 355, 0, 5]), Circle(period=360, is_closed=False)),
        (np.array([-178.0, 178, 174], "f4"), Circle(period=360, is_closed=False)),
        (np.roll(np.arange(0.0, 360.0, 2.5), 7), Circle(period=360, is_closed=True)),
        (np.array([]), Circle(period=360, is_closed=False)),
        (np.arange(0.0, 720.0, 2.5), None),
    ],
)
def test_circles(labels, expected):
    assert circle_of(labels, 360.0) == expected


def test_longitudes_are_circular_and_lengths_are_not(real):
    cases = [
        ("ostia_monthly.nc", "longitude", Circle(period=360, is_closed=True)),
        ("ostia_monthly.nc", "latitude", None),
        ("rotated_pole.nc", "grid_longitude", Circle(period=360, is_closed=False)),
        ("toa_brightness_stereographic.nc", "x", None),
    ]
    opened = {file: real(file) for file in {file for file, *_ in cases}}
    for file, name, expected in cases:
        dataset = opened[file]
        assert detected_circle(dataset.variables[name], dataset.read(name)) == expected, name


def test_the_grid_mapping_moves_points_into_a_rotated_grid(real):
    pyproj = pytest.importorskip("pyproj")
    dataset = real("rotated_pole.nc")
    variable = dataset.variables["air_pressure_at_sea_level"]
    grid = horizontal_grid(variable, dataset.variables)
    crs = grid_crs(variable, dataset.variables, grid)
    move = pyproj.Transformer.from_crs(given_crs("EPSG:4326"), crs, always_xy=True)
    # The equator of the rotated grid crosses its prime meridian at 52.5 N, 2.5 W.
    assert move.transform(-2.5, 52.5) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_projected_coordinates_agree_with_the_latitudes_that_the_file_holds(real):
    pyproj = pytest.importorskip("pyproj")
    dataset = real("toa_brightness_stereographic.nc")
    variable = dataset.variables["data"]
    grid = horizontal_grid(variable, dataset.variables)
    crs = grid_crs(variable, dataset.variables, grid)
    move = pyproj.Transformer.from_crs(given_crs("EPSG:4326"), crs, always_xy=True)
    lat, lon = dataset.read("lat"), dataset.read("lon")
    x, y = move.transform(lon.astype("f8"), lat.astype("f8"))
    step = abs(float(np.diff(dataset.read("x")).mean()))
    assert np.abs(x - dataset.read("x")[None, :]).max() < step / 10
    assert np.abs(y - dataset.read("y")[:, None]).max() < step / 10
    assert axis_scale(grid.x, variable, dataset.variables) == 1.0


def test_a_grid_without_a_mapping_is_wgs84_or_refused(real):
    pytest.importorskip("pyproj")
    orca = real("orca2_votemper.nc")
    variable = orca.variables["votemper"]
    grid = horizontal_grid(variable, orca.variables)
    assert grid_crs(variable, orca.variables, grid).to_epsg() == 4326
    with raises(InvalidInputError, option="crs", found="EPSG:nowhere"):
        given_crs("EPSG:nowhere")
