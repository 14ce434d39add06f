"""Statistics of zones from stored chunks, without Spark: beside exactextract and brute force."""

import exactextract
import numpy as np
import pyproj
import pytest
import shapely
from exactextract.raster import NumPyRasterSource
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset
from helpers.grids.zonal_results import (
    ALL,
    assert_alike,
    expected,
    fractions_of,
    grid_of,
    star,
    zonal,
)
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.workflows.zonal import combining, cover, plan, summing

LAT, LON = np.arange(60.0, 40.0, -2.0), np.arange(0.0, 36.0, 3.0)
LAT_EDGES, LON_EDGES = np.arange(61.0, 40.0, -2.0), np.arange(-1.5, 36.0, 3.0)
POLYGONS = [star(np.random.default_rng(i), 3.0 * i, 45 + i, 4.0 + i) for i in range(6)]


def drawn(seed=0, steps=5):
    random = np.random.default_rng(seed)
    values = random.normal(280, 9, (steps, len(LAT), len(LON))).astype("f4")
    values[random.random(values.shape) < 0.2] = np.nan
    return values


def by_exactextract(values, polygons, weights=None):
    """Return the statistics of one step, as exactextract itself computes them."""
    extent = (LON_EDGES[0], LAT_EDGES[-1], LON_EDGES[-1], LAT_EDGES[0])
    raster = NumPyRasterSource(values.astype("f8"), *extent, nodata=np.nan)
    names = ["count", "mean", "sum", "min", "max", "stdev"]
    extra = {}
    if weights is not None:
        names = ["count", "weighted_mean", "weighted_sum", "min", "max", "weighted_stdev"]
        extra["weights"] = NumPyRasterSource(weights, *extent)
    features = [
        {"type": "Feature", "properties": {}, "geometry": shapely.geometry.mapping(p)}
        for p in polygons
    ]
    found = exactextract.exact_extract(raster, features, names, **extra)
    rows = [dict(zip(ALL, map(f["properties"].get, names), strict=True)) for f in found]
    # Of no cells, exactextract gives a sum of 0 and a mean of NaN.
    return [row if row["count"] else dict.fromkeys(ALL) | {"count": 0.0} for row in rows]


def of_step(rows, step):
    return [
        {name: row[f"t_{name}"] for name in ALL} for row in rows if row.get("time", step) == step
    ]


@given(
    seed=st.integers(0, 10_000),
    chunks=st.tuples(st.integers(1, 5), st.integers(1, 10), st.integers(1, 12)),
    batches=st.integers(1, 3),
)
@settings(max_examples=12)
def test_any_chunks_and_partitions_give_what_exactextract_gives(seed, chunks, batches):
    values = drawn(seed)
    random = np.random.default_rng(seed)
    polygons = [star(random, random.uniform(0, 33), random.uniform(43, 59), 5) for _ in range(4)]
    rows = zonal(grid_of(values, LAT, LON, chunks=chunks), polygons, batches=batches, cores=1 << 30)
    for step in range(len(values)):
        assert_alike(of_step(rows, step), by_exactextract(values[step], polygons))


def test_bounds_of_memory_do_not_show(monkeypatch):
    values = drawn(steps=9)
    dataset = grid_of(values, LAT, LON, chunks=(2, 5, 4))
    polygons = [*POLYGONS, shapely.box(-90, 0, 90, 80), shapely.box(100, 0, 101, 1)]
    whole = zonal(dataset, polygons)
    monkeypatch.setattr(summing, "_MOST_COVER_BYTES", 40)
    monkeypatch.setattr(summing, "_MOST_PARTS_BYTES", 300)
    monkeypatch.setattr(combining, "_MOST_ROWS", 4)
    monkeypatch.setattr(cover, "_MOST_CELLS", 30)
    monkeypatch.setattr(plan, "_FEWEST_CELLS_OF_A_TASK", 50)
    cut = zonal(dataset, polygons, cores=1000, read_ahead_bytes=1000)
    assert len(cut) == len(whole) == 8 * 9
    assert_alike(cut, whole)


