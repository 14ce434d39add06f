"""Expires snapshots on the driver: expiration changes one object, so it needs no executor."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from icechunk_format.maintenance import ExpireResult
from icechunk_format.options.arguments import checked_call
from icechunk_format.repository import Repository
from icechunk_format.repository.history.resolve import Cutoff
from icechunk_spark.jobs.session_options import session_location


@checked_call("maintenance")
def expire_snapshots(
    spark: SparkSession,
    path: str,
    older_than: Cutoff,
    *,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    dry_run: bool = False,
    **options: Any,
) -> ExpireResult:
    """Remove snapshots that were committed before a cutoff from the history.

    No file is deleted; ``collect_garbage`` deletes files afterwards. The driver makes the change in
    one conditional update. In spec version 1, it also reads and writes snapshot files.

    Parameters
    ----------
    spark
        The session, whose defaults apply; no job runs.
    path
        Root of the repository.
    older_than, delete_expired_branches, delete_expired_tags, dry_run
        As in ``icechunk_format.Repository.expire_snapshots``, which has the same result and errors.
    **options
        ``storage.*`` options, as in ``spark.read.option``.

    Returns
    -------
    ExpireResult
        The ids of expired snapshots, and the deleted branches and tags.

    Raises
    ------
    IcechunkError
        The repository does not exist, or the cutoff is invalid.

    Examples
    --------
    >>> from datetime import timedelta
    >>> expire_snapshots(spark, "s3://bucket/weather", timedelta(days=30))  # doctest: +SKIP
    """
    return Repository.open(session_location(spark, path, options)).expire_snapshots(
        older_than,
        delete_expired_branches=delete_expired_branches,
        delete_expired_tags=delete_expired_tags,
        dry_run=dry_run,
    )
