"""Sampled values are xarray's ``sel`` and ``interp``, wherever points lie and however axes run."""

from __future__ import annotations

from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.sampled_points import sampled
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset
from helpers.raised import raises
from hypothesis import given, settings

from icechunk_format.errors import InvalidInputError, NotFoundError

pytestmark = pytest.mark.needs_reference

EPOCH = np.datetime64("2024-01-01", "us")
HOUR = np.timedelta64(1, "h").astype("m8[us]")


class Grid:
    """A dataset of xarray, and the same in a repository."""

    def __init__(self, dataset, path, encoding=None):
        import icechunk
        import xarray as xr
        from helpers.reference.xarray_datasets import opened, store_dataset

        self.ours = opened(store_dataset(dataset, path, encoding))
        storage = icechunk.local_filesystem_storage(str(path))
        store = icechunk.Repository.open(storage).readonly_session("main").store
        self.xarray = xr.open_zarr(store, consolidated=False, chunks=None).load()

    def sel(self, points, **options):
        import xarray as xr

        return self.xarray.sel({k: xr.DataArray(v, dims="i") for k, v in points.items()}, **options)

    def interp(self, points):
        import xarray as xr

        return self.xarray.interp({k: xr.DataArray(v, dims="i") for k, v in points.items()})


def weather(*, descending, irregular, dtype):
    """Return a grid of 9 times, 8 latitudes and 12 longitudes all the way round."""
    import xarray as xr

    random = np.random.default_rng(7)
    latitude = np.linspace(-70, 70, 8)
    if irregular:
        latitude = np.sort(np.round(random.uniform(-89, 89, 8), 3))
    hours = np.arange(9) * 6 if not irregular else np.array([0, 1, 3, 7, 8, 20, 21, 30, 48])
    shape = (9, 8, 12)
    values = random.normal(280, 10, shape).astype("f4")
    packed = random.integers(-100, 100, shape) * 0.5
    packed[random.random(shape) < 0.05] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values),
            "wind": (("time", "lat", "lon"), packed),
            "height": (("lat", "lon"), random.normal(size=shape[1:])),
        },
        coords={
            "time": (EPOCH + hours * HOUR).astype("M8[ns]"),
            "lat": ("lat", latitude[:: -1 if descending else 1], {"units": "degrees_north"}),
            "lon": ("lon", np.arange(0, 360, 30).astype(dtype), {"units": "degrees_east"}),
        },
    )


ENCODING = {
    "t2m": {"chunks": (2, 3, 5)},
    "wind": {"chunks": (9, 8, 2), "dtype": "int16", "scale_factor": 0.5, "_FillValue": -999},
    "height": {"chunks": (4, 4)},
}


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grids")
    made = {}
    for number, shape in enumerate(
        [(False, False, "f8"), (True, False, "f4"), (True, True, "f4"), (False, True, "f8")]
    ):
        descending, irregular, dtype = shape
        dataset = weather(descending=descending, irregular=irregular, dtype=dtype)
        made[number] = Grid(dataset, folder / str(number), ENCODING)
    return made


def points_of(drawn):
    hours, latitudes, longitudes = (np.array(column) for column in zip(*drawn, strict=True))
    return {
        "time": EPOCH + (hours * HOUR.astype("i8")).astype("i8").astype("m8[us]"),
        "lat": latitudes.astype("f8"),
        "lon": longitudes.astype("f8"),
    }


def same(ours, theirs, *, rel=None):
    ours, theirs = np.array(ours, dtype="f8"), theirs.values.astype("f8")
    if rel is None:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=rel, atol=1e-9)


# Values on labels, halfway between them, and anywhere.
hour = st.one_of(st.integers(0, 16).map(lambda n: n * 3.0), st.floats(0, 48))
latitude = st.one_of(st.integers(-7, 7).map(lambda n: n * 10.0), st.floats(-70, 70))
longitude = st.one_of(st.integers(0, 22).map(lambda n: n * 15.0), st.floats(0, 330))
points = st.lists(st.tuples(hour, latitude, longitude), min_size=1, max_size=30)


