"""A source, and results and a copy that follow it, each at a fixed place that records name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.mapping import BlocksRequest, MapRequest, map_over_blocks
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.reducing import ReduceRequest, one_process, reduce_arrays
from icechunk_format.workflows.running import in_process
from icechunk_spark.mapping.datasets import DatasetFunction

if TYPE_CHECKING:
    from pathlib import Path

SOURCE, FOLLOWED, REDUCED, MIRRORED = (
    "memory://golden-source", "memory://golden-followed", "memory://golden-reduced", "mirrored",
)  # fmt: skip


def write_source(first: int, last: int) -> None:
    """Write some days, or append them."""
    day, y = np.meshgrid(np.arange(first, last), np.arange(3), indexing="ij")
    times = np.datetime64("2024-01-30", "us") + day.ravel() * np.timedelta64(1, "D")
    columns = {"time": times, "y": y.ravel(), "t2m": (day * 10.0 + y).ravel()}
    options = WriteOptions(mode="append", dims=("time", "y"), chunks={"time": 1, "y": 3})
    write_table(SOURCE, pa.table(columns), options)


def celsius(dataset: Any) -> Any:
    """Return a dataset in other units; the record names this function."""
    return dataset[["t2m"]] - 273.15


def follow() -> Any:
    """Compute the blocks that changed since the last run."""
    request = MapRequest(
        source=BlocksRequest(read=ReadRequest(path=SOURCE), blocks={"time": 1}, overlap=None),
        target=Location.of(FOLLOWED),
        options=WriteOptions(),
        chunks={},
        encoding={},
        function_version="1",
        skips_errors=False,
        follow=True,
    )
    return map_over_blocks(request, DatasetFunction(function=celsius, encoding={}), in_process)


def reduce() -> Any:
    """Compute the means of the months that changed since the last run."""
    request = ReduceRequest(
        read=ReadRequest(path=SOURCE),
        statistics={"t2m": ["mean", "std"]},
        over=("time",),
        by="time.month",
        memory=2**20,
        target=Location.of(REDUCED),
        options=WriteOptions(),
        follow=True,
    )
    return reduce_arrays(request, one_process, cores=None, dry_run=False)


def mirror(folder: Path) -> Any:
    """Bring the copy up to date."""
    request = MirrorRequest(
        read=ReadRequest(path=SOURCE),
        target=DeltaTarget.of(str(folder)),
        selection=Selection.of({"where": "t2m < 1000"}),
    )
    return bring_up_to_date(request, in_process)


def mirrored_rows(folder: Path) -> list[Any]:
    """Return the rows of the copy, as JSON."""
    table = DeltaTarget.of(str(folder)).open().to_pyarrow_table()
    table = table.sort_by([("time", "ascending"), ("y", "ascending")])
    return [[str(row[name]) for name in ("time", "y", "t2m")] for row in table.to_pylist()]
