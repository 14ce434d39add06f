"""Implements ``icechunk_spark.map_blocks`` and ``icechunk_spark.read_blocks``.

The first call imports xarray, which an installation may lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import own_options, path_string
from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.mapping import (
    BlocksRequest,
    MapBlocksResult,
    MapRequest,
    OtherRequest,
    map_over_blocks,
)
from icechunk_spark.jobs.errors import errors_on_one_line, raised_in_jobs
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import (
    session_change,
    session_read,
    storage_settings,
    workflow_target,
)
from icechunk_spark.jobs.task_rows import on_executors, tasks_in, work_rows
from icechunk_spark.jobs.totals import in_commit, totalled
from icechunk_spark.queries.read import columns_of
from icechunk_spark.schema import arrow_target

Sizes = Mapping[str, int]


@checked_call("map_blocks")
def map_blocks(
    spark: SparkSession,
    path: str,
    function: Callable[..., Any],
    *,
    to: str,
    blocks: Sizes | None = None,
    overlap: Sizes | None = None,
    periodic: Sequence[str] = (),
    variables: Sequence[str] | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    to_group: str | None = None,
    to_branch: str = "main",
    to_options: Mapping[str, str] | None = None,
    template: Any = None,
    follow: bool = False,
    function_version: str | None = None,
    mode: Literal["errorifexists", "overwrite"] = "errorifexists",
    chunks: Sizes | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    on_error: Literal["fail", "skip"] = "fail",
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
) -> MapBlocksResult:
    """Apply an xarray function to the blocks of a group, and store the results in one commit.

    Each task reads a block, calls the function, and writes the chunks of the result, such as
    anomalies from a climatology, masks, coarser copies or predictions of a model. The driver and
    the executors need xarray (``pip install 'icechunk-spark[xarray]'``).

    Parameters
    ----------
    spark
        The session; classic or Connect.
    path
        Root of the repository that is read.
    function
        A function that takes the ``xarray.Dataset`` of one block, and one of each of `others`, and
        returns a Dataset or DataArray. The datasets are decoded, in memory, and have all
        coordinates and attributes. A function with one more parameter also receives the block, with
        ``index``, ``start`` and ``stop`` by dimension. A dimension of the result is as long as the
        block, or k times shorter in each block (k divides the blocks). A dimension that is not
        divided into blocks may have any length or be absent; a new dimension has the same length in
        each block.
    to, to_group, to_branch, to_options
        Repository, group and branch of the new arrays, and ``storage.*`` options of `to` (by
        default those of `path`). A repository that does not exist is created.
    blocks
        Elements of a block by dimension; -1 is the whole dimension. By default the chunks of the
        largest variable.
    overlap
        Elements by which a block is extended on both sides, within the array; results are trimmed.
    periodic
        Dimensions with overlap whose first and last elements are neighbours, such as longitudes of
        the whole globe: labels continue beyond the ends (-1, 0, 1 instead of 359, 0, 1).
    variables
        Data variables to read; by default all. Coordinates, bounds and grid mappings are always
        read, so functions should select variables, as in ``ds[["t2m"]]``.
    sel, isel
        The region to read, by labels or positions as in reading: one range along each dimension,
        without a step. Blocks, ``start`` and ``stop`` are counted from its first element.
    others
        Further sources by name, in the order of the function's parameters: a path, or a dictionary
        with ``path`` and options of reading (``group``, ``branch``, ``tag``, ``snapshot``,
        ``as_of``, ``variables``, ``sel``, ``isel``, ``storage_*``, ``virtual_*``). Each is read at
        one snapshot, at the labels of the block, and gets these labels; dimensions that the blocks
        do not have are read as a whole. ``"method": "nearest"`` takes the nearest labels, by
        default within half a step beyond the ends, or within ``"tolerance"`` (a number, or a
        duration for times); ``"whole"`` reads a dimension as a whole. Both may be dictionaries by
        dimension. A single position of ``isel``, or a single label of ``sel`` other than a string
        for times, drops its dimension. ``storage_*`` are by default those of `path`, for URLs with
        the same scheme.
    template
        An ``xarray.Dataset`` like the whole result: variables, dimensions, lengths, data types,
        attributes and encoding; its values are ignored. By default, the function is called with the
        first block to determine them. A length of 1/k of the source is a coarser grid.
    follow
        If True, the result records the snapshot of each source, and only blocks that have changed
        since the last run into the same group are computed. Written chunks, other labels and other
        attributes of arrays count as changes. Without changes, nothing is committed. Each such
        result needs its own group.
    function_version
        With ``follow``, a string that identifies the function; all blocks are computed if it
        differs from that of the last run.
    mode
        ``overwrite`` replaces arrays with the same names. Labels of arrays that the run does not
        replace must stay the same.
    chunks
        Elements of a chunk by dimension, which must divide the blocks; -1 is the block. By default
        one chunk for each block.
    encoding
        Encoding by variable with the keys of xarray (``dtype``, ``scale_factor``, ``add_offset``,
        ``_FillValue``, ``units``, ``calendar``), and ``codecs``.
    on_error
        With ``skip``, blocks for which the function fails are missing in the arrays, with the
        labels of the source, and the result of the call lists them. Results whose labels are
        others, or that have no missing value, are refused. With ``fail``, nothing is committed.
    dry_run
        If True, nothing is stored: the function is called with one block, the access to the storage
        and to virtual chunks is checked, and ``target`` of the result shows the arrays.
    group, branch, tag, snapshot, as_of
        Group and snapshot to read, as in reading.
    message, metadata, create_branch, on_conflict, txn_app_id, txn_version
        Options of the commit, as in writing.
    **options
        ``storage_*`` and ``virtual_*``, as in reading.

    Returns
    -------
    MapBlocksResult
        The paths of the arrays, the number of all blocks and of computed blocks, the failed blocks,
        and the commit; for a dry run, the number of blocks to compute, and the arrays.

    Raises
    ------
    InvalidInputError
        The function failed (the message begins with the labels of the block), its result does not
        match the other blocks, or an argument cannot be used. Nothing was committed.
    AlreadyExistsError
        The group already has arrays.
    UnsupportedError
        xarray is not installed.

    Examples
    --------
    >>> def anomaly(ds):
    ...     return ds[["t2m"]] - ds[["t2m"]].mean("time")
    >>> icechunk_spark.map_blocks(  # doctest: +SKIP
    ...     spark, "s3://bucket/era5", anomaly, to="s3://bucket/anomaly", blocks={"time": -1}
    ... )
    """
    if function_version is not None and not follow:
        raise InvalidInputError(
            "function_version requires follow=True: set both or neither", option="function_version"
        )
    given = own_options("map_blocks", locals())
    read, commit = session_change(spark, path, given, "map_blocks")
    target = workflow_target(spark, to, to_options, options)
    sources = _others(spark, path, others, options)
    mapped = _dataset_function(function, encoding or {})
    if template is not None and not hasattr(template, "data_vars"):
        raise InvalidInputError(
            f"template is a {type(template).__name__}; give an xarray.Dataset", option="template"
        )
    with totalled() as totals, raised_in_jobs(f"mapping blocks into {target}"):
        done = map_over_blocks(
            MapRequest(
                source=_blocks(read, blocks, overlap, periodic, sources),
                target=target,
                options=replace(commit, mode=mode, branch=to_branch, group=to_group),
                chunks=chunks or {},
                encoding=encoding or {},
                skips_errors=on_error == "skip",
                cores=cores_of(spark),
                follow=follow,
                function_version=None if function_version is None else str(function_version),
                template=None if template is None else mapped.layouts(template),
                dry_run=dry_run,
            ),
            mapped,
            partial(on_executors, spark),
        )
    return in_commit(done, totals)


@checked_call("read_blocks")
def read_blocks(
    spark: SparkSession,
    path: str,
    function: Callable[..., Any],
    schema: StructType | str,
    *,
    blocks: Sizes | None = None,
    overlap: Sizes | None = None,
    periodic: Sequence[str] = (),
    variables: Sequence[str] | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    group: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: Any = None,
    **options: Any,
) -> DataFrame:
    """Return the rows that an xarray function computes from each block of a group.

    Use it for training patches, statistics of tiles, or events. The DataFrame is pinned to the
    snapshot of the call; blocks are read when Spark runs.

    Parameters
    ----------
    spark, path, blocks, overlap, periodic, variables, sel, isel, others
        As for ``map_blocks``.
    function
        A function that takes the ``xarray.Dataset`` of one block, and one of each of `others` (and
        the block, if it has one more parameter), and returns a pandas DataFrame, an Arrow table, or
        None for no rows. The dataset includes the overlap: the dataset begins at
        ``block.read_start``, the block at ``block.start``.
    schema
        Columns of the rows: a ``StructType``, or a string such as ``"label string, patch
        array<float>"``.
    group, branch, tag, snapshot, as_of
        Group and snapshot to read, as in reading.
    **options
        ``storage_*`` and ``virtual_*``, as in reading.

    Returns
    -------
    DataFrame
        The rows of all blocks, in any order.

    Raises
    ------
    InvalidInputError
        An argument cannot be used. The query raises this error if the function fails or its rows do
        not have the columns and types of `schema`; the message contains the labels of the block.
    UnsupportedError
        xarray is not installed.

    Examples
    --------
    >>> def mean(ds, block):  # doctest: +SKIP
    ...     return pd.DataFrame({"block": [block.number], "mean": [float(ds["t2m"].mean())]})
    >>> icechunk_spark.read_blocks(  # doctest: +SKIP
    ...     spark, "s3://bucket/era5", mean, "block bigint, mean double", blocks={"time": 24}
    ... )
    """
    read = session_read(spark, path, own_options("read_blocks", locals()), "read_blocks")
    struct = columns_of(schema)
    columns = arrow_target(struct)
    sources = _others(spark, path, others, options)
    opened = _blocks(read, blocks, overlap, periodic, sources).opened()
    grid = opened.grid
    mapped = _dataset_function(function, {})

    # Its name in Spark's plans is `iterating.ROWS_OF_BLOCKS`.
    def rows_of_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            reader = grid.reader()
            for number in chain.from_iterable(tasks_in(batches)):
                block = grid.block(number)
                found = reader.read(block), grid.attributes, columns, reader.read_others(block)
                yield from mapped.rows(block, *found)

    tasks = opened.tasks(range(len(grid)), cores_of(spark), returns_rows=True)
    return work_rows(spark, tasks).mapInArrow(rows_of_blocks, struct)


def _blocks(
    read: ReadRequest,
    blocks: Sizes | None,
    overlap: Sizes | None,
    periodic: Sequence[str],
    others: Sequence[OtherRequest],
) -> BlocksRequest:
    return BlocksRequest(
        read=read, blocks=blocks, overlap=overlap, periodic=tuple(periodic), others=others
    )


def _others(
    spark: SparkSession,
    path: str,
    others: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> list[OtherRequest]:
    """Return the further sources of a call with the `options` of its first source."""
    found = []
    for name, given in (others or {}).items():
        if hasattr(given, "data_vars") or hasattr(given, "dims"):
            raise InvalidInputError(
                f"others: {name!r} is a {type(given).__name__} in memory, but sources are read from"
                " repositories: store it (to_zarr, or icechunk_spark.map_blocks) and give its path,"
                " or use it in the function as a value that it captures",
                option="others",
                source=name,
            )
        own = dict(given) if isinstance(given, Mapping) else {"path": given}
        if "path" not in own:
            raise InvalidInputError(
                f"others: {name!r} has no path; give a path, or a dictionary with 'path' and"
                " options of reading",
                option="others",
                source=name,
            )
        at = path_string(own.pop("path"))
        schemes = {one.partition("://")[0] if "://" in one else "" for one in (at, path)}
        if len(schemes) == 1 and not storage_settings(own):
            own |= storage_settings(options)
        matching = {key: own.pop(key) for key in ("method", "tolerance") if key in own}
        read = session_read(spark, at, own, "others")
        found.append(OtherRequest(name=name, read=read, **matching))
    return found


def _dataset_function(
    function: Callable[..., Any], encoding: Mapping[str, Mapping[str, Any]]
) -> Any:
    if not callable(function):
        raise InvalidInputError(
            f"function is a {type(function).__name__}; give a function of an xarray.Dataset",
            argument="function",
        )
    try:
        from icechunk_spark.mapping.datasets import DatasetFunction
    except ImportError as error:
        raise UnsupportedError(
            "blocks need xarray on driver and executors: pip install 'icechunk-spark[xarray]'",
            package="xarray",
        ) from error
    return DatasetFunction(function=function, encoding=encoding)
