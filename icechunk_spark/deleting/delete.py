"""Implements ``icechunk_spark.delete``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pyspark.sql import SparkSession

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import own_options
from icechunk_format.options.location import location_of
from icechunk_format.workflows.deleting import DeleteRequest, DeleteResult, delete_selected
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import session_time_zone
from icechunk_spark.jobs.session_options import session_change
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import in_commit, totalled


@checked_call("delete")
def delete(
    spark: SparkSession,
    path: str,
    *,
    where: str | None = None,
    sel: Mapping[str, Any] | str | None = None,
    isel: Mapping[str, Any] | str | None = None,
    sel_method: Literal["exact", "nearest"] | None = None,
    variables: Sequence[str] | None = None,
    dry_run: bool = False,
    group: str | None = None,
    branch: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    create_branch: bool = False,
    on_conflict: Literal["rebase", "fail"] = "rebase",
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    **options: Any,
) -> DeleteResult:
    """Delete labels of a dimension, or the values of a region, in one commit.

    A selection that restricts one dimension deletes its labels: every array of the group with that
    dimension becomes shorter. Chunks that keep all their elements are moved by reference; only the
    others are written again. A selection that restricts several dimensions, or has a condition on
    values, makes the cells of the data variables missing. Older snapshots do not change.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    where
        A SQL condition on the columns of the table, with times in the session's time zone.
    sel, isel, sel_method
        Selections by label and by position, as in reading.
    variables
        Data variables whose cells become missing; labels are then kept. By default all variables
        with the dimensions of the selection.
    dry_run
        If True, only the counts of labels or cells are returned; nothing is deleted.
    group, branch
        The group, and the branch that the commit moves (``main``).
    message, metadata, create_branch, on_conflict, txn_app_id, txn_version
        Options of the commit, as in writing. If other writers change the same chunks first, the
        selection is resolved again on top of their commits; ``on_conflict="fail"`` raises
        ConflictError instead.
    **options
        ``storage_*`` and ``virtual_*``, as in reading.

    Returns
    -------
    DeleteResult
        The arrays, and the number of labels or cells; ``commit`` is the result of the write.

    Raises
    ------
    InvalidInputError
        The selection is empty, a name or value is invalid, or cells of an array without a missing
        value are selected.
    ConflictError
        Other writers changed the same arrays at each attempt; nothing was committed.
    NotFoundError
        The repository, branch or group does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.delete(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", where="date(time) = '2024-07-04'", dry_run=True
    ... )
    """
    read, commit = session_change(spark, path, own_options("delete", locals()), "delete")
    work = DeleteRequest(
        read=read, time_zone=session_time_zone(spark), options=commit, dry_run=dry_run
    )
    with totalled() as totals, raised_in_jobs(f"deleting from {location_of(read)}"):
        done = delete_selected(work, partial(on_executors, spark))
    return in_commit(done, totals)
