"""Implements ``icechunk_spark.mirror``: plans and commits here, writes files on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.parse import collect_options
from icechunk_format.options.path import repository_path
from icechunk_format.options.python_values import option_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.workflows.mirroring.mirror import MirrorResult
    from icechunk_format.workflows.mirroring.parquet import FileContext, FileTask

# Options that are no part of what is copied.
_AUTHORIZE: Final = "virtual.authorize"
_AHEAD: Final = "readAheadBytes"
_OF_PLACES: Final = ("storage.*", "storage.client", "virtual.storage.*", _AUTHORIZE, _AHEAD)
_VERSIONS: Final = ("branch", "tag", "snapshot", "asOf")
# Starting a task costs a third of a small file, so a task writes several; few are lost with it.
_TASKS_OF_A_CORE: Final = 2
_FILES_OF_A_TASK: Final = 8
_AFTER_FAILURE: Final = (
    "The table is as it was, and mirroring again starts anew; files that no version has go with the"
    " next vacuum"
)


def mirror(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    branch: str = "main",
    target_options: Mapping[str, str] | None = None,
    every_snapshot: bool = False,
    full: bool = False,
    **options: Any,
) -> MirrorResult:
    """Bring a Delta table of Parquet files to the newest snapshot of a branch.

    The first run copies a group; later ones write what changed since. Each run makes one version
    of the table, with the id of its snapshot, so that the table always stands at a whole snapshot.
    A run that finds nothing new does nothing. Other engines read the table as any Delta table.

    Parameters
    ----------
    spark
        The session; classic or Connect. Executors need the package ``deltalake``, too.
    path
        Root of the repository.
    target
        Local path or URL of the table. It is created where it does not exist.
    branch
        The branch to follow. The table remembers it.
    target_options
        Settings of the target's store, in the words of deltalake's ``storage_options``:
        ``{"AWS_REGION": "us-west-2"}``. They are used for the target alone, and never stored.
    every_snapshot
        Give each snapshot since the last run a version of its own, oldest first, rather than one
        to all of them. The first run copies the newest snapshot alone. A snapshot whose table
        cannot be copied, since it lacks a named variable, has no version, and a warning names it.
    full
        Write all cells anew, also where the table holds a copy of something else; older versions
        stay readable until a vacuum.
    **options
        Of reading: ``group``, ``variables``, ``coords``, ``decodeCf``, ``timestampType``,
        ``where``, ``sel``, ``sel.method``, ``isel`` and ``missingChunks`` say what is copied, and
        ``rowsPerPartition`` how many rows a file has, about. The table remembers them: later runs
        may leave them out, and are refused with others. Settings of the repository's store and of
        virtual chunks (``storage.*``, ``virtual.*``) and ``readAheadBytes`` are not remembered.

    Returns
    -------
    MirrorResult
        ``version`` of the table, ``snapshot_id``, ``files_added``, ``files_removed``, ``rows`` and
        ``bytes`` that were written, and ``full_copy``: why all cells were written, or None.

    Raises
    ------
    InvalidInputError
        The table is a copy of something else, or an option cannot be used.
    AlreadyExistsError
        The target holds something that is no copy.
    ConflictError
        The branch was reset behind the copy, or another program changed the table.
    UnsupportedError
        A column cannot be in a Delta table, or ``deltalake`` is not installed.
    NotFoundError
        The repository, branch, group or a variable does not exist.
    StorageError
        A store failed; the table is as it was.

    Notes
    -----
    Memory on an executor, for each task that runs: about a million rows, one file of the store's
    upload buffers, and what reading holds ahead. On the driver: a record for each file.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.mirror(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", "s3://lake/weather", variables=["t2m"]
    ... )
    """
    # Arrow and the dataset layer are imported by the first call, since `icechunk_spark` imports
    # this module.
    from icechunk_format.storage.location import Location
    from icechunk_format.workflows.mirroring.mirror import MirrorRequest
    from icechunk_format.workflows.mirroring.mirror import mirror as bring_up_to_date
    from icechunk_format.workflows.mirroring.selection import Selection
    from icechunk_format.workflows.mirroring.target import DeltaTarget
    from icechunk_spark.jobs.errors import errors_on_one_line

    given = collect_options(option_texts(options), use="read")
    for name in _VERSIONS:
        if name in given:
            raise InvalidInputError(
                f"option '{name}' means nothing for a copy, which follows a branch: give the"
                " argument branch, and read an older copied version with"
                " icechunk_spark.mirrored",
                option=name,
            )
    root = repository_path(path)
    if given.get("layout", "cells") != "cells":
        raise InvalidInputError(
            f"layout={given['layout']} cannot be copied: a copy has cells", option="layout"
        )
    kept = {n: v for n, v in given.items() if n not in (*_OF_PLACES, "layout")}
    with errors_on_one_line():
        request = MirrorRequest(
            location=Location(
                root,
                client=given.get("storage.client", "auto"),
                options=given.get("storage.*", {}),
            ),
            target=DeltaTarget.of(target, target_options),
            selection=Selection.of(kept),
            branch=branch,
            every_snapshot=every_snapshot,
            full=full,
            authorize=given.get(_AUTHORIZE, ()),
            virtual_options=given.get("virtual.storage.*"),
            **({"read_ahead_bytes": given[_AHEAD]} if _AHEAD in given else {}),
        )
        return bring_up_to_date(request, partial(_on_executors, spark))


def _on_executors(
    spark: SparkSession, context: FileContext, pieces: Sequence[FileTask]
) -> pa.Table:
    """Write all files with Spark; return their rows."""
    import pyarrow as pa

    from icechunk_format.workflows.mirroring.parquet import ADDED, write_file
    from icechunk_spark.jobs.errors import raised_in_jobs
    from icechunk_spark.jobs.partitions import cores_of
    from icechunk_spark.jobs.task_rows import answers_of

    with raised_in_jobs(f"copying {context.scan.location} to {context.target}", _AFTER_FAILURE):
        tasks = max(cores_of(spark) * _TASKS_OF_A_CORE, -(-len(pieces) // _FILES_OF_A_TASK))
        found = answers_of(spark, pieces, partial(write_file, context), tasks)
    return pa.Table.from_pylist(found, schema=ADDED)
