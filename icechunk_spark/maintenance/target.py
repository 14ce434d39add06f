"""What all jobs of upkeep need to know: where the repository is, and how wide Spark is.

Rules of this file
------------------
1. Jobs take the ``storage.*`` options of reading, spelled as there. All other options are refused,
   because they would mean nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.storage.location import Location
from icechunk_spark.options.options import collect_options
from icechunk_spark.options.path import split_path
from icechunk_spark.options.python_values import option_texts
from icechunk_spark.session.errors import error_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_STORAGE: Final = "storage.*"
_CLIENT: Final = "storage.client"
_MOST_SHOWN: Final = 300


def location_from(path: str, options: Mapping[str, Any]) -> Location:
    """Return where a repository is.

    Parameters
    ----------
    path
        Its root.
    options
        ``storage.*`` options.

    Raises
    ------
    InvalidInputError
        An option is unknown or means nothing here, or the path names a metadata table.
    """
    given = collect_options(option_texts(options), use="read")
    foreign = sorted(set(given) - {_STORAGE, _CLIENT})
    if foreign:
        raise InvalidInputError(
            f"option '{foreign[0]}' means nothing for upkeep: only 'storage.*' options do, as in"
            " **{'storage.region': 'us-west-2'}",
            option=foreign[0],
        )
    root, table = split_path(str(path))
    if table is not None:
        raise InvalidInputError(
            f"the path names the metadata table '{table}': give the repository's, {root!r}",
            option="path",
        )
    return Location(url=root, client=given.get(_CLIENT, "auto"), options=given.get(_STORAGE, {}))


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at once, about."""
    if ".connect" in type(spark).__module__:  # which has no SparkContext to ask
        return int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2)
    return spark.sparkContext.defaultParallelism


@contextlib.contextmanager
def raised_in_jobs(what: str, outcome: str) -> Iterator[None]:
    """Turn Spark's report of a failed job into the error that a task raised, or into one of ours.

    Parameters
    ----------
    what
        What the job did, as in "collecting garbage of s3://bucket/weather".
    outcome
        What is true after a failure, and what to do: a sentence.

    Raises
    ------
    IcechunkError
        A task raised it.
    StorageError
        Spark gave the job up: executors died, or it was cancelled.
    """
    try:
        yield
    except (PySparkException, Py4JError) as failure:
        text = str(failure)
        error = error_in(text)
        if error is None and "Traceback (most recent call last)" in text:
            raise  # of something that nobody foresaw, and the traceback says what
        if error is None:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            reason = next((line for line in lines if "Exception: " in line), lines[0])
            error = StorageError(
                f"Spark gave up {what} ({reason[:_MOST_SHOWN]}). {outcome}; the logs of the"
                " executors say more",
                what=what,
            )
        raise error from failure
