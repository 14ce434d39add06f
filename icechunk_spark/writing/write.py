"""Implements ``icechunk_spark.write``, and ``df.write`` of a registered session.

Rules of this file
------------------
1. Every call is passed on to Spark's writer unchanged, except `save` with ``format("icechunk")``.
2. Partitions, buckets and catalog tables do not apply to arrays. They are refused with a hint at
   the option that was probably intended.
3. The import is cheap, because `icechunk_spark` imports this module: the first write imports Arrow
   and the layer of tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import (
    Names,
    Sizes,
    given_options,
    option_strings,
    own_options,
)
from icechunk_format.options.write_request import parse_mode, parse_write_options
from icechunk_spark.jobs.session_options import NotedWrite, catalog_refused, with_session_options

if TYPE_CHECKING:
    from icechunk_format.groups.changing import WriteResult


@checked_call("write", "dry_run")
def write(
    df: DataFrame,
    path: str,
    *,
    mode: str = "errorifexists",
    dry_run: bool = False,
    branch: str | None = None,
    storage_client: Literal["auto", "obstore", "fsspec"] | None = None,
    credentials: str | None = None,
    virtual_authorize: Names | None = None,
    virtual_credentials: str | None = None,
    layout: Literal["cells", "chunks", "refs"] | None = None,
    group: str | None = None,
    decoded: bool | None = None,
    dims: Names | None = None,
    chunks: Sizes | None = None,
    shards: Sizes | None = None,
    order: Mapping[str, str] | str | None = None,
    encoding: Mapping[str, Any] | str | None = None,
    create_branch: bool | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | str | None = None,
    on_conflict: Literal["rebase", "fail"] | None = None,
    resolve: Literal["ours", "theirs"] | None = None,
    merge_schema: bool | None = None,
    replace_where: str | None = None,
    min_density: float | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    spec_version: int | None = None,
    distribution: Literal["hash", "none"] | None = None,
    compute_once: Literal["auto", "true", "false"] | bool | None = None,
    **options: Any,
) -> WriteResult:
    """Write a DataFrame to an Icechunk repository, in one commit.

    Parameters
    ----------
    df
        A DataFrame with one row per cell (or per chunk, or per chunk reference, depending on
        ``layout``). Its rows are read twice: once for their coordinates, and once to write them
        (see ``compute_once``).
    path
        Root of the repository; it is created if it does not exist.
    mode
        ``append`` writes cells at their coordinates, ``overwrite`` replaces the arrays of the
        group, ``errorifexists`` (default) raises an error and ``ignore`` does nothing if the group
        has arrays.
    dry_run
        If True, options, columns and coordinates are checked, and the result has the rows, the
        chunks and the message of the commit; nothing is stored. Errors that only tasks detect, such
        as two rows for one cell, are not reported.
    **options
        The options of the page "Options" of the manual, which ``help()`` lists.
        Settings of the repository's storage, such as ``storage_region="us-west-2"``, settings of
        the storage of virtual chunks (``virtual_storage_region``), and the options above in other
        spellings (``txnAppId``). Values may be Python objects: ``chunks={"time": 24}``,
        ``dims=["time", "latitude"]``. None leaves an option unset.

    Returns
    -------
    WriteResult
        The snapshot, and the counts of stored rows and chunks; ``is_skipped`` is True if there was
        nothing to do.

    Raises
    ------
    IcechunkError
        The options, columns or rows cannot be written; nothing was committed.
    CommitOutcomeUnknownError
        The storage did not report whether the commit succeeded.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.write(  # doctest: +SKIP
    ...     df, "s3://bucket/weather", mode="append", message="Add 2 July", branch="audit"
    ... )
    """
    given = with_session_options(_session_of(df), own_options("write", locals()), path, "write")
    request = parse_write_options(given_options(path, given), mode=parse_mode(mode))
    _check_frame(df)
    # Heavy (Arrow, NumPy, the layer of tables): see rule 3.
    from icechunk_spark.writing.planned import run_planned_write

    return run_planned_write(df, request, dry_run=dry_run)


def _session_of(df: object) -> SparkSession | None:
    return df.sparkSession if isinstance(df, DataFrame) else None


def _check_frame(df: object) -> None:
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__qualname__}"
        raise InvalidInputError(
            f"df must be a Spark DataFrame, but is a {kind}: create one from its rows with"
            " spark.createDataFrame, with a column for each dimension",
            argument="df",
            found=kind,
        )


class PlannedSave(NotedWrite):
    """Mixin for Spark's `DataFrameWriter`, classic or Connect, that plans writes to icechunk."""

    _icechunk_mode: str | None = None

    def mode(self, saveMode: str | None) -> Any:
        """Record the save mode, and pass it to Spark."""
        if saveMode is not None:
            self._icechunk_mode = saveMode
        return super().mode(saveMode)  # type: ignore[misc]

    def bucketBy(self, numBuckets: int, col: Any, *cols: Any) -> Any:
        """Record that buckets were requested, and pass them to Spark."""
        self._icechunk_refused = "bucketBy"
        return super().bucketBy(numBuckets, col, *cols)  # type: ignore[misc]

    def sortBy(self, col: Any, *cols: Any) -> Any:
        """Record that sorted buckets were requested, and pass them to Spark."""
        self._icechunk_refused = "sortBy"
        return super().sortBy(col, *cols)  # type: ignore[misc]

    def clusterBy(self, *columns: Any) -> Any:
        """Record that clustering was requested, and pass it to Spark."""
        self._icechunk_refused = "clusterBy"
        return super().clusterBy(*columns)  # type: ignore[misc]

    def save(
        self,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        """Save the DataFrame: planned for icechunk, by Spark for other formats."""
        if not self._is_ours(format):
            super().save(path, format, mode, partitionBy, **options)  # type: ignore[misc]
            return
        self._note(options)
        chosen = parse_mode(mode if mode is not None else self._icechunk_mode)
        strings = self._icechunk_strings(path, partitionBy)
        given = with_session_options(self._icechunk_frame.sparkSession, strings, path, "write")
        request = parse_write_options(option_strings(given), mode=chosen)
        # Heavy (Arrow, NumPy, the layer of tables): see rule 3.
        from icechunk_spark.writing.planned import run_planned_write

        run_planned_write(self._icechunk_frame, request)

    def saveAsTable(
        self,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        """Save as a catalog table, by Spark; refused for icechunk."""
        if self._is_ours(format):
            raise catalog_refused("saveAsTable")
        super().saveAsTable(name, format, mode, partitionBy, **options)  # type: ignore[misc]

    def insertInto(self, tableName: str, overwrite: bool | None = None) -> None:
        """Insert into a table or view, by Spark; refused for icechunk."""
        if self._is_ours():
            raise catalog_refused("insertInto")
        super().insertInto(tableName, overwrite)  # type: ignore[misc]
