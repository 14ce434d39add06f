"""Runs Spark's daemon for Python workers, after importing the modules that reads need.

Spark terminates a worker whose rows were not all consumed, as after `show`, `first`, `take` and
every other LIMIT. The next query starts a new worker, which imports Arrow, NumPy, pandas and this
package again. Spark's daemon forks its workers, so they inherit the daemon's imports::

    SparkSession.builder.config("spark.python.daemon.module", "icechunk_spark.daemon")

Rules of this file
------------------
1. Only modules are imported. Workers create storage clients, thread pools and caches, since a
   client that was created before a fork hangs after it. NumPy and Arrow start threads when they are
   imported, and have handlers that make forks safe.
2. If a module cannot be imported, the workers raise the error, so that the user sees it.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Final

from pyspark.daemon import manager

# pyarrow and NumPy import the last two with their first array.
_FOR_WORKERS: Final = (
    "pyspark.worker",
    "icechunk_spark.reading.reader",
    "icechunk_format.tables.reading.run",
    "icechunk_format.tables.metadata_tables.read",
    "icechunk_format.storage.local.store",
    "obstore.store",
    "numcodecs.blosc",
    "pandas",
)

if __name__ == "__main__":
    for name in _FOR_WORKERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    manager()
