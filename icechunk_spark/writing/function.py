"""Implements ``icechunk_spark.write``, and ``df.write`` of a registered session.

Rules of this file
------------------
1. Every call goes on to Spark's own writer unchanged, except `save` with ``format("icechunk")``.
2. Partitions, buckets and catalog tables mean nothing for arrays. They are refused with a hint at
   the option that was probably meant.
3. Importing it is cheap, because `icechunk_spark` imports it: Arrow and the dataset layer are
   imported by the first write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.keywords import given_options, with_option_help
from icechunk_format.options.python_values import Names, Sizes, option_texts
from icechunk_format.options.write_request import parse_mode, parse_write_options
from icechunk_spark.jobs.noted_options import NotedWrite, catalog_refused
from icechunk_spark.jobs.session_options import with_session_options

if TYPE_CHECKING:
    from icechunk_format.dataset.writing.result import WriteResult


@with_option_help("write")
def write(
    df: DataFrame,
    path: str,
    *,
    mode: str = "errorifexists",
    dry_run: bool = False,
    branch: str | None = None,
    storage_client: Literal["auto", "obstore", "fsspec"] | None = None,
    virtual_authorize: Names | None = None,
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
    """Write a DataFrame into an Icechunk repository, in one commit.

    Parameters
    ----------
    df
        One row per cell (or per chunk, or per chunk reference; see option ``layout``). It is
        read twice, for its coordinates and to be written: see ``compute_once``.
    path
        Root of the repository; it is created if it does not exist.
    mode
        ``append`` writes cells at their coordinates; ``overwrite`` makes the group's arrays
        exactly the DataFrame's; ``errorifexists`` (default) and ``ignore`` only create.
    dry_run
        Only plan the write: options, columns and coordinates are checked, and the result has the
        rows, the chunks and the message of the commit. Nothing is stored. Errors that only tasks
        find, such as two rows for one cell, are not found.
    each_option
        As on the page "Options" of the manual, and in ``help()``.
    **options
        Settings of the store, such as ``storage_region="us-west-2"``, of those that hold virtual
        chunks (``virtual_storage_region``), and the options above in other spellings
        (``txnAppId``). Values of all options may be Python's: ``chunks={"time": 24}``,
        ``dims=["time", "latitude"]``. None is as not given.

    Returns
    -------
    WriteResult
        The snapshot, and what was written; ``is_skipped`` where there was nothing to do.

    Raises
    ------
    IcechunkError
        The options, the columns or the rows cannot be written; nothing was committed then.
    CommitOutcomeUnknownError
        The store did not say whether the commit landed.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.write(  # doctest: +SKIP
    ...     df, "s3://bucket/weather", mode="append", message="Add 2 July", branch="audit"
    ... )
    """
    given = {
        "branch": branch,
        "storage_client": storage_client,
        "virtual_authorize": virtual_authorize,
        "layout": layout,
        "group": group,
        "decoded": decoded,
        "dims": dims,
        "chunks": chunks,
        "shards": shards,
        "order": order,
        "encoding": encoding,
        "create_branch": create_branch,
        "message": message,
        "metadata": metadata,
        "on_conflict": on_conflict,
        "resolve": resolve,
        "merge_schema": merge_schema,
        "replace_where": replace_where,
        "min_density": min_density,
        "txn_app_id": txn_app_id,
        "txn_version": txn_version,
        "spec_version": spec_version,
        "distribution": distribution,
        "compute_once": compute_once,
        **options,
    }
    given = with_session_options(getattr(df, "sparkSession", None), given)
    request = parse_write_options(given_options(path, given), mode=parse_mode(mode))
    _check_frame(df)
    # Heavy (Arrow, NumPy, the dataset layer): see rule 3.
    from icechunk_spark.writing.planned import run_planned_write

    return run_planned_write(df, request, dry_run=dry_run)


def _check_frame(df: object) -> None:
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__qualname__}"
        raise InvalidInputError(
            f"df must be a Spark DataFrame, but is a {kind}: make one of its rows with"
            " spark.createDataFrame, with a column for each dimension",
            argument="df",
            found=kind,
        )


class PlannedSave(NotedWrite):
    """Mixin for Spark's `DataFrameWriter`, classic or Connect, that plans writes to icechunk."""

    _icechunk_mode: str | None = None

    def mode(self, saveMode: str | None) -> Any:
        """Note the save mode, and tell Spark."""
        if saveMode is not None:
            self._icechunk_mode = saveMode
        return super().mode(saveMode)  # type: ignore[misc]

    def bucketBy(self, numBuckets: int, col: Any, *cols: Any) -> Any:
        """Note that buckets were asked for, and tell Spark."""
        self._icechunk_refused = "bucketBy"
        return super().bucketBy(numBuckets, col, *cols)  # type: ignore[misc]

    def sortBy(self, col: Any, *cols: Any) -> Any:
        """Note that sorted buckets were asked for, and tell Spark."""
        self._icechunk_refused = "sortBy"
        return super().sortBy(col, *cols)  # type: ignore[misc]

    def clusterBy(self, *columns: Any) -> Any:
        """Note that clustering was asked for, and tell Spark."""
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
        """Save the DataFrame: planned for icechunk, and by Spark for every other format.

        Raises
        ------
        IcechunkError
            The format is icechunk, and the write failed.
        """
        if not self._is_ours(format):
            super().save(path, format, mode, partitionBy, **options)  # type: ignore[misc]
            return
        self._note(options)
        chosen = parse_mode(mode if mode is not None else self._icechunk_mode)
        texts = self._icechunk_texts(path, partitionBy)
        given = with_session_options(self._icechunk_frame.sparkSession, texts)
        request = parse_write_options(option_texts(given), mode=chosen)
        # Heavy (Arrow, NumPy, the dataset layer): see rule 3.
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
        """Save as a table of the catalog, by Spark; refused for icechunk.

        Raises
        ------
        UnsupportedError
            The format is icechunk.
        """
        if self._is_ours(format):
            raise catalog_refused("saveAsTable")
        super().saveAsTable(name, format, mode, partitionBy, **options)  # type: ignore[misc]

    def insertInto(self, tableName: str, overwrite: bool | None = None) -> None:
        """Insert into a table or view, by Spark.

        Raises
        ------
        UnsupportedError
            The format is icechunk.
        """
        if self._is_ours():
            raise catalog_refused("insertInto")
        super().insertInto(tableName, overwrite)  # type: ignore[misc]
