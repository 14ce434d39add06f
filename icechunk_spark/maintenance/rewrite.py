"""Rewrites manifests on executors: each task makes about one, and one commit publishes all.

Rules of this file
------------------
1. Only manifests in the receipts that Spark returns are committed. Those of a lost or speculative
   attempt have ids of their own, which no commit mentions.
2. The driver holds lists of manifests, never references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from icechunk_format.maintenance import RewriteResult
from icechunk_format.maintenance.rewriting import rewrite as one_process
from icechunk_format.maintenance.rewriting.task import run_rewrite
from icechunk_format.options.location import maintenance_location
from icechunk_format.repository.files.manifest_files import MAX_REFS_PER_MANIFEST
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.partitions import cores_of
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import totalled, with_totals

# Fewer references than this are not worth a task.
_LEAST_REFS_PER_TASK: Final = 50_000
_WAVES: Final = 2


def rewrite_manifests(
    spark: SparkSession,
    path: str,
    *,
    branch: str = "main",
    splitting: one_process.Splitting | None = None,
    paths: Sequence[str] | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    amend: bool = False,
    dry_run: bool = False,
    **options: Any,
) -> RewriteResult:
    """Rewrite the manifests that do not fit the splitting rules, in one version, with Spark.

    Parameters
    ----------
    spark
        The session; classic or Connect.
    path
        Root of the repository.
    branch, splitting, paths, message, metadata, amend, dry_run
        As for ``icechunk_format.maintenance.rewrite_manifests``, whose result and errors this
        function has.
    **options
        ``storage.*`` options, as in ``spark.read.option``.

    Notes
    -----
    Memory on an executor, for each task that runs: the references of one new manifest, at most
    about a million, and of its sources. On the driver: the lists of manifests.
    """
    location = maintenance_location(path, options)
    plan = one_process.plan_rewrite(location, branch=branch, splitting=splitting, paths=paths)
    if dry_run:
        return one_process.expected_result(plan)
    one_process.check_commit(plan, metadata)
    share = plan.references // (_WAVES * cores_of(spark))
    if share < MAX_REFS_PER_MANIFEST:
        plan = one_process.regrouped(plan, max(share, _LEAST_REFS_PER_TASK))
    with (
        totalled() as totals,
        raised_in_jobs(
            f"rewriting manifests of {location}",
            "Nothing was committed; rewriting again starts afresh",
        ),
    ):
        receipts = on_executors(spark, partial(run_rewrite, plan.context), plan.tasks)
    done = one_process.finish_rewrite(
        plan, receipts, message=message, metadata=metadata, amend=amend
    )
    return with_totals(done, totals)
