"""Expires snapshots on the driver: expiration changes one object, so it needs no executor."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from icechunk_format.maintenance import ExpireResult
from icechunk_format.options.location import maintenance_location
from icechunk_format.repository.history.resolve import Cutoff
from icechunk_format.repository.repository import Repository


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
    """Remove snapshots that were committed before a cutoff from history.

    No file is deleted: ``collect_garbage`` does that afterwards. The change is made by the driver,
    in one conditional update; only in spec version 1 does it read and write files of snapshots.

    Parameters
    ----------
    spark
        The session, as for the other functions; it is not used.
    path
        Root of the repository.
    older_than, delete_expired_branches, delete_expired_tags, dry_run
        As for ``icechunk_format.Repository.expire_snapshots``, whose result and errors this
        function has.
    **options
        ``storage.*`` options, as in ``spark.read.option``.
    """
    return Repository.open(maintenance_location(path, options)).expire_snapshots(
        older_than,
        delete_expired_branches=delete_expired_branches,
        delete_expired_tags=delete_expired_tags,
        dry_run=dry_run,
    )
