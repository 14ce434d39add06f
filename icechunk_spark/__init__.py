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

from icechunk_format.version import __version__ as __version__
from icechunk_format.workflows.virtualizing.result import VirtualizeResult
from icechunk_spark.mirroring.copy import mirror
from icechunk_spark.mirroring.read import freshness, mirrored
from icechunk_spark.reading.function import read
from icechunk_spark.reading.to_xarray import to_xarray
from icechunk_spark.registration import register, unregister
from icechunk_spark.sampling.function import sample
from icechunk_spark.source import IcechunkDataSource
from icechunk_spark.virtualizing.function import virtualize
from icechunk_spark.writing.function import write
from icechunk_spark.zonal.function import zonal

__all__ = [
    "IcechunkDataSource",
    "VirtualizeResult",
    "freshness",
    "mirror",
    "mirrored",
    "read",
    "register",
    "sample",
    "to_xarray",
    "unregister",
    "virtualize",
    "write",
    "zonal",
]
