"""Rewrites manifests on executors: a task makes about one manifest, one commit publishes all.

Rules of this file
------------------
1. Only manifests in the receipts that Spark returns are committed. Those of lost or speculative
   attempts have other ids, which no commit references.
2. The driver holds lists of manifests, never references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from icechunk_format.maintenance import RewriteResult
from icechunk_format.maintenance.rewriting import rewrite as one_process
from icechunk_format.maintenance.rewriting.boxes import run_rewrite
from icechunk_format.options.arguments import checked_call
from icechunk_format.repository.files import MAX_REFS_PER_MANIFEST
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import session_location
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import totalled, with_totals

# Minimum number of references of a task.
_LEAST_REFS_PER_TASK: Final = 50_000
_WAVES: Final = 2


@checked_call("maintenance")
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
    """Rewrite the manifests that do not comply with the splitting rules, in one commit, with Spark.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    branch, splitting, paths, message, metadata, amend, dry_run
        As in ``icechunk_format.maintenance.rewrite_manifests``, which has the same result and
        errors.
    **options
        ``storage.*`` options, as in ``spark.read.option``.

    Returns
    -------
    RewriteResult
        The numbers of manifests before and after, arrays that were left out, and the commit.

    Raises
    ------
    IcechunkError
        The repository, branch or an array does not exist, or a manifest is missing or damaged;
        nothing was committed.

    Notes
    -----
    For each running task, an executor holds the references of one new manifest, at most about a
    million, and those of its sources. The driver holds the lists of manifests.

    Examples
    --------
    >>> rewrite_manifests(spark, "s3://bucket/weather", message="Tidy up")  # doctest: +SKIP
    """
    location = session_location(spark, path, options)
    plan = one_process.plan_rewrite(location, branch=branch, splitting=splitting, paths=paths)
    if dry_run:
        return one_process.expected_result(plan)
    one_process.check_commit(plan, metadata)
    share = plan.references // (_WAVES * cores_of(spark))
    if share < MAX_REFS_PER_MANIFEST:
        plan = one_process.regrouped(plan, max(share, _LEAST_REFS_PER_TASK))
    with totalled() as totals, raised_in_jobs(f"rewriting manifests of {location}"):
        receipts = on_executors(spark, partial(run_rewrite, plan.context), plan.tasks)
    done = one_process.finish_rewrite(
        plan, receipts, message=message, metadata=metadata, amend=amend
    )
    return with_totals(done, totals)
