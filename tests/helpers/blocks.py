"""Sources and runs of ``map_blocks`` without Spark."""

from __future__ import annotations

import icechunk
import numpy as np
import xarray as xr
from helpers.builder import reference_repository

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mapping import (
    BlocksRequest,
    MapRequest,
    OtherRequest,
    map_over_blocks,
)
from icechunk_format.workflows.running import in_process
from icechunk_spark.mapping.datasets import DatasetFunction

DAY = np.timedelta64(1, "D")


def days(first, count, seed=0, y=6, x=4):
    rng = np.random.default_rng([seed, first])
    return xr.Dataset(
        {
            "t2m": (("time", "y", "x"), rng.normal(280, 10, (count, y, x)), {"units": "K"}),
            "mask": (("y", "x"), np.arange(y * x).reshape(y, x) % 2),
        },
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(first, first + count) * DAY,
            "y": np.arange(y) * 1.0,
            "x": np.arange(x) * 1.0,
        },
    )


class Source:
    """A repository that the reference changes."""

    def __init__(self, path, dataset, chunks=(1, 6, 4), encoding=None):
        self.path = str(path)
        self.repository = reference_repository(self.path)
        if encoding is None:
            encoding = {"t2m": {"chunks": chunks}, "time": {"units": "days since 2000-01-01"}}
        self.write(dataset, encoding=encoding)

    def write(self, dataset, **options):
        session = self.repository.writable_session("main")
        dataset.to_zarr(session.store, zarr_format=3, consolidated=False, **options)
        session.commit("change")

    def append(self, dataset):
        self.write(dataset, append_dim="time")

    def put(self, name, at, value):
        import zarr

        session = self.repository.writable_session("main")
        zarr.open_group(session.store)[name][at] = value
        session.commit("put")


def opened(path, group=None):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    store = repository.readonly_session("main").store
    # Without dask, which decodes the times of each chunk on their own.
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None).load()


def mapped(source, function, to, *, blocks=None, run=in_process, **given):
    options = {
        name: given.pop(name) for name in ("mode", "group", "txn_app_id", "txn_version", "branch")
        if name in given
    }  # fmt: skip
    encoding = given.pop("encoding", {})
    read = {name: given.pop(name, None) for name in ("overlap", "variables", "sel", "isel")}
    periodic = given.pop("periodic", ())
    function = DatasetFunction(function=function, encoding=encoding)
    template = given.pop("template", None)
    others = [other(name, **own) for name, own in given.pop("others", {}).items()]
    request = MapRequest(
        source=BlocksRequest(
            read=ReadRequest(
                path=str(source.path), **{n: read.pop(n) for n in ("variables", "sel", "isel")}
            ),
            blocks=blocks,
            periodic=periodic,
            others=others,
            **read,
        ),
        target=Location.of(str(to)),
        options=WriteOptions(**options),
        chunks=given.pop("chunks", {}),
        encoding=encoding,
        skips_errors=given.pop("skips_errors", False),
        template=None if template is None else function.layouts(template),
        **given,
    )
    return map_over_blocks(request, function, run)


def other(name, source, method="exact", tolerance=None, **read):
    """Return a further source of blocks."""
    return OtherRequest(
        name=name,
        read=ReadRequest(path=str(source.path), **read),
        method=method,
        tolerance=tolerance,
    )