@settings(max_examples=25)
@given(drawn=points, number=st.integers(0, 3))
def test_nearest_is_xarrays_to_the_last_bit(grids, drawn, number):
    at, grid = points_of(drawn), grids[number]
    everywhere = dict.fromkeys(("lat", "lon"), np.inf)
    ours = sampled(grid.ours, at, tolerance={**everywhere, "time": np.inf})
    theirs = grid.sel(at, method="nearest")
    for name in ("t2m", "wind", "height"):
        same(ours[name], theirs[name])


@settings(max_examples=15)
@given(drawn=points, number=st.integers(0, 1))
def test_pad_is_xarrays(grids, drawn, number):
    at, grid = points_of(drawn), grids[number]
    same(sampled(grid.ours, at, method="pad")["t2m"], grid.sel(at, method="pad")["t2m"])


@settings(max_examples=20)
@given(drawn=points, number=st.integers(0, 3))
def test_linear_is_xarrays(grids, drawn, number):
    at, grid = points_of(drawn), grids[number]
    labels = grid.xarray["lat"].values
    at["lat"] = np.clip(at["lat"], labels.min(), labels.max())
    ours, theirs = sampled(grid.ours, at, method="linear"), grid.interp(at)
    same(ours["t2m"], theirs["t2m"], rel=1e-6)
    same(ours["height"], theirs["height"], rel=1e-6)
    # xarray gives NaN where a corner without weight is missing; this library does not read it.
    ours, theirs = np.array(ours["wind"], dtype="f8"), theirs["wind"].values
    both = ~np.isnan(theirs)
    np.testing.assert_allclose(ours[both], theirs[both], rtol=1e-6, atol=1e-9)


@settings(max_examples=15)
@given(drawn=points, turns=st.integers(-2, 1))
def test_longitudes_go_round(grids, drawn, turns):
    at, grid = points_of(drawn), grids[0]
    moved = {**at, "lon": at["lon"] + 360 * turns}
    for method in ("nearest", "linear"):
        back = {**at, "lon": (at["lon"] + 360 * turns) - 360 * turns}
        ours = sampled(grid.ours, moved, method=method, variables=["t2m"])["t2m"]
        same(ours, np_array(sampled(grid.ours, back, method=method, variables=["t2m"])["t2m"]))


def np_array(values):
    import xarray as xr

    return xr.DataArray(np.array(values, dtype="f8"))


def test_linear_crosses_the_seam(grids):
    grid = grids[0]
    at = {"time": np.array([EPOCH] * 3), "lat": [10.0] * 3, "lon": [345.0, -15.0, 337.5]}
    ours = sampled(grid.ours, at, method={"lon": "linear"}, variables=["t2m"])["t2m"]
    row = grid.xarray["t2m"].sel(time=EPOCH.astype("M8[ns]"), lat=10).values.astype("f8")
    assert ours[:2] == pytest.approx([(row[11] + row[0]) / 2] * 2, rel=1e-6)
    assert ours[2] == pytest.approx(0.75 * row[11] + 0.25 * row[0], rel=1e-6)
    beyond = sampled(
        grid.ours, at, method={"lon": "linear"}, variables=["t2m"], circular={"lon": None}
    )
    assert beyond["t2m"] == [None, None, None]


@pytest.mark.parametrize("labels", [[0, 90, 180, 270, 360], [360, 270, 180, 90, 0]])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_a_label_that_repeats_the_first_is_never_found(labels, dtype):
    dataset = write_dataset(
        "cyclic",
        {
            "lon": ArrayToWrite(
                values=np.array(labels, dtype),
                chunks=(5,),
                dims=("lon",),
                attributes={"units": "degrees_east"},
            ),
            "v": ArrayToWrite(values=np.array([0.0, 1, 2, 3, 99]), chunks=(2,), dims=("lon",)),
        },
    )
    at = {"lon": np.array([0.0, 360, -360, 720, 359, -1, 1])}
    for method in ("nearest", "linear", "exact"):
        found = sampled(dataset, at, method=method)["v"]
        assert found[:4] == [0.0] * 4
        assert 99 not in found
    [halfway] = sampled(
        dataset, {"lon": np.array([45.0 if labels[-1] == 0 else 315.0])}, method="linear"
    )["v"]
    assert halfway == 1.5


