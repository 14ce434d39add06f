"""Implements ``icechunk_spark.sample``: plans on the driver, and groups points by chunk.

Rules of this file
------------------
1. The driver holds only metadata, never points.
2. Points are shuffled by the number of their chunk with Spark's hint ``rebalance``, which splits
   partitions that are too large, so that several tasks share a chunk with very many points. If
   adaptive execution is off, or for streams, a hash of the row splits every chunk instead.
3. If labels are evenly spaced, Spark computes the chunk of a point, so that points stay in the JVM.
4. If Spark estimates that the points are small, they are not shuffled.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DateType, LongType, StructField, StructType, TimestampType

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import Names
from icechunk_format.options.values import parse_names
from icechunk_format.tables import Dataset, requested_dataset
from icechunk_format.workflows.sampling import SamplePlan, Sampler, SampleRequest, plan_sample
from icechunk_format.workflows.sampling.chunk_steps import ChunkSteps, chunk_steps
from icechunk_format.workflows.sampling.sampled import KeptLabels, SampledVariable
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import active_session, session_read
from icechunk_spark.reading.plan import shown_variables
from icechunk_spark.sampling.tasks import NumberChunks, SamplePoints
from icechunk_spark.schema import (
    ResultRole,
    arrow_target,
    result_field,
    spark_schema,
    spark_type,
)

Method = Literal["exact", "nearest", "linear", "pad"]
# Numbers for points outside of the grid.
_SPREAD: Final = 1024
_CHUNK: Final = "__icechunk_chunk"
# Metadata of a column that has a watermark.
_WATERMARK: Final = "spark.watermarkDelayMs"
_POINT: Final = "__icechunk_point_{}"
_COLUMN: Final = "column_{}"
# Points of fewer estimated bytes (some ten thousand points) are not shuffled.
_FEW_BYTES: Final = 1 << 20
# Types that Spark's hash functions do not support.
_NO_HASH: Final = ("variant", "geometry", "geography")
# Tasks that share a chunk if Spark does not split partitions by itself.
_SHARES: Final = 4


@checked_call(
    "sample",
    on="{'latitude': 'lat', 'longitude': 'lon'}",
    tolerance="{'time': '1 hour', 'latitude': 0.2}",
    circular="{'longitude': 360}",
)
def sample(
    points: Any,
    path: str,
    *,
    on: Mapping[str, Any],
    variables: Names | None = None,
    method: Method | Mapping[str, Method] = "nearest",
    tolerance: Mapping[str, Any] | None = None,
    outside: Literal["null", "error", "drop"] = "null",
    keep: Names = (),
    crs: Any = None,
    circular: Mapping[str, float | None] | None = None,
    **options: Any,
) -> DataFrame:
    """Add the values of arrays at points to a DataFrame of points.

    The result is pinned to the snapshot that the options resolve to in this call; points are read
    when Spark runs. Points are grouped by chunk, and only chunks that contain points are fetched.

    Parameters
    ----------
    points
        A DataFrame with one point in each row; classic or Connect, batch or streaming. A pandas or
        GeoPandas DataFrame is converted to a DataFrame of the active session; the points of
        GeoPandas become the columns ``x`` and ``y``, in the CRS of the GeoPandas DataFrame unless
        `crs` is set.
    path
        Root of the repository.
    on
        For each dimension or coordinate to match, a column of `points`: its name, or an expression.
        Two-dimensional coordinates (latitudes and longitudes of cells) must be given together. Time
        labels require TIMESTAMP, TIMESTAMP_NTZ or DATE columns; times of other calendars also
        accept ISO 8601 strings. String labels require STRING, and all other labels numbers.
    variables
        The variables to sample. By default, all data variables whose dimensions are in `on` or
        `keep`, are selected by ``sel`` or ``isel``, or have size one.
    method
        ``exact`` selects the equal label, ``nearest`` the nearest one, and ``pad`` the preceding
        one in the order of the array; ``linear`` interpolates between two labels. One method for
        all keys of `on`, or a dictionary with one for each (other keys use ``nearest``).
    tolerance
        Maximum distance from a label, for each key of `on`: a number in the units of the labels,
        for times a string such as ``"1 hour"``, for two-dimensional coordinates degrees of arc. By
        default, ``nearest`` accepts points up to half a step beyond the first and last label.
    outside
        Result for points outside of the grid or the tolerance: ``null`` returns NULL, ``error``
        raises an error, ``drop`` removes the rows. The result is NULL for points with NULL or NaN.
    keep
        Dimensions that become arrays, the outermost first. Their labels are arrays as well.
    crs
        The CRS of the points, in any form that pyproj accepts (``"EPSG:4326"``). Points are
        transformed to the CRS of the grid, which is given by its CF grid mapping. ``"grid"`` means
        that the points are already in that CRS.
    circular
        For keys of `on`, the period, or None for an axis that is not circular. By default
        longitudes in degrees have a period of 360.
    **options
        Options of `icechunk_spark.read`: ``branch``, ``tag``, ``snapshot``, ``as_of``, ``group``,
        ``sel``, ``isel``, ``sel_method``, ``decode_cf``, ``timestamp_type``, ``missing_chunks``
        (``skip`` gives NULL for chunks that were never written), ``read_ahead_bytes``,
        ``storage_*`` and ``virtual_*``.

    Returns
    -------
    DataFrame
        The columns of `points`, one with the labels of each kept dimension, and one for each
        variable, with one row for each row of `points`, in any order. The type of a column is that
        of the variable, DOUBLE for interpolated integers, and an array if dimensions are kept.
        `icechunk_spark.to_xarray` converts it to a dataset of points.

    Raises
    ------
    IcechunkError
        An option cannot be used, a column has the wrong type, or a name does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.sample(  # doctest: +SKIP
    ...     trips,
    ...     "s3://bucket/era5",
    ...     on={"time": "pickup_at", "latitude": "lat", "longitude": "lon"},
    ...     variables=["t2m"],
    ...     tolerance={"time": "1 hour", "latitude": 0.2},
    ... )
    """
    points, known = _as_points(points)
    if not callable(getattr(points, "mapInArrow", None)):
        raise InvalidInputError(
            f"points must be a Spark, pandas or GeoPandas DataFrame, but is of type"
            f" {type(points).__name__}"
        )
    read = session_read(points.sparkSession, path, {"variables": variables, **options}, "sample")
    existing = points.columns
    points, chosen = _with_point_columns(points, on)
    fields = list(points.schema.fields)
    with errors_on_one_line():
        dataset = requested_dataset(read)
        plan = plan_sample(
            dataset,
            SampleRequest(
                points={
                    key: (name, arrow_target(StructType([fields[number]])).field(0).type)
                    for key, (number, name) in chosen.items()
                },
                read=read,
                existing=existing,
                keep=parse_names("keep", keep) if isinstance(keep, str) else tuple(keep),
                method=method,
                tolerance=tolerance,
                outside=outside,
                crs=known if crs is None else crs,
                circular=circular,
            ),
        )
    if read.variables is None:
        _warn_of_left_out(dataset, plan)
    numbers = [number for number, _ in chosen.values()]
    added = _added_fields(plan)
    # Spark finds the columns of a function by name, which may contain dots or occur twice.
    plain = points.toDF(*(_COLUMN.format(number) for number in range(len(fields))))
    own = [result_field(field, "row", called="point") for field in fields[: len(existing)]]
    result = [*own, *added]
    unnamed = [
        StructField(_COLUMN.format(number), field.dataType, field.nullable, field.metadata)
        for number, field in enumerate(result)
    ]
    task = SamplePoints(
        plan, numbers, len(existing), arrow_target(StructType(unnamed[len(existing) :]))
    )
    found = _together(plain, plan, numbers).mapInArrow(task, StructType(unnamed))
    found = _with_watermarks(found, unnamed[: len(existing)])
    return found.toDF(*(field.name for field in result))


def _with_watermarks(sampled: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Restore the metadata of watermarks, which a Python function loses.

    Spark refuses a second watermark; the first one still defines late rows.
    """
    for field in fields:
        if _WATERMARK in (field.metadata or {}):
            sampled = sampled.withMetadata(field.name, field.metadata)
    return sampled


