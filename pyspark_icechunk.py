"""What Spark's auto-lookup finds: a top-level module ``pyspark_*`` with a ``DefaultSource``.

Spark imports it in a Python worker at the first lookup of any source, so it stays light.
"""

from __future__ import annotations

from icechunk_spark.source import IcechunkDataSource as DefaultSource

__all__ = ["DefaultSource"]
