"""Replaces a bare ModuleNotFoundError of an executor by an error that names the remedy.

An executor that lacks this package cannot import an error of it either. So `unpacked` is pickled
with its code, and what needs the package is a string of bytes that it opens.

Rules of this file
------------------
1. `unpacked` and what it uses import only the standard library, also of executors.
2. The message is one line, since Spark prints it under the traceback of the worker.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle

from icechunk_spark.compatibility import PAGE


def unpacked(payload: bytes) -> Any:
    """Return an object from its pickled class and state.

    Raises ModuleNotFoundError with the remedy if the Python of this process lacks a package.
    """
    import pickle
    import sys

    try:
        cls, state = pickle.loads(payload)
    except ModuleNotFoundError as missing:
        version = ".".join(map(str, sys.version_info[:3]))
        raise ModuleNotFoundError(
            f"the Python of an executor ({sys.executable}, {version}) lacks the package"
            f" {missing.name!r}, which the driver has: install icechunk-spark for this Python on"
            f" every machine, see {PAGE}",
            name=missing.name,
        ) from None
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made


def serialized(cls: type, state: dict[str, Any]) -> tuple[Any, ...]:
    """Return the result of ``__reduce__`` for an object that executors receive."""
    return unpacked, (cloudpickle.dumps((cls, state)),)  # type: ignore[no-untyped-call]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
