"""Estimates the cost of a read before it runs, on executors or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.location import location_of
from icechunk_format.workflows.estimate import Estimate, estimate_read
from icechunk_format.workflows.running import in_process
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of, session_time_zone
from icechunk_spark.jobs.session_options import session_read
from icechunk_spark.jobs.task_rows import collected, tasks_in, work_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAVES = 4


@checked_call("read")
def estimate(
    spark: SparkSession | None, path: str, *, exact: bool = True, **options: Any
) -> Estimate:
    """Return the cost of a read: partitions, chunks, bytes, requests, cells and rows.

    Only manifests, shard indexes and the labels of selected dimensions are read.

    Parameters
    ----------
    spark
        The session whose executors read the manifests. With None, this process reads them, which
        takes about ten seconds for a million chunks.
    path
        Root of the repository.
    exact
        If False, no manifest is opened: chunks are counted from the snapshot, which records the
        number of chunks of each manifest. This takes as long as planning, for any number of chunks.
        `stored_bytes` is then None, and chunks are assumed to be spread evenly.
    **options
        Options of `read`: ``tag="v1"``, ``sel={"time": slice(...)}``, ``layout="chunks"``,
        ``storage_region="us-west-2"``, ``table="chunks"``, ``changes_since="v1"``.

    Returns
    -------
    Estimate
        The counts. With ``exact``, they equal those of the read, except that a process reads the
        index of a shard only once.

    Raises
    ------
    IcechunkError
        An option cannot be used, an object that it names does not exist, or a virtual chunk is
        outside of every authorized prefix (UnauthorizedVirtualChunkError).

    Examples
    --------
    >>> icechunk_spark.estimate(None, "s3://bucket/weather", tag="v1")  # doctest: +SKIP
    """
    request = session_read(spark, path, options)
    if spark is None:
        return estimate_read(request, run=in_process, exact=exact)
    session = spark

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterable[Any]:
        # Imported on executors, which return one sum for each partition.
        from icechunk_format.tables.reading import summed

        if not tasks:
            return []
        rows = work_rows(session, tasks, _WAVES * cores_of(session))
        return collected(rows, lambda batches: [summed(map(function, tasks_in(batches)))])

    zone = session_time_zone(session) if request.where is not None else None
    with raised_in_jobs(f"estimate of a read of {location_of(request)}", "Nothing was changed"):
        return estimate_read(request, run=run, exact=exact, time_zone=zone)
