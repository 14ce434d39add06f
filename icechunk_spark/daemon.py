"""A daemon for Spark's Python workers that has imported what reading needs.

Spark ends a worker whose rows it did not take to the end: after `show`, `first`, `take` and every
other LIMIT, its runner closes the worker's socket, and no function can prevent that. The next query
starts a new worker, which imports Arrow, NumPy, pandas and this package anew. Spark's daemon makes
workers by a fork, so what the daemon has imported is there at once::

    SparkSession.builder.config("spark.python.daemon.module", "icechunk_spark.daemon")

Rules of this file
------------------
1. Only modules are imported. Clients of stores, thread pools and caches are made by workers: a
   client that was made before a fork hangs after it. NumPy and Arrow start threads when they are
   imported, and have handlers that make forks safe.
2. What cannot be imported is left to the workers, which raise an error that a user sees.
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
