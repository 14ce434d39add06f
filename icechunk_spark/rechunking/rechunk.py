"""Implements ``icechunk_spark.rechunk``: Spark runs the tasks and shuffles blocks of values.

Plans show rows, so the functions contain locations and credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pyspark.sql import SparkSession

from icechunk_format.groups.changing import TaskReceipt
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import own_options
from icechunk_format.options.location import location_of
from icechunk_format.options.values import parse_byte_size
from icechunk_format.workflows.rechunking import RechunkRequest, RechunkResult, rechunk_arrays
from icechunk_format.workflows.rechunking.run import (
    Rechunking,
    copy_group,
    cut_again,
    cut_group,
    write_groups,
)
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.pieces import shuffled
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import session_change, workflow_target
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import in_commit, totalled


@checked_call("rechunk")
def rechunk(
    spark: SparkSession,
    path: str,
    *,
    chunks: Mapping[str, int] | Literal["auto"],
    to: str | None = None,
    to_group: str | None = None,
    to_branch: str | None = None,
    to_options: Mapping[str, str] | None = None,
    shards: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    variables: Sequence[str] | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
    memory: str | int = "512m",
    dry_run: bool = False,
    group: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: Any = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    create_branch: bool = False,
    on_conflict: Literal["rebase", "fail"] = "rebase",
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    **options: Any,
) -> RechunkResult:
    """Store arrays in other chunks, bit for bit, in one commit.

    For example, a time series at a point, which requires a chunk of every map if each chunk holds
    one map, can be read in one request afterwards. Without ``to`` and ``to_group``, the arrays of
    the group are replaced, and older snapshots keep the old chunks. Attributes, dimension names,
    data types and fill values do not change. Chunks that contain only fill values are not stored.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    chunks
        Elements of a chunk by dimension; -1 is the whole dimension, and other dimensions keep their
        chunks. ``"auto"`` chooses chunks of at most 100 MB, or of 1 MB in shards. Each coordinate
        of a dimension becomes one chunk.
    to, to_group, to_branch
        Repository, group and branch of the new arrays; by default those of the source. A repository
        that does not exist is created. In another repository or group, all arrays of the group are
        stored, and none of them may exist there.
    to_options
        Options ``storage.*`` of the repository `to`; by default those of the source.
    shards
        Elements of a shard by dimension, rounded up to chunks; by default no shards.
    encoding
        Codecs of chunks by variable, as JSON of Zarr v3: ``{"t2m": {"codecs": [...]}}``.
    variables
        Names of arrays; by default all with a dimension of `chunks`.
    sel, isel
        With `to` or `to_group`, the region to store, by labels or positions as in reading: one
        range along each dimension, without a step. A single value gives a dimension of length 1.
    memory
        Maximum bytes of decoded values in a task, such as ``"512m"``. A Python worker needs about
        three times as much.
    dry_run
        If True, only the plan is returned; nothing is stored.
    group, branch, tag, snapshot, as_of
        Group and snapshot to read, as in reading.
    message, metadata, create_branch, on_conflict, txn_app_id, txn_version
        Options of the commit, as in writing.
    **options
        ``storage_*`` and ``virtual_*``, as in reading. Virtual chunks become chunks of the
        repository.

    Returns
    -------
    RechunkResult
        Numbers of tasks, bytes and shuffled blocks; ``commit`` is the result of the write.

    Raises
    ------
    ConflictError
        Other writers changed the same arrays meanwhile; nothing was committed. If they only
        appended, the whole job runs again with the new data, unless ``on_conflict="fail"``.
    InvalidInputError
        A size, name or option cannot be used.
    AlreadyExistsError
        An array already exists at the path of a new one.
    UnsupportedError
        A codec does not support encoding.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.rechunk(  # doctest: +SKIP
    ...     spark, "s3://bucket/era5", chunks={"time": -1, "latitude": 20, "longitude": 20}
    ... )
    """
    given = own_options("rechunk", locals())
    read, commit = session_change(spark, path, given, "rechunk")
    target = location_of(read) if to is None else workflow_target(spark, to, to_options, options)
    work = RechunkRequest(
        read=read,
        target=target,
        options=replace(
            commit,
            branch=to_branch or (read.branch if to is None else None) or "main",
            group=to_group if to_group is not None else read.group,
        ),
        chunks=chunks,
        shards=shards,
        encoding=encoding or {},
        memory=parse_byte_size("memory", str(memory)),
    )
    with totalled() as totals, raised_in_jobs(f"rechunking into {target}"):
        done = rechunk_arrays(
            work, partial(_on_spark, spark), cores=cores_of(spark), dry_run=dry_run
        )
    return in_commit(done, totals)


def _on_spark(spark: SparkSession, work: Rechunking) -> Iterable[TaskReceipt]:
    """Run all tasks: one job for direct arrays, and one for each array with a shuffle."""
    direct = [
        (path, number)
        for path, plan in work.arrays.items()
        if plan.kind == "direct"
        for number in range(len(plan.groups))
    ]
    receipts: list[TaskReceipt] = on_executors(spark, partial(copy_group, work), direct)
    for path, plan in work.arrays.items():
        if plan.kind == "shuffled":
            middle = plan.middle
            receipts += shuffled(
                spark,
                [(path, number) for number in range(len(plan.source))],
                partial(cut_group, work),
                len(plan.groups),
                partial(write_groups, work, path),
                middle=None if middle is None else (len(middle), partial(cut_again, work, path)),
            )
    return receipts