def test_exact_finds_labels_only_and_float32_by_their_text(grids):
    grid = grids[1]
    at = {"time": np.array([EPOCH, EPOCH + HOUR]), "lat": [70.0, 70.0], "lon": [30.0, 30.0]}
    first = grid.xarray["t2m"].values[0, 0, 1].item()
    assert sampled(grid.ours, at, method="exact", variables=["t2m"])["t2m"] == [first, None]


def test_tolerance_and_outside(grids):
    grid = grids[0]
    at = {
        "time": np.array([EPOCH + HOUR, EPOCH + HOUR * 2, EPOCH + HOUR * 51, EPOCH]),
        "lat": [11.0, 11.0, 11.0, 85.0],
        "lon": [0.0, 0.0, 0.0, 0.0],
    }
    ours = sampled(grid.ours, at, tolerance={"time": "1 hour"}, variables=["t2m"])["t2m"]
    assert [value is None for value in ours] == [False, True, True, True]
    # Half a step beyond the last label belongs to its cell; without a tolerance no more does.
    ours = sampled(grid.ours, at, variables=["t2m", "height"])
    assert [value is None for value in ours["t2m"]] == [False, False, False, True]
    assert [value is None for value in ours["height"]] == [False, False, False, True]
    with raises(
        InvalidInputError, match=r"time_of_point=2024-01-01 .*lat_of_point=85.0", option="outside"
    ):
        sampled(grid.ours, at, outside="error")


def test_null_and_nan_give_null(grids):
    at = {
        "time": pa.array([EPOCH.item(), None, EPOCH.item()], pa.timestamp("us")),
        "lat": pa.array([10.0, 10.0, float("nan")]),
        "lon": pa.array([0, 0, 0], pa.int32()),
    }
    ours = sampled(grids[0].ours, at)
    assert [value is None for value in ours["t2m"]] == [False, True, True]
    assert [value is None for value in ours["height"]] == [False, False, True]


def test_kept_dimensions_become_arrays(grids):
    grid = grids[0]
    at = {"lat": [10.0, 10.0, 89.0], "lon": [0.0, 90.0, 0.0]}
    ours = sampled(grid.ours, at, keep=["time"])
    series = grid.xarray["t2m"].sel(lat=10).values
    assert ours["t2m"] == [series[:, 0].tolist(), series[:, 3].tolist(), None]
    wind = [None if np.isnan(v) else v for v in grid.xarray["wind"].sel(lat=10).values[:, 0]]
    assert ours["wind"][0] == wind
    some = sampled(grid.ours, at, keep=["time"], isel="time=1:3", variables=["t2m"])["t2m"]
    assert some[0] == series[1:3, 0].tolist()
    one = sampled(grid.ours, at, sel="time=2024-01-01T06:00", variables=["t2m"])["t2m"]
    assert one[:2] == [series[1, 0], series[1, 3]]
    nested = sampled(grid.ours, {"lat": [10.0]}, keep=["lon", "time"], variables=["t2m"])["t2m"]
    assert nested == [series.T.tolist()]
    linear = sampled(grid.ours, at, keep=["time"], method="linear", variables=["t2m"])["t2m"]
    assert linear[1] == pytest.approx(series[:, 3].tolist())


