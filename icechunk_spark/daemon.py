"""Runs Spark's daemon for Python workers, after importing the modules that reads need.

Spark ends a worker whose rows it did not take to the end, as after `show`, `first`, `take` and
every other LIMIT. The next query starts a new worker, which has to import Arrow, NumPy, pandas and
this package again. Spark's daemon forks its workers, so they have the daemon's imports at once::

    SparkSession.builder.config("spark.python.daemon.module", "icechunk_spark.daemon")

Rules of this file
------------------
1. Only modules are imported. Clients of stores, thread pools and caches are made by workers: a
   client that was made before a fork hangs after it. NumPy and Arrow start threads when they are
   imported, and have handlers that make forks safe.
2. A module that cannot be imported is left to the workers, which raise an error that a user sees.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Final

from pyspark.daemon import manager

# The last two are imported by pyarrow and NumPy when they first meet an array.
_FOR_WORKERS: Final = (
    "pyspark.worker",
    "icechunk_spark.reading.mapped_tasks",
    "icechunk_spark.reading.reader",
    "icechunk_format.dataset.reading.run",
    "icechunk_format.dataset.metadata_tables.read",
    "obstore.store",
    "numcodecs.blosc",
    "pandas",
)

if __name__ == "__main__":
    for name in _FOR_WORKERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    manager()
