"""Implements ``icechunk_spark.reduce``: Spark runs the tasks and shuffles parts of statistics.

Plans show rows, so the functions contain locations and credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import SparkSession

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import own_options
from icechunk_format.options.values import parse_byte_size
from icechunk_format.workflows.reducing import (
    ReducedArrays,
    ReduceRequest,
    ReduceResult,
    check_xarray,
    dataset_of,
    reduce_arrays,
)
from icechunk_format.workflows.reducing.run import (
    ReduceReceipt,
    Reducing,
    combine_pieces,
    cut_strand,
    reduce_tile,
)
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.pieces import shuffled
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import session_change, workflow_target
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import in_commit, totalled

if TYPE_CHECKING:
    import xarray


@checked_call("reduce")
def reduce(
    spark: SparkSession,
    path: str,
    statistics: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    *,
    over: str | Sequence[str],
    by: str | int | Mapping[str, Any] | None = None,
    weights: Any = None,
    to: str | None,
    to_group: str | None = None,
    to_branch: str = "main",
    to_options: Mapping[str, str] | None = None,
    memory: str | int = "512m",
    follow: bool = False,
    dry_run: bool = False,
    mode: Literal["errorifexists", "overwrite"] = "errorifexists",
    skipna: bool | None = None,
    min_count: int | None = None,
    ddof: int = 0,
    keep_attrs: bool = True,
    variables: Sequence[str] | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
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
) -> ReduceResult | xarray.Dataset:
    """Reduce arrays along dimensions, by group, from whatever chunks there are, in one commit.

    For example, the mean map, a climatology of months, daily maxima, or the area-weighted series of
    the globe. Each task reads whole chunks once and holds sums, counts, moments and extremes; they
    are shuffled only where groups are spread over tasks. Names, data types and attributes are those
    of xarray.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    statistics
        Statistics by variable, as in ``{"t2m": ["mean", "std"], "tp": "sum"}``, or those of all
        variables of numbers. A variable with one statistic keeps its name; with a list, results
        have the name of the statistic as well: ``"t2m_mean"``. There are ``count``, ``sum``,
        ``mean``, ``min``, ``max``, ``std``, ``var``, ``prod``, ``any``, ``all``; along one
        dimension ``first``, ``last``, ``argmin``, ``argmax`` (positions), ``idxmin``, ``idxmax``
        (labels); and ``median`` and ``quantile(q=0.9)``, which need all values of a group in the
        memory of one task.
    over
        The dimensions that are reduced.
    by
        Groups along one of them: a part of times (``"time.month"``, ``"time.season"``,
        ``"time.dayofyear"``, ``"time.year"``, ...), a frequency (``"1D"``, ``"MS"``) as for
        resampling, the name of a coordinate, a number of elements, or edges of bins:
        ``{"latitude": [-90, -30, 30, 90]}``. The dimension of the groups takes the place of the
        reduced one, with the name that xarray gives it. Bins have their midpoints as labels, and
        bounds.
    weights
        ``"area"`` for the area of cells on the sphere, from the bounds of latitudes and longitudes
        or midway between labels; the name of a variable; or an ``xarray.DataArray``, aligned by
        labels. ``mean``, ``sum``, ``std`` and ``var`` are weighted.
    to, to_group, to_branch, to_options
        Repository, group and branch of the result, and ``storage.*`` options of `to` (by default
        those of `path`). A repository that does not exist is created. With ``to=None``, the call
        returns a small result (at most 256 MiB) as an ``xarray.Dataset``.
    memory
        Maximum bytes that a task holds, such as ``"512m"``. A Python worker needs about three times
        as much.
    follow
        If True, the result records the snapshot of its source and stores the parts of its
        statistics, in the group ``.parts`` below its own. The next run with the same arguments
        reads only elements that were appended, or the groups of elements that changed, and without
        changes nothing is committed. ``full_run`` is the reason why a run read everything. Each
        such result needs its own group.
    dry_run
        If True, only the plan is returned; nothing is stored.
    mode
        ``overwrite`` replaces arrays with the same names. Labels of arrays that the run does not
        replace must stay the same.
    skipna
        If False, a missing value makes the result missing. By default missing values are ignored.
    min_count
        Minimum number of values of a ``sum`` or ``prod`` that is not missing.
    ddof
        ``std`` and ``var`` divide by the number of values minus `ddof`.
    keep_attrs
        If False, results have no attributes.
    variables
        Variables, if `statistics` does not name them; by default all variables of numbers that have
        one of the dimensions.
    sel, isel
        The region to read, by labels or positions as in reading: one range along each dimension,
        without a step.
    group, branch, tag, snapshot, as_of
        Group and snapshot to read, as in reading.
    message, metadata, create_branch, on_conflict, txn_app_id, txn_version
        Options of the commit, as in writing.
    **options
        ``storage_*`` and ``virtual_*``, as in reading.

    Returns
    -------
    ReduceResult or xarray.Dataset
        Paths of the arrays, numbers of tasks and bytes; ``commit`` is the result of the write. A
        dry run has the dimensions and variables of the result as ``layout``.

    Raises
    ------
    InvalidInputError
        A statistic, dimension, group or weight does not exist or cannot be used.
    AlreadyExistsError
        The group of the result already has arrays.
    ConflictError
        Other writers changed the same arrays; nothing was committed.
    UnsupportedError
        xarray, which computes groups and makes datasets, is not installed.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.reduce(  # doctest: +SKIP
    ...     spark,
    ...     "s3://bucket/era5",
    ...     {"t2m": ["mean", "std"], "tp": "sum"},
    ...     over="time",
    ...     by="time.month",
    ...     to="s3://bucket/climatology",
    ... )
    >>> globe = icechunk_spark.reduce(  # doctest: +SKIP
    ...     spark,
    ...     "s3://bucket/era5",
    ...     {"t2m": "mean"},
    ...     over=("latitude", "longitude"),
    ...     weights="area",
    ...     to=None,
    ... )
    """
    given = own_options("reduce", locals())
    read, commit = session_change(spark, path, given, "reduce")
    target = None if to is None else workflow_target(spark, to, to_options, options)
    if target is None and not dry_run:
        check_xarray()
    work = ReduceRequest(
        read=read,
        statistics=statistics,
        over=(over,) if isinstance(over, str) else tuple(over),
        by=by,
        weights=weights,
        target=target,
        options=replace(commit, mode=mode, branch=to_branch, group=to_group),
        memory=parse_byte_size("memory", str(memory)),
        follow=follow,
        skipna=skipna,
        min_count=min_count,
        ddof=ddof,
        keep_attrs=keep_attrs,
    )
    what = "to the driver" if target is None else f"into {target}"
    with totalled() as totals, raised_in_jobs(f"reducing {what}"):
        done = reduce_arrays(
            work, partial(_on_spark, spark), cores=cores_of(spark), dry_run=dry_run
        )
    return dataset_of(done) if isinstance(done, ReducedArrays) else in_commit(done, totals)


def _on_spark(spark: SparkSession, work: Reducing) -> Iterable[ReduceReceipt]:
    """Run all tasks: one job for direct arrays, and one for each array with a shuffle."""
    direct = [
        (name, *read)
        for name, array in work.arrays.items()
        if array.plan.kind == "direct"
        for read in array.plan.reads
    ]
    receipts: list[ReduceReceipt] = on_executors(spark, partial(reduce_tile, work), direct)
    for name, array in work.arrays.items():
        if array.plan.kind == "shuffled":
            receipts += shuffled(
                spark,
                [(name, *read) for read in array.plan.reads],
                partial(cut_strand, work),
                len(array.plan.blocks),
                partial(combine_pieces, work, name),
            )
    return receipts