def test_texts_calendars_and_positions_are_labels(tmp_path):
    import xarray as xr

    times = xr.date_range("2001-01-30", periods=4, calendar="360_day", use_cftime=True)
    dataset = xr.Dataset(
        {"v": (("station", "time", "level"), np.arange(24.0).reshape(3, 4, 2))},
        coords={"station": ["Bergen", "Zürich", "Nice"], "time": times},
    )
    grid = Grid(dataset, tmp_path / "stations")
    ours = sampled(
        grid.ours,
        {
            "station": pa.array(["Nice", "Zürich", "Oslo", None, "Nice"]),
            "time": pa.array(
                ["2001-01-30", "2001-02-01T11:00:00", "2001-02-01", "2001-01-30", "2001-02-31"]
            ),
            "level": pa.array([0, 1, 0, 0, 0]),
        },
        method={"station": "exact"},
    )
    assert ours["v"] == [16.0, 11.0, None, None, None]
    by_timestamp = sampled(
        grid.ours,
        {
            "station": pa.array(["Nice"] * 3),
            "time": np.array(["2001-01-30", "2001-02-01T12:00", "2001-01-31"], "M8[us]"),
        },
        method={"station": "exact", "time": "linear"},
        isel="level=0",
    )
    assert by_timestamp["v"] == [16.0, 19.0, None]


def test_more_points_and_chunks_than_fit_at_once(tmp_path):
    import xarray as xr

    random = np.random.default_rng(3)
    values = random.normal(size=(300, 400))
    grid = Grid(
        xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "many", {"v": {"chunks": (7, 9)}}
    )
    y, x = random.integers(0, 300, 50_000), random.integers(0, 400, 50_000)
    # Less than the bytes of three chunks: everything is evicted again and again.
    ours = sampled(grid.ours, {"y": y, "x": x}, read_ahead_bytes=1500)["v"]
    np.testing.assert_array_equal(ours, values[y, x])


def test_mistakes_are_told_before_anything_is_read(grids):
    grid = grids[0].ours
    time, number, text = pa.array([EPOCH.item()]), pa.array([1.0]), pa.array(["a"])
    good = {"time": time, "lat": number, "lon": number}

    def refused(kind, words, on=good, **options):
        with pytest.raises(kind, match=words):
            sampled(grid, on, **options)

    refused(InvalidInputError, "'latitud'.*did you mean 'lat'", {**good, "latitud": number})
    refused(InvalidInputError, "lat_of_point, which is string", {**good, "lat": text})
    refused(InvalidInputError, "TIMESTAMP, TIMESTAMP_NTZ or DATE", {**good, "time": number})
    some = {"lat": number, "lon": number}
    refused(InvalidInputError, r"dimension 'time' of size 9.*keep", some, variables=["t2m"])
    refused(InvalidInputError, "tolerance.*'time'.*6h", tolerance={"time": 3600})
    refused(InvalidInputError, "tolerance.*'lat'.*number", tolerance={"lat": "1 hour"})
    refused(InvalidInputError, "does not name a key of on", tolerance={"level": 1})
    refused(InvalidInputError, "closest.*exact, nearest, linear, pad", method="closest")
    refused(InvalidInputError, "both in keep", keep=["lat"])
    refused(InvalidInputError, "outside='skip'", outside="skip")
    refused(InvalidInputError, "already", existing=["T2M"])
    refused(NotFoundError, "t2n", variables=["t2n"])


@pytest.mark.parametrize("name", ["lat", "lon"])
@pytest.mark.parametrize("value", [300.0, 99999, 9.97e36, -9.97e36])
def test_points_that_are_no_degrees_lie_outside(grids, name, value):
    at = {"time": [EPOCH, EPOCH], "lat": [10.0, 10.0], "lon": [30.0, 30.0]}
    wrong = {**at, name: np.array([at[name][0], value * (1 if name == "lat" else 10)])}
    grid = grids[0].ours
    with pytest.warns(UserWarning, match=f"column '{name}_of_point' holds"):
        found = sampled(grid, wrong, variables=["t2m"])["t2m"]
    assert [one is None for one in found] == [False, True]
    warned = pytest.warns(UserWarning, match="are outside")
    with warned, pytest.raises(InvalidInputError) as refused:
        sampled(grid, wrong, variables=["t2m"], outside="error")
    assert refused.value.facts["option"] == "outside"


