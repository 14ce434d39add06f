"""Icechunk repositories as Apache Spark tables.

>>> import icechunk_spark
>>> icechunk_spark.register(spark)  # doctest: +SKIP
>>> spark.read.format("icechunk").load("s3://bucket/weather")  # doctest: +SKIP
"""

from __future__ import annotations

from icechunk_spark.registration import register
from icechunk_spark.source import IcechunkDataSource

__all__ = ["IcechunkDataSource", "register"]