def _with_point_columns(
    points: DataFrame, on: Mapping[str, str | Column]
) -> tuple[DataFrame, dict[str, tuple[int, str]]]:
    """Add a column for each expression; also return number and name of each key's column."""
    columns = points.columns
    chosen: dict[str, tuple[int, str]] = {}
    added: list[Column] = []
    for key, value in on.items():
        if isinstance(value, str) and columns.count(value) == 1:
            chosen[key] = (columns.index(value), value)
            continue
        if isinstance(value, str):
            same = [name for name in columns if name.lower() == value.lower()]
            if len(same) != 1 and "." not in value:
                problem = "has several columns" if same else "has no column"
                raise InvalidInputError(
                    f"on[{key!r}]={value!r}: the table of points {problem} of that name; it has"
                    f" {', '.join(columns)}",
                    option="on",
                    column=value,
                )
        elif not hasattr(value, "alias"):
            raise InvalidInputError(
                f"on[{key!r}]={value!r} must be the name of a column or a Column expression",
                option="on",
            )
        chosen[key] = (len(columns) + len(added), str(value))
        expression = F.col(value) if isinstance(value, str) else value
        added.append(expression.alias(_POINT.format(len(added))))
    return (points.select("*", *added) if added else points), chosen


def _as_points(points: Any) -> tuple[Any, Any]:
    """Return a frame of pandas or GeoPandas as a DataFrame of the active session, and its CRS."""
    library = type(points).__module__.partition(".")[0]
    if library not in ("pandas", "geopandas") or not hasattr(points, "columns"):
        return points, None
    known = None
    if library == "geopandas":
        # The coordinates of points become new columns, unless columns with these names exist.
        shapes, known = points.geometry, points.crs
        plain = points.drop(columns=shapes.name)
        added = {n: v for n, v in (("x", shapes.x), ("y", shapes.y)) if n not in plain.columns}
        points = plain.assign(**added)
    return active_session().createDataFrame(points), known


