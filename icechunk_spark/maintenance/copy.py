"""Copies the history of a branch or tag to another repository; executors transfer the chunks.

Jobs
----
1. Tasks copy manifests, and return the ids of the chunks in them, grouped into parts (ids that
   begin with the same one or two characters).
2. One task receives all chunks of a part, lists those that the target has, and copies the others.
3. The driver stores snapshots and transaction logs, and moves the target's branch.

Rules of this file
------------------
1. The driver holds lists of manifests, but never a set of chunks.
2. A task may run twice: an id always has the same bytes, so both attempts store the same objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from icechunk_format.maintenance import CopyResult
from icechunk_format.maintenance.copying.copy import finish_copy, planned_result
from icechunk_format.maintenance.copying.objects import (
    Copied,
    CopyContext,
    chunks_by_part,
    copy_manifests,
    copy_part,
)
from icechunk_format.maintenance.copying.plan import plan_copy
from icechunk_format.maintenance.copying.publish import hold_copy
from icechunk_format.maintenance.garbage.parts import part_count
from icechunk_format.options.arguments import checked_call
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import session_location
from icechunk_spark.jobs.task_rows import (
    COUNTS,
    batches_of,
    collected,
    counted,
    grouped_rows,
    noted,
    over_tasks,
    rows_of,
    work_rows,
)
from icechunk_spark.jobs.totals import totalled, with_totals
from icechunk_spark.schema import spark_struct

_FOUND: Final = pa.schema(
    [pa.field("part", pa.int64()), pa.field("chunks", pa.binary()), pa.field("copied", pa.binary())]
)
# Maximum number of chunks of a part. A task holds several copies of 20 bytes for each chunk.
_CHUNKS_PER_PART: Final = 2_000_000
_WAVES: Final = 4


@checked_call("maintenance")
def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    target_branch: str | None = None,
    history: bool = True,
    dry_run: bool = False,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> CopyResult:
    """Copy the history of a branch or a tag to another repository, with Spark.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    source, target
        Roots of the repositories.
    branch, tag, target_branch, history, dry_run
        As in ``icechunk_format.maintenance.copy``, which has the same result and errors.
    source_options, target_options
        ``storage.*`` options of the source or the target.
    **options
        ``storage.*`` options of both repositories.

    Returns
    -------
    CopyResult
        The numbers of copied snapshots, manifests, chunks and bytes.

    Raises
    ------
    IcechunkError
        A repository or branch does not exist, the target's branch has its own commits, or a file is
        missing or damaged; the target's branch did not move.

    Notes
    -----
    For each running task, an executor holds 64 MiB or four of the largest chunks, and about 60
    bytes for each chunk of a part. A part has 1/32 or 1/1024 of all chunks.

    Examples
    --------
    >>> copy(spark, "s3://bucket/weather", "gs://archive/weather").chunks  # doctest: +SKIP
    """
    plan = plan_copy(
        session_location(spark, source, {**options, **(source_options or {})}),
        session_location(spark, target, {**options, **(target_options or {})}),
        branch=branch,
        tag=tag,
        target_branch=target_branch,
        history=history,
    )
    if dry_run:
        return planned_result(plan)
    if not plan.manifests:
        return finish_copy(plan, Copied(), Copied())
    depth = 1 if plan.references <= _CHUNKS_PER_PART * part_count(1) else 2
    with (
        totalled() as totals,
        raised_in_jobs(
            f"copying {plan.context.source} to {plan.context.target}",
            "The copy is not yet visible in the target; copy again to continue it",
        ),
    ):
        step = over_tasks(partial(_copy_manifests, plan.context, depth))
        copy_task = counted(step, _FOUND, "copied")
        found = work_rows(spark, plan.manifests).mapInArrow(copy_task, spark_struct(_FOUND))
        found = found.persist()
        try:
            counts = found.where(F.col("part") == COUNTS).select("copied")
            done = cancellable(counts, counts.collect)
            manifests = sum(noted(row["copied"] for row in done), Copied())
            hold_copy(plan)
            tasks = min(part_count(depth), _WAVES * cores_of(spark))
            chunks = grouped_rows(found.where(F.col("part") != COUNTS), "part", tasks)
            copied = collected(chunks, partial(_copy_chunks, plan.context, depth))
        finally:
            found.unpersist()
    return with_totals(finish_copy(plan, manifests, sum(copied, Copied())), totals)


def _copy_manifests(
    context: CopyContext, depth: int, listed: NDArray[np.void]
) -> Iterator[pa.RecordBatch]:
    copied, rows = copy_manifests(context, listed)
    found = ((part, chunks, None) for part, chunks in chunks_by_part(rows, depth))
    yield from batches_of([*found, (COUNTS, None, pickle.dumps(copied))], _FOUND)


def _copy_chunks(
    context: CopyContext, depth: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[Copied]:
    for part, rows in groupby(rows_of(batches), key=itemgetter(0)):
        yield copy_part(context, (chunks for _, chunks, _ in rows), part, depth)
