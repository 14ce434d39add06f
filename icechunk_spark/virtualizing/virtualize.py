"""Implements ``icechunk_spark.virtualize``: Spark runs the tasks.

Plans show rows, so the function contains storage options, which may be credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import given_options, path_string
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.workflows.virtualizing import Archive, VirtualizeResult, virtualize_files
from icechunk_format.workflows.virtualizing.planning.copies import Copying
from icechunk_format.workflows.virtualizing.planning.template import parse_template
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import with_session_options
from icechunk_spark.jobs.task_rows import on_executors
from icechunk_spark.jobs.totals import totalled
from icechunk_spark.schema import quoted, spark_struct

_URL_COLUMNS: Final = ("url", "path", "file", "location")


@checked_call("virtualize")
def virtualize(
    spark: SparkSession,
    files: str | Iterable[str] | DataFrame,
    path: str,
    *,
    parser: str | Callable[..., Any] | None = None,
    concat_dim: str | Sequence[str] | None = None,
    template: str | None = None,
    loadable: Sequence[str] | None = None,
    on_mismatch: Literal["fail", "skip"] = "fail",
    copy: bool | Literal["mismatching"] = False,
    chunks: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    containers: bool = True,
    dry_run: bool = False,
    **options: Any,
) -> VirtualizeResult[DataFrame]:
    """Combine files of other formats into one dataset of references, in one commit.

    No data are copied, except with `copy`. Executors parse the headers with VirtualiZarr (``pip
    install 'icechunk-spark[virtualize]'`` on the driver and on executors). The same call with more
    files appends them: known files are skipped, and changed files are referenced or copied again.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    files
        A pattern (``"s3://bucket/archive/**/*.nc"``), a folder, a list of these, or a DataFrame
        with a column ``url``, ``path``, ``file`` or ``location``, or a single column.
    path
        Root of the repository; it is created if it does not exist.
    parser
        ``hdf`` (HDF5, NetCDF4), ``netcdf3``, ``zarr``, ``kerchunk_json``, ``kerchunk_parquet``,
        ``grib``, ``fits``, or a callable ``(url, registry) -> ManifestStore``, such as
        ``HDFParser(group="forecast")``. By default, suffixes and first bytes determine the format.
    concat_dim
        The dimension along which files are concatenated, or several, in the order of the array.
        Files are ordered by its coordinate, or as in the list if they have no coordinate. A
        dimension that the files do not have is added.
    template
        A pattern of file names, such as ``"{member}/{time:%Y%m%d}.nc"``, whose parts in braces are
        labels of these dimensions; ``{name:d}`` is a number.
    loadable
        Names of variables whose values are stored in the repository; by default the coordinates of
        dimensions. Times are converted to the units of the first file.
    on_mismatch
        If a file cannot be part of the dataset, ``fail`` commits nothing and ``skip`` leaves the
        file out.
    copy
        True copies all files, as chunks of the repository. ``"mismatching"`` copies only arrays
        that cannot be referenced, because their packing differs from that of the other files or
        their chunks do not fit the chunk grid. Other files become references in the same commit.
        Executors decode and encode; the report names the copied files. Values are never rounded,
        except to a packing or type that `encoding` sets.
    chunks
        With `copy`: elements of a chunk by dimension, -1 for all. None is the chunks of the files.
    encoding
        With `copy`: encoding by array, with the keys of writing (``dtype``, ``scale_factor``,
        ``add_offset``, ``_FillValue``, ``compressors``, ``chunks``, ...). By default, stored values
        are kept bit for bit if all files have the same packing; otherwise, floats are stored.
    containers
        Whether virtual chunk containers for the files may be added to the configuration of the
        repository. The reference library fetches virtual chunks only from containers.
    dry_run
        If True, the files are only scanned and compared: the result has the report and the counts
        of the planned commit. Nothing is stored.
    **options
        Options of writing: ``group``, ``branch``, ``create_branch``, ``message``, ``metadata``,
        ``txn_app_id`` and ``txn_version``, ``on_conflict``, ``spec_version``, ``storage.*`` for the
        repository, and ``virtual.storage.*`` for the storage of the files.

    Returns
    -------
    VirtualizeResult
        The snapshot, counts, and a report with a row for each file.

    Raises
    ------
    InvalidInputError
        An option cannot be used, or ``on_mismatch="fail"`` and a file cannot be part of the
        dataset or be copied. Then ``error.facts["report"]`` is the report, a DataFrame.
    UnsupportedError
        VirtualiZarr is not installed.
    ConflictError
        Other writers changed the same arrays meanwhile, and ``on_conflict="fail"``; nothing was
        committed. By default, files are arranged again together with those of the other writers.
    CommitOutcomeUnknownError
        The storage did not report whether the commit succeeded.

    Examples
    --------
    >>> import icechunk_spark
    >>> done = icechunk_spark.virtualize(  # doctest: +SKIP
    ...     spark, "s3://bucket/era5/*.nc", "s3://bucket/era5-icechunk", concat_dim="time"
    ... )
    >>> done.report.groupBy("status").count().show()  # doctest: +SKIP
    """
    request = parse_write_options(
        given_options(path, with_session_options(spark, options, path, "virtualize")), "virtualize"
    )
    request = replace(request, layout="refs")
    if (chunks or encoding) and not copy:
        raise InvalidInputError(
            "chunks and encoding apply only to copied files, since references keep those of the"
            " files; set copy=True or copy='mismatching' as well, or leave them out",
            option="chunks" if chunks else "encoding",
        )
    dims = (concat_dim,) if isinstance(concat_dim, str) else tuple(concat_dim or ())
    if not all(dims):
        raise InvalidInputError(
            "concat_dim is empty: give the name of a dimension, or leave it out",
            option="concat_dim",
        )
    archive = Archive(
        location=location_of(request),
        names=_names_of(files),
        options=request,
        dims=dims,
        template=None if template is None else parse_template(template),
        loadable=None if loadable is None else tuple(loadable),
        parser=parser,
        on_mismatch=on_mismatch,
        containers=containers,
        access=access_of(request),
        copying=Copying(
            which="all" if copy is True else "mismatching",
            chunks=chunks or {},
            encoding=encoding or {},
        )
        if copy
        else None,
        dry_run=dry_run,
    )
    with totalled() as totals, raised_in_jobs(f"virtualizing files into {archive.location}"):
        try:
            done = virtualize_files(archive, partial(on_executors, spark), cores=cores_of(spark))
        except InvalidInputError as error:
            if "report" in error.facts:
                error.facts["report"] = _frame(spark, error.facts["report"])
            raise
    frame: Any = _frame(spark, done.report)
    return replace(done, report=frame, totals=totals.measures)


def _frame(spark: SparkSession, table: Any) -> DataFrame:
    return spark.createDataFrame(table, schema=spark_struct(table.schema))


def _names_of(files: Any) -> list[str]:
    """Return the names of files in the argument `files`."""
    if isinstance(files, str):
        return [files]
    if hasattr(files, "columns") and hasattr(files, "select"):
        named = [name for name in _URL_COLUMNS if name in files.columns]
        if not named and len(files.columns) != 1:
            raise InvalidInputError(
                f"files: the DataFrame has the columns {', '.join(files.columns)}; one of "
                f"{', '.join(_URL_COLUMNS)} must hold the URLs of files",
                option="files",
            )
        column = named[0] if named else files.columns[0]
        urls = files.select(quoted(column))
        return [str(row[0]) for row in cancellable(urls, urls.collect) if row[0] is not None]
    return [path_string(name) for name in files]