def _warn_of_left_out(dataset: Dataset, plan: SamplePlan) -> None:
    taken = {variable.column.path for variable in plan.variables}
    others = [v for v in dataset.data_variables if v.path not in taken and v.dims]
    if others:
        warnings.warn(
            f"sampling leaves out variables of group {dataset.path} with dimensions that are not"
            f" chosen: {shown_variables(others)}. Name their dimensions in on, keep, sel or isel,"
            " or name the variables that you want with variables",
            UserWarning,
            stacklevel=1,
        )


def _added_fields(plan: SamplePlan) -> list[StructField]:
    """Return the columns of labels and values, with their attributes and kept dimensions."""
    fields = []
    for labels in plan.labels:
        size = labels.selection.count
        fields.append(_added_field(labels, "labels", {labels.column.source: size}))
    for variable in plan.variables:
        sizes = {variable.column.dims[a]: variable.selections[a].count for a in variable.kept}
        is_labels = list(sizes) == [variable.column.source]
        fields.append(_added_field(variable, "labels" if is_labels else "value", sizes))
    return fields


def _added_field(
    added: KeptLabels | SampledVariable, role: ResultRole, sizes: Mapping[str, int]
) -> StructField:
    (described,) = spark_schema([added.column]).fields
    comment = {k: v for k, v in described.metadata.items() if k == "comment"}
    field = StructField(added.column.name, spark_type(added.arrow_type), True, comment)
    held = {key: added.column.metadata.get(key) for key in ("attributes", "encoding")}
    # Spark does not keep the order of the keys of an object.
    kept, lengths = list(sizes), list(sizes.values())
    return result_field(field, role, kept=kept, lengths=lengths, **held)


