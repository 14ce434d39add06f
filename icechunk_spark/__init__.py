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
from typing import TYPE_CHECKING

import icechunk_spark.compatibility  # noqa: F401 - first, since older releases lack modules
from icechunk_format.names import loaded_on_use
from icechunk_format.version import __version__ as __version__
from icechunk_spark.queries.read import read
from icechunk_spark.registration import register, unregister
from icechunk_spark.source import IcechunkDataSource
from icechunk_spark.writing.write import write

# Imported here instead of on use: otherwise the package of the same name would replace it.
from icechunk_spark.zonal.zonal import zonal

if TYPE_CHECKING:
    from icechunk_format.storage.measures import Measures
    from icechunk_format.workflows.estimate import Estimate
    from icechunk_format.workflows.virtualizing import VirtualizeResult
    from icechunk_spark import maintenance as maintenance
    from icechunk_spark.deleting.delete import delete
    from icechunk_spark.jobs.metrics import last_read_metrics
    from icechunk_spark.mapping.map_blocks import map_blocks, read_blocks
    from icechunk_spark.mirroring.copy import mirror
    from icechunk_spark.mirroring.read import freshness, mirrored
    from icechunk_spark.reading.combine import combine_summaries
    from icechunk_spark.reading.estimate import estimate
    from icechunk_spark.reading.to_xarray import to_xarray
    from icechunk_spark.rechunking.rechunk import rechunk
    from icechunk_spark.reducing.reduce import reduce
    from icechunk_spark.sampling.sample import sample
    from icechunk_spark.sql.catalog import attach, tables
    from icechunk_spark.sql.view import view
    from icechunk_spark.virtualizing.virtualize import virtualize

# Silent until a program configures logging.
logging.getLogger("icechunk_spark").addHandler(logging.NullHandler())

__all__ = [
    "Estimate",
    "IcechunkDataSource",
    "Measures",
    "VirtualizeResult",
    "attach",
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
    "reduce",
    "register",
    "sample",
    "tables",
    "to_xarray",
    "unregister",
    "view",
    "virtualize",
    "write",
    "zonal",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        "icechunk_format.workflows.estimate": ["Estimate"],
        "icechunk_format.storage.measures": ["Measures"],
        "icechunk_format.workflows.virtualizing.result": ["VirtualizeResult"],
        ".reading.combine": ["combine_summaries"],
        ".deleting.delete": ["delete"],
        ".reading.estimate": ["estimate"],
        ".mirroring.read": ["freshness", "mirrored"],
        ".jobs.metrics": ["last_read_metrics"],
        ".mapping.map_blocks": ["map_blocks", "read_blocks"],
        ".mirroring.copy": ["mirror"],
        ".rechunking.rechunk": ["rechunk"],
        ".reducing.reduce": ["reduce"],
        ".sampling.sample": ["sample"],
        ".reading.to_xarray": ["to_xarray"],
        ".sql.catalog": ["attach", "tables"],
        ".sql.view": ["view"],
        ".virtualizing.virtualize": ["virtualize"],
        ".maintenance": ["maintenance"],
    },
    *__all__,
    "__version__",
)