@pytest.mark.parametrize("coverage", ["center", "touched"])
def test_coverage_by_whole_cells(coverage):
    values = drawn(3, steps=1)[0]
    rows = zonal(grid_of(values, LAT, LON, chunks=(4, 5)), POLYGONS, coverage=coverage)
    wanted = []
    for polygon in POLYGONS:
        inside = (
            shapely.contains_xy(polygon, *np.meshgrid(LON, LAT))
            if coverage == "center"
            else fractions_of(polygon, LAT_EDGES, LON_EDGES) > 1e-9
        )
        wanted.append(expected(values, inside.astype("f8")))
    assert_alike(of_step(rows, None), wanted)


def test_weights_are_areas_or_a_variable():
    values = drawn(4, steps=1)[0]
    random = np.random.default_rng(4)
    given_weights = random.uniform(0, 5, values.shape)
    of_rows = random.uniform(0, 5, len(LAT))
    dataset = grid_of(
        values,
        LAT,
        LON,
        chunks=(3, 7),
        w=ArrayToWrite(values=given_weights.T, chunks=(5, 5), dims=("lon", "lat")),
        r=ArrayToWrite(values=of_rows, chunks=(4,), dims=("lat",)),
    )
    sines = np.abs(np.diff(np.sin(np.radians(LAT_EDGES))))
    areas = 6_371_008.8**2 * sines[:, None] * np.radians(np.full(len(LON), 3.0))
    wide = np.broadcast_to(of_rows[:, None], values.shape)
    for name, weights in (("w", given_weights), ("r", wide), ("area", areas)):
        rows = zonal(dataset, POLYGONS, variables=["t"], weights=name)
        assert_alike(of_step(rows, None), by_exactextract(values, POLYGONS, weights.copy()))


def test_cells_without_a_weight_do_not_count():
    weights = np.ones((len(LAT), len(LON)))
    weights[:, 6:] = np.nan
    values = drawn(4, steps=1)[0]
    held = ArrayToWrite(values=weights, chunks=(5, 5), dims=("lat", "lon"))
    dataset = grid_of(values, LAT, LON, chunks=(3, 7), w=held)
    box = [shapely.box(10, 45, 30, 50)]
    [row] = zonal(dataset, box, variables=["t"], weights="w")
    [cut] = zonal(dataset, [shapely.box(10, 45, 16.5, 50)], variables=["t"])
    assert_alike([row], [cut])


def test_the_cells_of_bounds_and_of_uneven_labels():
    values = drawn(5, steps=1)[0]
    ends = np.concatenate([[61], LAT[:-1] - 0.3, [39]])
    bounds = np.stack([ends[:-1], ends[1:]], axis=1)
    lon = np.cumsum(np.linspace(1, 4, len(LON)))
    edges = np.concatenate([[lon[0] * 1.5 - lon[1] / 2], (lon[1:] + lon[:-1]) / 2, [0]])
    edges[-1] = lon[-1] * 1.5 - lon[-2] / 2
    rows = zonal(grid_of(values, LAT, lon, chunks=(4, 5), bounds=bounds), POLYGONS, variables=["t"])
    wanted = [expected(values, fractions_of(p, ends, edges)) for p in POLYGONS]
    assert_alike(of_step(rows, None), wanted)