def _together(points: DataFrame, plan: SamplePlan, numbers: Sequence[int]) -> DataFrame:
    """Group points by chunk."""
    with errors_on_one_line():
        steps = chunk_steps(plan, Sampler(plan))
    if _are_few(points):
        return points.coalesce(max(1, cores_of(points.sparkSession)))
    fields = points.schema.fields
    hashed = F.xxhash64(
        *(
            F.col(field.name)
            for field in fields
            if isinstance(field.dataType, AtomicType) and field.dataType.typeName() not in _NO_HASH
        )
    )
    if steps:
        number = _chunk_column(steps, [fields[number] for number in numbers])
        outside = -1 - F.pmod(hashed, F.lit(_SPREAD))
        numbered = points.withColumn(_CHUNK, F.coalesce(number, outside))
    else:
        schema = StructType([*fields, StructField(_CHUNK, LongType())])
        numbered = points.mapInArrow(NumberChunks(plan, numbers), schema)
    adaptive = points.sparkSession.conf.get("spark.sql.adaptive.enabled", "true")
    if not points.isStreaming and str(adaptive).lower() == "true":
        return numbered.hint("rebalance", _CHUNK)
    return numbered.repartition(F.col(_CHUNK), F.pmod(hashed, F.lit(_SHARES)))


def _chunk_column(steps: Sequence[ChunkSteps], fields: Sequence[StructField]) -> Column:
    """Return the number of a point's chunk from its columns; NULL if a coordinate is NULL."""
    stride = 1
    terms = []
    for axis in reversed(steps):
        terms.append(_chunk(axis, _point_number(axis, fields[axis.point])) * F.lit(stride))
        stride *= axis.chunks
    return reduce(add, terms)


def _point_number(axis: ChunkSteps, field: StructField) -> Column:
    column = F.col(field.name)
    if not axis.is_time:
        return column.cast("double")
    if isinstance(field.dataType, TimestampType):
        return F.unix_micros(column).cast("double")
    # Computed from date and time: a cast to TIMESTAMP would apply the session's time zone.
    seconds = F.unix_date(column.cast("date")).cast("double") * F.lit(86_400.0)
    if not isinstance(field.dataType, DateType):
        parts = ((F.hour, 3600.0), (F.minute, 60.0), (F.second, 1.0))
        seconds = reduce(add, (part(column) * F.lit(size) for part, size in parts), seconds)
    return seconds * F.lit(1e6)


def _chunk(axis: ChunkSteps, value: Column) -> Column:
    along = (value - F.lit(axis.first)) * F.lit(1.0 if axis.step > 0 else -1.0)
    if axis.period is not None:
        along = F.pmod(along, F.lit(axis.period))
    position = along / F.lit(abs(axis.step)) + F.lit(0.5 if axis.is_rounded else 0.0)
    # Infinite and huge numbers do not fit BIGINT, so the bounds are checked first.
    chunk = F.least(F.lit(float(axis.chunks - 1)), position / F.lit(float(axis.elements)))
    return F.floor(F.greatest(F.lit(0.0), chunk)).cast("long")


def _are_few(points: DataFrame) -> bool:
    """Return True if Spark estimates that the points are small."""
    frame: Any = points
    if points.isStreaming:
        return False
    # Neither API is public. If both fail, points are shuffled, which is only slower.
    with suppress(Exception):
        if hasattr(frame, "_jdf"):
            plan = frame._jdf.queryExecution().optimizedPlan()
            return int(str(plan.stats().sizeInBytes())) <= _FEW_BYTES
        # The first statistics in the plan of Connect are those of the whole plan.
        found = re.search(r"sizeInBytes=([\d.]+) (\w+)", frame._explain_string(mode="cost"))
        if found is not None:
            factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}.get(found[2], _FEW_BYTES + 1)
            return float(found[1]) * factor <= _FEW_BYTES
    return False
