"""Icechunk repositories as Apache Spark tables.

Examples
--------
>>> import icechunk_spark
>>> icechunk_spark.register(spark)
>>> df = spark.read.format("icechunk").load("s3://bucket/weather")
>>> df = icechunk_spark.read(spark, "s3://bucket/weather")  # the same
>>> df.write.format("icechunk").save("s3://bucket/copy")
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.version import __version__ as __version__
from icechunk_spark.reading.function import read
from icechunk_spark.registration import register, unregister
from icechunk_spark.source import IcechunkDataSource
from icechunk_spark.writing.function import write

# Loaded now: the function has the name of its package.
from icechunk_spark.zonal.zonal import zonal

if TYPE_CHECKING:
    from icechunk_format.storage.measures import Measures
    from icechunk_format.workflows.estimate import Estimate
    from icechunk_format.workflows.virtualizing.result import VirtualizeResult
    from icechunk_spark import maintenance as maintenance
    from icechunk_spark.deleting.function import delete
    from icechunk_spark.mapping.function import map_blocks, read_blocks
    from icechunk_spark.mirroring.copy import mirror
    from icechunk_spark.mirroring.read import freshness, mirrored
    from icechunk_spark.reading.combine import combine_summaries
    from icechunk_spark.reading.estimate import estimate
    from icechunk_spark.reading.metrics import last_read_metrics
    from icechunk_spark.reading.to_xarray import to_xarray
    from icechunk_spark.rechunking.function import rechunk
    from icechunk_spark.sampling.sample import sample
    from icechunk_spark.sql.view import view
    from icechunk_spark.virtualizing.function import virtualize

_HOME: Final = {
    "Estimate": "icechunk_format.workflows.estimate",
    "Measures": "icechunk_format.storage.measures",
    "VirtualizeResult": "icechunk_format.workflows.virtualizing.result",
    "combine_summaries": "icechunk_spark.reading.combine",
    "delete": "icechunk_spark.deleting.function",
    "estimate": "icechunk_spark.reading.estimate",
    "freshness": "icechunk_spark.mirroring.read",
    "last_read_metrics": "icechunk_spark.reading.metrics",
    "map_blocks": "icechunk_spark.mapping.function",
    "mirror": "icechunk_spark.mirroring.copy",
    "mirrored": "icechunk_spark.mirroring.read",
    "read_blocks": "icechunk_spark.mapping.function",
    "rechunk": "icechunk_spark.rechunking.function",
    "sample": "icechunk_spark.sampling.sample",
    "to_xarray": "icechunk_spark.reading.to_xarray",
    "view": "icechunk_spark.sql.view",
    "virtualize": "icechunk_spark.virtualizing.function",
}

# Silent until a program configures logging.
logging.getLogger("icechunk_spark").addHandler(logging.NullHandler())

__all__ = [
    "Estimate",
    "IcechunkDataSource",
    "Measures",
    "VirtualizeResult",
    "combine_summaries",
    "delete",
    "estimate",
    "freshness",
    "last_read_metrics",
    "map_blocks",
    "mirror",
    "mirrored",
    "read",
    "read_blocks",
    "rechunk",
    "register",
    "sample",
    "to_xarray",
    "unregister",
    "view",
    "virtualize",
    "write",
    "zonal",
]


def __getattr__(name: str) -> Any:
    """Load a public name that workers and the driver of a read do not need."""
    if name == "maintenance":
        return import_module("icechunk_spark.maintenance")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__", "maintenance"]
