"""Implements ``icechunk_spark.mirror``: the driver plans and commits, executors write files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import given_options
from icechunk_format.options.parse import collect_options, parse_read_options
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    MirrorResult,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.mirroring.record import REMEMBERED
from icechunk_spark.jobs.errors import errors_on_one_line, raised_in_jobs
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import with_session_options
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import totalled, with_totals

# Starting a task takes a third of the time of a small file, so a task writes several files, but few
# enough that a repeated task is cheap.
_TASKS_OF_A_CORE: Final = 2
_FILES_OF_A_TASK: Final = 8
_AFTER_FAILURE: Final = (
    "The table did not change, and the same call can be repeated; the next vacuum deletes files"
    " that are not in any table version"
)


@checked_call("mirror")
def mirror(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    branch: str = "main",
    target_options: Mapping[str, str] | None = None,
    every_snapshot: bool = False,
    full: bool = False,
    dry_run: bool = False,
    **options: Any,
) -> MirrorResult:
    """Update a Delta table of Parquet files to the newest snapshot of a branch.

    The first run copies a group; later runs write only files whose cells have changed. Each run
    creates one table version and records its snapshot, so that every table version holds one
    complete snapshot. A run without a new snapshot does nothing. Other engines can read the table.

    Parameters
    ----------
    spark
        A classic or Spark Connect session. Executors also need the package ``deltalake``.
    path
        Root of the repository.
    target
        Local path or URL of the table. It is created if it does not exist.
    branch
        The branch to follow. The table records it.
    target_options
        Options of the target's storage, like ``storage_options`` of deltalake: ``{"AWS_REGION":
        "us-west-2"}``. They are used only for the target, and never recorded.
    every_snapshot
        If True, each snapshot since the last run becomes one table version, oldest first. The first
        run copies only the newest snapshot. A snapshot without a variable that ``variables`` lists
        is skipped with a warning.
    full
        If True, all cells are written, even if the table is a copy of another group; older table
        versions stay readable until a vacuum.
    dry_run
        If True, only the files and bytes that the next table version would add and remove are
        counted; nothing is written. All snapshots since the last run count as one table version.
    **options
        Options of reading: ``group``, ``variables``, ``coords``, ``decodeCf``, ``timestampType``,
        ``where``, ``sel``, ``sel.method``, ``isel`` and ``missingChunks`` select the cells, and
        ``rowsPerPartition`` is the approximate number of rows of a file. The table records them:
        later runs may omit them, and different values are refused. Options of storage and virtual
        chunks (``storage.*``, ``virtual.*``) and ``readAheadBytes`` are not recorded.

    Returns
    -------
    MirrorResult
        ``version`` of the table, ``snapshot_id``, ``files_added``, ``files_removed``, ``rows`` and
        ``bytes`` that were written, ``bytes_removed``, and ``full_copy``, the reason for writing
        all cells, or None. Of a dry run, ``bytes`` is an estimate.

    Raises
    ------
    InvalidInputError
        The table is a copy of another group, or an option cannot be used.
    AlreadyExistsError
        The target is not empty and is not a copy.
    ConflictError
        The branch was reset to before the copied snapshot, or another program changed the table.
    UnsupportedError
        A column cannot be in a Delta table, or ``deltalake`` is not installed.
    NotFoundError
        The repository, branch, group or a variable does not exist.
    StorageError
        A request to a storage failed; the table did not change.

    Notes
    -----
    For each running task, an executor holds about a million rows, the upload buffers of one file,
    and the chunks that are read ahead. The driver holds a record for each file.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.mirror(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", "s3://lake/weather", variables=["t2m"]
    ... )
    """
    strings = given_options(path, with_session_options(spark, options, path, "mirror"))
    parsed = parse_read_options(strings, "mirror")
    given = collect_options(strings, "mirror")
    with errors_on_one_line():
        request = MirrorRequest(
            read=parsed,
            target=DeltaTarget.of(target, target_options),
            selection=Selection.of({name: given[name] for name in REMEMBERED if name in given}),
            branch=branch,
            every_snapshot=every_snapshot and not dry_run,
            dry_run=dry_run,
            full=full,
        )

        def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
            parts = max(cores_of(spark) * _TASKS_OF_A_CORE, -(-len(tasks) // _FILES_OF_A_TASK))
            with raised_in_jobs(f"copying {request.location} to {request.target}", _AFTER_FAILURE):
                return on_executors(spark, function, tasks, parts)

        with totalled() as totals:
            done = bring_up_to_date(request, run)
        return with_totals(done, totals)
