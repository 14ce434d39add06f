"""Provides the data source ``icechunk`` to Spark's automatic lookup.

Spark searches top-level modules ``pyspark_*`` for a class ``DefaultSource``, and imports them in a
Python worker at the first lookup of any source. So this module imports little.
"""

from __future__ import annotations

from icechunk_spark.source import IcechunkDataSource as DefaultSource

__all__ = ["DefaultSource"]