def world(first):
    """Write the same world with longitudes from `first` on, and poles as labels."""
    lat, lon = np.linspace(90, -90, 13), first + np.arange(24) * 15.0
    values = np.random.default_rng(6).normal(0, 5, (13, 24)).astype("f8")
    return grid_of(np.roll(values, -int(first // 15), axis=1), lat, lon, chunks=(5, 7))


CROSSING = shapely.box(165, -20, 205, 10)


@pytest.mark.parametrize("first", [0.0, -180.0, -172.5, 90.0])
def test_longitudes_are_a_circle(first):
    polygons = [
        CROSSING,
        shapely.union(shapely.box(165, -20, 180, 10), shapely.box(-180, -20, -155, 10)),
        shapely.box(-10, 40, 12, 88),
        shapely.box(-180, -90, 180, 90),
    ]
    dataset = world(first)
    rows = zonal(dataset, polygons, weights="area")
    if first != -172.5:
        same = zonal(world(0.0), polygons, weights="area")
        assert_alike(rows, same)
    assert_alike(rows[:1], [rows[1] | {"zone": 0}])
    assert rows[3]["t_count"] == pytest.approx(13 * 24)


def test_edges_over_more_than_half_a_turn_are_asked_about():
    jumping = shapely.Polygon([(165, -20), (-155, -20), (-155, 10), (165, 10)])
    around = shapely.Polygon([(0, 70), (120, 70), (-120, 70)])
    dataset = world(0.0)
    with raises(InvalidInputError, zone="zone='Fiji'"):
        zonal(dataset, [jumping], names=["Fiji"])
    split, pole, crossing = zonal(dataset, [jumping, around, CROSSING], antimeridian="split")
    cap = zonal(dataset, [shapely.box(-180, 70, 180, 90)])[0]
    assert_alike([split, pole], [crossing | {"zone": 0}, cap | {"zone": 1}])
    [kept] = zonal(dataset, [jumping], antimeridian="keep")
    fine = shapely.segmentize(shapely.box(-155, -20, 165, 10), 10)
    [long_way] = zonal(dataset, [fine])
    assert_alike([kept], [long_way])


def test_zones_outside_and_without_geometry():
    dataset = grid_of(drawn(steps=2), LAT, LON, chunks=(1, 4, 5))
    polygons = [shapely.box(0, -60, 5, -50), None, shapely.Polygon()]
    rows = zonal(dataset, polygons)
    nothing = {f"t_{name}": None for name in ALL}
    none = nothing | {"t_count": 0.0}
    assert rows == [
        {"zone": zone, "time": time, **held}
        for zone, held in ((0, none), (1, nothing), (2, none))
        for time in range(2)
    ]


BOWTIE = shapely.Polygon([(0, 45), (5, 50), (5, 45), (0, 50)])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (BOWTIE, "zone='odd' is invalid: Self-intersection"),
        (shapely.Point(1, 2), "zone='odd' is a Point, and zones are polygons"),
        (b"\x01nonsense", "zone='odd' is not WKB"),
        (shapely.box(500_000, 5_000_000, 500_100, 5_000_100), "set crs= to the CRS of the zones"),
        ("POLYGON ((1", "zone='odd' is not WKT"),
    ],
)
def test_a_geometry_that_cannot_be_used_is_named(wrong, told):
    dataset = grid_of(drawn(steps=1)[0], LAT, LON, chunks=(4, 5))
    good = POLYGONS[1].wkt if isinstance(wrong, str) else POLYGONS[1]
    with raises(InvalidInputError, match=told, zone="zone='odd'"):
        zonal(dataset, [good, wrong], names=["good", "odd"])
    rows = zonal(dataset, [good, wrong], names=["good", "odd"], on_invalid="null")
    assert rows[0]["t_count"] > 0
    assert rows[1] == {"zone": "odd"} | {f"t_{name}": None for name in ALL}


def test_only_selected_cells_and_steps_take_part():
    values = drawn(7)
    dataset = grid_of(values, LAT, LON, chunks=(2, 4, 5))
    picked = {"isel": "time=1:4; lat=0:3; lon=0:11:2"}
    rows = zonal(dataset, POLYGONS, **picked)
    kept = np.full(values.shape, np.nan)
    kept[:, :3, 0:11:2] = values[:, :3, 0:11:2]
    assert {row["time"] for row in rows} == {1, 2, 3}
    for step in (1, 2, 3):
        assert_alike(of_step(rows, step), by_exactextract(kept[step], POLYGONS))
    assert zonal(dataset, POLYGONS, isel="time=0:0") == []


def test_variables_of_other_chunks_orders_and_dimensions():
    values = drawn(8, steps=4)
    packed = np.arange(480, dtype="i2").reshape(10, 4, 12)
    height = np.arange(120, dtype="i4").reshape(10, 12)
    attributes = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": 7}
    dataset = grid_of(
        values,
        LAT,
        LON,
        chunks=(3, 4, 5),
        p=ArrayToWrite(
            values=packed, chunks=(10, 1, 6), dims=("lat", "time", "lon"), attributes=attributes
        ),
        h=ArrayToWrite(values=height, chunks=(2, 2), dims=("lat", "lon")),
    )
    rows = zonal(dataset, POLYGONS, variables=["t", "p", "h"])
    for step in range(4):
        p = np.where(packed[:, step] == 7, np.nan, packed[:, step] * 0.5 + 10)
        for name, grid in (("t", values[step]), ("p", p), ("h", height.astype("f8"))):
            found = [{s: row[f"{name}_{s}"] for s in ALL} for row in rows if row["time"] == step]
            assert_alike(found, by_exactextract(grid, POLYGONS))


def test_zones_in_another_reference_system():
    values = drawn(9, steps=1)[0]
    dataset = grid_of(values, LAT, LON, chunks=(4, 5))
    there = pyproj.Transformer.from_crs(4326, 3857, always_xy=True)
    moved = [
        shapely.transform(shapely.segmentize(p, 0.05), lambda x, y: there.transform(x, y),
                          interleaved=False)
        for p in POLYGONS
    ]  # fmt: skip
    found = of_step(zonal(dataset, moved, crs="EPSG:3857"), None)
    assert_alike(found, of_step(zonal(dataset, POLYGONS), None))
    assert_alike(of_step(zonal(dataset, POLYGONS, crs="OGC:CRS84"), None), found)


def test_longitudes_need_no_grid_mapping():
    values = drawn(9, steps=1)[0]
    attributes = {"grid_mapping": "not_written"}
    other = ArrayToWrite(values=values, chunks=(4, 5), dims=("lat", "lon"), attributes=attributes)
    dataset = grid_of(values, LAT, LON, chunks=(4, 5), u=other)
    rows = zonal(dataset, POLYGONS, variables=["u"], crs="EPSG:4326", statistics=("mean",))
    wanted = zonal(dataset, POLYGONS, variables=["t"], statistics=("mean",))
    assert [row["u_mean"] for row in rows] == [row["t_mean"] for row in wanted]


def projected(crs):
    attributes = {"units": "km", "standard_name": "projection_{}_coordinate"}
    axes = {
        name: ArrayToWrite(
            values=np.arange(20.0) * 50 - 500,
            chunks=(20,),
            dims=(name,),
            attributes={k: v.format(name) for k, v in attributes.items()},
        )
        for name in ("y", "x")
    }
    values = np.random.default_rng(10).normal(0, 1, (20, 20))
    mapping = {"crs_wkt": crs.to_wkt()}
    grid = ArrayToWrite(
        values=values, chunks=(7, 8), dims=("y", "x"), attributes={"grid_mapping": "crs"}
    )
    held = ArrayToWrite(values=np.zeros(()), chunks=(), dims=(), attributes=mapping)
    return write_dataset("projected", {**axes, "t": grid, "crs": held}), values


def test_projected_grids_take_zones_of_any_system():
    crs = pyproj.CRS.from_user_input("+proj=laea +lat_0=52 +lon_0=10 +ellps=GRS80")
    dataset, values = projected(crs)
    with raises(InvalidInputError, match="give the CRS of the zones", option="crs"):
        zonal(dataset, POLYGONS)
    own = shapely.box(-240, -180, 130, 215)
    edges = np.arange(21.0) * 50 - 525
    wanted = expected(values, fractions_of(own, edges, edges))
    assert_alike(of_step(zonal(dataset, [own], crs="grid"), None), [wanted])
    back = pyproj.Transformer.from_crs(crs, 4326, always_xy=True)
    fine = shapely.segmentize(own, 0.5)
    moved = shapely.transform(
        fine, lambda x, y: back.transform(x * 1000, y * 1000), interleaved=False
    )
    [found] = zonal(dataset, [moved], crs="EPSG:4326")
    assert found["t_mean"] == pytest.approx(wanted["mean"], rel=1e-4)
    with raises(
        InvalidInputError, match="weights='area' is the area of cells between", option="weights"
    ):
        zonal(dataset, [own], crs="grid", weights="area")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"variables": ["name"]}, "'name' holds string and not numbers"),
        ({"variables": ["t", "level"]}, "'level' has no dimension lat and no lon"),
        (
            {"weights": "t", "variables": ["h"]},
            r"weights='t' has the dimensions \(time",
        ),
        ({"statistics": ["avg"]}, "'avg' is not known; did you mean 'mean'"),
        ({"where": "t > 280", "variables": ["t"]}, "conditions on dimensions only"),
        ({"crs": "EPSG:0", "variables": ["t"]}, "is not a coordinate reference system"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(asked, told):
    dataset = grid_of(
        drawn(),
        LAT,
        LON,
        chunks=(5, 5, 5),
        h=ArrayToWrite(values=np.zeros((10, 12)), chunks=(5, 5), dims=("lat", "lon")),
        level=ArrayToWrite(values=np.zeros(5), chunks=(5,), dims=("time",)),
        name=ArrayToWrite(
            values=np.full((10, 12), "a", dtype=object),
            chunks=(5, 5),
            dims=("lat", "lon"),
            fill_value="",
        ),
    )
    with pytest.raises(InvalidInputError, match=told):
        zonal(dataset, POLYGONS, **asked)


def test_unknown_weights_lead_to_the_area_of_cells():
    dataset = grid_of(drawn(), LAT, LON, chunks=(5, 5, 5))
    told = "no array 'cos'.*'area' is the area of cells"
    with raises(NotFoundError, match=told, option="weights", name="cos"):
        zonal(dataset, POLYGONS, variables=["t"], weights="cos")


def test_curvilinear_grids_are_refused():
    two = {name: np.add.outer(np.arange(4.0), np.arange(5.0)) for name in ("nav_lat", "nav_lon")}
    arrays = {
        name: ArrayToWrite(
            values=values,
            chunks=(4, 5),
            dims=("y", "x"),
            attributes={"units": f"degrees_{'north' if 'lat' in name else 'east'}"},
        )
        for name, values in two.items()
    }
    data = ArrayToWrite(
        values=np.zeros((4, 5)),
        chunks=(4, 5),
        dims=("y", "x"),
        attributes={"coordinates": "nav_lat nav_lon"},
    )
    with raises(UnsupportedError, match=r"curvilinear grid \(nav_lat, nav_lon\)", variable="t"):
        zonal(write_dataset("orca", {**arrays, "t": data}), POLYGONS)


def test_chunks_without_a_zone_are_not_fetched(monkeypatch):
    from icechunk_format.repository.chunks import ChunkSource

    fetched = []
    fetch = ChunkSource.fetch

    def counting(self, refs, rows, *others):
        fetched.append(len(rows))
        return fetch(self, refs, rows, *others)

    def fetches(zones):
        fetched.clear()
        zonal(dataset, zones, statistics=("mean",), variables=["t"])
        return sum(fetched)

    dataset = grid_of(drawn(steps=4), LAT, LON, chunks=(1, 2, 3))
    monkeypatch.setattr(ChunkSource, "fetch", counting)
    outside = [shapely.box(100, 0, 101, 1)]
    fetches(outside)  # reads labels that a process keeps
    labels = fetches(outside)
    # Two zones in one chunk, and one over two chunks beside it.
    zones = [shapely.box(0, 57.5, 1, 58), shapely.box(1, 58, 2, 59), shapely.box(9, 50, 20, 50.5)]
    assert fetches(zones) - labels == 4 * 3
