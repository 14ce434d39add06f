"""Verifies a repository in one Spark job, for repositories that are too large for one process.

How the work is divided
-----------------------
The driver reads ``repo`` (in spec version 1, the refs and the chain of snapshots) and the names
below ``snapshots/``, ``transactions/`` and ``overwritten/``. Executors read the snapshots and list
the manifests that these use; rows are grouped by manifest, and each manifest is read once. Its
references are joined with a listing of ``chunks/``, which tasks make by the first character of the
ids. Findings are in the same rows as the tasks, so that one job suffices.

Rules of this file
------------------
1. The driver holds no ids except those in ``repo``. It receives findings, which a task has merged
   to at most ``max_findings`` of each severity.
2. Rows contain no credentials. The checks themselves are in
   ``icechunk_format.maintenance.verifying.parts``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icechunk_format.maintenance.verifying import parts
from icechunk_format.maintenance.verifying.findings import (
    DEFAULT_MAX_FINDINGS,
    FINDINGS_SCHEMA,
    REPORT_SCHEMA,
    Report,
)
from icechunk_format.maintenance.verifying.verify import finish_verify, plan_verify
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.location import access_of, location_of
from icechunk_format.storage.measures import Measures
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of, log_totals
from icechunk_spark.jobs.session_options import session_read
from icechunk_spark.jobs.task_rows import (
    MAX_PARTITIONS,
    Step,
    over_rows,
    over_tasks,
    with_counts,
    work_rows,
)
from icechunk_spark.schema import spark_struct

_WAVES: Final = 4
_JOINED: Final = pa.schema([*parts.WORK_SCHEMA, *parts.LISTING_SCHEMA])
_AFTER_FAILURE: Final = "Nothing was changed; verify again"


@checked_call("verify")
def verify(
    spark: SparkSession,
    path: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    deep: bool = False,
    max_findings: int = DEFAULT_MAX_FINDINGS,
    **options: Any,
) -> DataFrame:
    """Check every file, reference and chunk object of a repository, with Spark.

    The job runs in this call. The rows are those of ``icechunk_format.maintenance.verify``.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    branch, tag, snapshot, deep, max_findings
        As in ``icechunk_format.maintenance.verify``.
    **options
        ``storage.*`` options, as in ``spark.read.option``, ``virtual.authorize`` and
        ``virtual.storage.*``: with ``**{"virtual.authorize": "s3://archive/"}``, the files of
        virtual chunks are also checked.

    Returns
    -------
    DataFrame
        At most ``max_findings`` rows, errors first: ``severity``, ``kind``, ``object_key``,
        ``snapshot_id``, ``node_path``, ``chunk``, ``problem``, ``advice``.

    Raises
    ------
    IcechunkError
        The repository, branch, tag or snapshot does not exist, or the storage does not respond.

    Examples
    --------
    >>> found = verify(spark, "s3://bucket/weather")  # doctest: +SKIP
    >>> found.where("severity = 'error'").show(truncate=False)  # doctest: +SKIP
    """
    request = session_read(spark, path, options, "verify")
    location = location_of(request)
    plan = plan_verify(
        location,
        branch=branch,
        tag=tag,
        snapshot=snapshot,
        deep=deep,
        max_findings=max_findings,
        authorized=request.virtual_authorize,
        virtual_options=access_of(request).options,
    )
    context = plan.context
    partitions = min(_WAVES * cores_of(spark), MAX_PARTITIONS)
    tasks = work_rows(spark, parts.verify_tasks(plan.state, partitions), partitions)
    work = tasks.mapInArrow(
        _counted(over_tasks(partial(parts.run_verify, context))), spark_struct(parts.WORK_SCHEMA)
    )
    work = work.repartition(partitions, "id").sortWithinPartitions("id")
    work = work.mapInArrow(
        _counted(over_rows(partial(parts.check_manifest_rows, context), parts.WORK_SCHEMA)),
        spark_struct(parts.WORK_SCHEMA),
    )
    prefixes = work_rows(spark, parts.id_prefixes(), partitions)
    listing = prefixes.mapInArrow(
        over_tasks(partial(parts.list_chunk_objects, context)), spark_struct(parts.LISTING_SCHEMA)
    )
    joined = work.join(listing, F.col("id") == F.col("listed_id"), "full_outer")
    found = joined.mapInArrow(
        over_rows(partial(parts.check_joined_rows, context), _JOINED), spark_struct(REPORT_SCHEMA)
    )
    found = found.repartition(1)
    found = found.mapInArrow(
        over_rows(partial(parts.merge_reports, context), REPORT_SCHEMA), spark_struct(REPORT_SCHEMA)
    )
    with raised_in_jobs(f"verifying {location}", _AFTER_FAILURE):
        plan.report.absorb(row.asDict() for row in cancellable(found, found.collect))
        log_totals(plan.report.measures)
    return spark.createDataFrame(finish_verify(plan), schema=spark_struct(FINDINGS_SCHEMA))


def _counted(step: Step) -> Step:
    """Return a step that also yields the counts of its tasks, as totals of a report."""

    def row_of(counts: Measures) -> pa.RecordBatch:
        report = Report()
        report.count_task(counts)
        return parts.as_work(report)

    return with_counts(step, row_of)