@pytest.mark.parametrize("method", ["nearest", "linear", "pad"])
def test_numbers_too_coarse_for_a_circle_lie_outside(method):
    angles = ArrayToWrite(values=np.arange(0.0, 360, 90), chunks=(4,), dims=("angle",))
    values = ArrayToWrite(values=np.arange(4.0), chunks=(4,), dims=("angle",))
    at = {"angle": np.array([90 + 360.0 * 2**20, 9.97e36, -9.97e36, np.inf])}
    dataset = write_dataset("circle", {"angle": angles, "v": values})
    found = sampled(dataset, at, circular={"angle": 360}, method=method)
    assert found["v"] == [1.0, None, None, None]


REGION = [345.25, 350.25, 355.25, 0.25, 5.25]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("labels", "before"),
    [(REGION, 0.0), (REGION[::-1], 1.0), ([x - 360 * (x > 180) for x in REGION], 0.0)],
)
def test_a_region_across_the_seam_has_no_cells_in_its_gap(labels, before, dtype):
    values = np.arange(5.0) if labels[0] != 5.25 else np.arange(5.0)[::-1]
    attributes = {"units": "degrees_east"}
    longitude = ArrayToWrite(
        values=np.array(labels, dtype), chunks=(5,), dims=("lon",), attributes=attributes
    )
    held = ArrayToWrite(values=values, chunks=(2,), dims=("lon",))
    dataset = write_dataset("region", {"lon": longitude, "v": held})
    at = {"lon": np.array([345.25, -9.75, 0.25, 365.25, 343.0, 7.5, 180.0, 30.0, -30.0])}
    found = sampled(dataset, at, method="exact")["v"]
    assert found == [0.0, 1.0, 3.0, 4.0, None, None, None, None, None]
    found = sampled(dataset, at, method="nearest")["v"]
    assert found == [0.0, 1.0, 3.0, 4.0, 0.0, 4.0, None, None, None]
    between = {"lon": np.array([-2.25, 357.75, 2.75, 6.0, 180.0, 344.0])}
    found = sampled(dataset, between, method="linear")["v"]
    assert found == [2.5, 2.5, 3.5, None, None, None]
    found = sampled(dataset, {"lon": np.array([349.0, 357.75])}, method="pad")["v"]
    assert found == [before, 2.0 + before]


@pytest.mark.parametrize("method", ["exact", "nearest", "pad"])
def test_decimals_are_found_among_doubles(method):
    numbers = [-72.077, -18.58, -4.278, 15.885, 64.557]
    labels = ArrayToWrite(values=np.array(numbers), chunks=(5,), dims=("x",))
    values = ArrayToWrite(values=np.arange(5, dtype="i4"), chunks=(5,), dims=("x",))
    dataset = write_dataset("decimals", {"x": labels, "v": values})
    points = pa.array([Decimal(str(number)) for number in numbers], pa.decimal128(20, 3))
    found = sampled(dataset, {"x": points}, method=method, tolerance={"x": 0})
    assert found["v"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_are_found_exactly(dtype):
    labels = np.array([7, 2**53, 2**53 + 1, 2**62 + 1], dtype)
    if dtype == "uint64":
        labels[-1] = 2**64 - 1
    values = np.arange(4, dtype="i4")
    grid = write_dataset(
        "whole",
        {
            "id": ArrayToWrite(values=labels, chunks=(4,), dims=("id",)),
            "v": ArrayToWrite(values=values, chunks=(2,), dims=("id",)),
        },
    )
    whole = [*map(int, labels), int(labels[-1]) - 1, -1, None]
    expected = [0, 1, 2, 3, None, None, None]
    decimals = pa.array([None if n is None else Decimal(n) for n in whole], pa.decimal128(38, 0))
    broken = pa.array([Decimal("7.5"), Decimal(2**53 + 1), None], pa.decimal128(30, 3))
    exactly = {"method": "exact", "outside": "null"}
    assert sampled(grid, {"id": decimals}, **exactly)["v"] == expected
    assert sampled(grid, {"id": broken}, **exactly)["v"] == [None, 2, None]
    small = pa.array([7, 2**53, 2**53 + 1, 8], pa.int64())
    assert sampled(grid, {"id": small}, **exactly)["v"] == [0, 1, 2, None]
