"""Statistics of zones in one process, without Spark, and by brute force."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import shapely
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset

from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.zonal import Combining, Covering, Summing, ZonalRequest, plan_zonal

ALL = ("count", "mean", "sum", "min", "max", "std")


def grid_of(values, lat, lon, *, chunks, bounds=None, missing=frozenset(), **more):
    """Write a grid of (time, lat, lon) or (lat, lon) with labels, and further arrays."""
    dims = ("time", "lat", "lon")[-values.ndim :]
    named = {} if bounds is None else {"bounds": "lat_bnds"}
    arrays = {
        "lat": ArrayToWrite(
            values=np.asarray(lat),
            chunks=(len(lat),),
            dims=("lat",),
            attributes={
                "units": "degrees_north",
                **named,
            },
        ),
        "lon": ArrayToWrite(
            values=np.asarray(lon),
            chunks=(len(lon),),
            dims=("lon",),
            attributes={"units": "degrees_east"},
        ),
        "t": ArrayToWrite(
            values=values,
            chunks=chunks,
            dims=dims,
            fill_value=float("nan") if values.dtype.kind == "f" else 0,
            missing=missing,
        ),
        **more,
    }
    if bounds is not None:
        arrays["lat_bnds"] = ArrayToWrite(
            values=np.asarray(bounds), chunks=np.shape(bounds), dims=("lat", "nv")
        )
    if values.ndim == 3:
        steps = np.arange(len(values))
        arrays["time"] = ArrayToWrite(values=steps, chunks=steps.shape, dims=("time",))
    return write_dataset("zones", arrays)


def zonal(dataset, polygons, *, statistics=ALL, batches=1, names=None, **asked):
    """Return the rows of all zones as a list of dicts, by zone and then by step."""
    request_names = ("coverage", "weights", "crs", "on_invalid", "antimeridian", "cores")
    request = ZonalRequest(
        statistics=statistics, **{k: asked.pop(k) for k in request_names if k in asked}
    )
    read = ReadRequest(**{"path": "grid", "read_ahead_bytes": 1 << 24, **asked})
    context = plan_zonal(dataset, request, read)
    if any(isinstance(polygon, str) for polygon in polygons):
        column = pa.array(polygons, pa.string())
    else:
        plain = [p.wkb if isinstance(p, shapely.Geometry) else p for p in polygons]
        column = pa.array(plain, pa.binary())
    number = pa.array(names or range(len(polygons)))
    zones = pa.record_batch({"zone": number, "geometry": column})
    covered = []
    for part, some in enumerate(np.array_split(np.arange(len(polygons)), batches)):
        if len(some):
            covering = Covering(context, ["zone"], part)
            covered += covering.rows(zones.take(pa.array(some)))
    if not covered:
        return []
    rows = pa.Table.from_batches(covered).sort_by("task").to_batches(max_chunksize=7)
    parts = pa.Table.from_batches(list(Summing(context).rows(rows)))
    parts = parts.sort_by([(key, "ascending") for key in ("zone", "split", "part")])
    result = pa.Table.from_batches(list(Combining(context).rows(parts.to_batches())))
    result = result.rename_columns(["zone", *(f.name for f in context.result_fields())])
    assert result.schema.types[1:] == [f.type for f in context.result_fields()]
    keys = [name for name in result.column_names if "_" not in name]
    return result.sort_by([(name, "ascending") for name in keys]).to_pylist()


def fractions_of(polygon, lat_edges, lon_edges):
    """Return the covered fraction of every cell, by shapely alone."""
    south, north = (
        np.minimum(lat_edges[:-1], lat_edges[1:]),
        np.maximum(lat_edges[:-1], lat_edges[1:]),
    )
    west, east = (
        np.minimum(lon_edges[:-1], lon_edges[1:]),
        np.maximum(lon_edges[:-1], lon_edges[1:]),
    )
    cells = shapely.box(west[None, :], south[:, None], east[None, :], north[:, None])
    return shapely.area(shapely.intersection(cells, polygon)) / shapely.area(cells)


def expected(values, fractions, weights=None):
    """Return the statistics of one step for one zone, by the definitions."""
    there = (fractions > 0) & ~np.isnan(values)
    f, v = fractions[there], values[there].astype(np.float64)
    w = f if weights is None else f * weights[there]
    if not len(f):
        return dict.fromkeys(ALL) | {"count": 0.0}
    mean = (w * v).sum() / w.sum()
    return {
        "count": f.sum(),
        "mean": mean,
        "sum": (w * v).sum(),
        "min": v.min(),
        "max": v.max(),
        "std": np.sqrt((w * (v - mean) ** 2).sum() / w.sum()),
    }


def assert_alike(found, wanted, tolerance=1e-6):
    """Check that two lists of rows have the same keys, NULLs and numbers, but for roundings."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if isinstance(value, float) and theirs[name] is not None:
                # Rounded fractions of few cells change a deviation more than a mean.
                most = tolerance * (100 if name.endswith("std") else 1)
                close = np.isclose(value, theirs[name], rtol=most, atol=most)
                assert close, (name, ours, theirs)
            else:
                assert value == theirs[name], (name, ours, theirs)


def star(random, x, y, radius, points=12):
    """Return a polygon with a hole, valid because its vertices go round a middle."""
    angle = np.sort(random.uniform(0, 2 * np.pi, points))
    away = radius * random.uniform(0.5, 1.0, points)
    ring = np.stack([x + away * np.cos(angle), y + away * np.sin(angle)], axis=1)
    outer = shapely.make_valid(shapely.Polygon(ring))
    return shapely.difference(outer, shapely.Point(x, y).buffer(radius / 5, quad_segs=3))
