"""Implements ``icechunk_spark.zonal``.

How the work is divided
-----------------------
1. Tasks find the cells that each of their zones covers, for each chunk of the horizontal grid.
2. These rows are shuffled by chunk, so that a task reads the chunks along all other dimensions once
   for all zones. If the other dimensions are long, several tasks share them.
3. Sums of one zone over several chunks are shuffled by zone and combined.

Rules of this file
------------------
1. The import is cheap, because `icechunk_spark` imports this module: the first call imports Arrow
   and the layer of tables.
2. Zones are not collected; their keys are part of the rows, so that zones are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import Names
from icechunk_format.options.values import parse_names
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import cores_of, session_time_zone, together
from icechunk_spark.jobs.session_options import active_session, session_read

if TYPE_CHECKING:
    from icechunk_format.tables import Table
    from icechunk_format.workflows.zonal import ZonalContext

# Names of types of geometries, from Spark 4.1 on.
_SPATIAL_TYPES: Final = ("geometry", "geography")
_MOST_PARTITIONS: Final = 10_000
# Zones are fewer than cells, so they are distributed over all cores first.
_COVERING_TASKS_OF_A_CORE: Final = 2
_SUMMING_TASKS_OF_A_CORE: Final = 4
_CELLS_OF_A_PARTITION: Final = 256 << 20


@checked_call("zonal")
def zonal(
    zones: Any,
    path: str,
    *,
    geometry: str = "geometry",
    variables: Names | None = None,
    statistics: Names = ("mean",),
    coverage: Literal["fraction", "center", "touched"] = "fraction",
    weights: str | None = None,
    crs: Any = None,
    on_invalid: Literal["error", "null"] = "error",
    antimeridian: Literal["error", "split", "keep"] = "error",
    spark: SparkSession | None = None,
    **options: Any,
) -> DataFrame:
    """Return statistics of a grid for polygons: a row for each zone and step of other dimensions.

    Parameters
    ----------
    zones
        A DataFrame with a column of polygons or multi-polygons: WKB (BINARY), WKT (STRING) or, from
        Spark 4.1 on, GEOMETRY; a pandas DataFrame with a column of WKB, WKT or shapely geometries;
        or a GeoPandas DataFrame. Its other columns are kept as keys.
    path
        Root of the repository.
    geometry
        The column of polygons. If it is NULL, all statistics are NULL.
    variables
        Variables to summarize; by default, all variables on the largest set of dimensions.
    statistics
        Some of ``count`` (of covered cells with a value, in fractions of a cell), ``mean``,
        ``sum``, ``min``, ``max``, ``std`` (of the population), ``median``, and ``quantile(q=0.9)``
        with q from 0 to 1, weighted like exactextract, in a column ``<variable>_quantile_90``.
        Quantiles are exact: all values of zones are shuffled.
    coverage
        ``fraction`` weights a cell by its covered fraction, ``center`` includes whole cells whose
        label is inside, and ``touched`` includes whole cells of which any part is inside.
    weights
        ``area`` is the spherical area of cells in square metres, on grids of latitude and
        longitude; any other value is the name of a variable along the two horizontal dimensions.
        Weights are multiplied by covered fractions in ``mean``, ``sum``, ``std`` and quantiles;
        cells without a weight are ignored.
    crs
        The CRS of the zones, in any form that pyproj accepts (``"EPSG:3857"``), if it differs from
        that of the grid. By default, that of a GeoPandas DataFrame. ``"grid"`` means that zones are
        in the coordinates of a projected grid.
    on_invalid
        For a zone with an invalid geometry, ``error`` raises an error and ``null`` returns NULL.
    antimeridian
        For edges that span more than 180 degrees of longitude (and not 360): ``split`` if they
        cross the antimeridian, ``keep`` if they do not.
    spark
        The session, for a pandas or GeoPandas DataFrame; by default the active one.
    **options
        Options of reading: ``branch``, ``tag``, ``snapshot``, ``as_of``, ``group``, ``sel``,
        ``isel`` and ``where`` (on dimensions), ``decode_cf``, ``timestamp_type``,
        ``read_ahead_bytes``, ``storage_*``, ``virtual_*``.

    Returns
    -------
    DataFrame
        The keys of the zone, the other dimensions, and a column ``<variable>_<statistic>`` for each
        statistic. Statistics are DOUBLE, except ``min`` and ``max`` of variables of up to 32 bits,
        which have the type of the variable.
        Statistics of a zone outside of the grid are NULL, and its ``count`` is 0. The DataFrame is
        lazy, pinned to the snapshot that the options resolve to in this call, and has rows in any
        order. `icechunk_spark.to_xarray` converts it to a dataset by zone and other dimensions.

    Raises
    ------
    IcechunkError
        An option cannot be used, a name does not exist, or a package of the extra ``geo``
        is missing. An action raises it for a zone that cannot be used, with its keys.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.zonal(  # doctest: +SKIP
    ...     catchments, "s3://bucket/weather", variables=["rain"], statistics=["mean", "max"]
    ... )
    """
    is_of_spark = callable(getattr(zones, "mapInArrow", None))
    session = zones.sparkSession if is_of_spark else spark
    parsed = session_read(session, path, {"variables": variables, **options}, "zonal")
    with errors_on_one_line():
        from icechunk_format.tables import requested_dataset, requested_table
        from icechunk_format.workflows.zonal import ZonalRequest, plan_zonal
        from icechunk_format.workflows.zonal.cover import check_packages

        check_packages()
        if isinstance(statistics, str):
            statistics = parse_names("statistics", statistics)
        if type(zones).__module__.partition(".")[0] in ("pandas", "geopandas"):
            zones, known = _from_pandas(zones, geometry, spark or active_session())
            crs = known if crs is None else crs
        elif not is_of_spark:
            raise InvalidInputError(
                f"zones are of type {type(zones).__name__}: pass a Spark, pandas or GeoPandas"
                " DataFrame",
                option="zones",
            )
        rows, keys, typed = _with_keys(zones, geometry)
        request = ZonalRequest(
            statistics=tuple(statistics),
            coverage=coverage,
            weights=weights,
            crs=typed if crs is None else crs,
            on_invalid=on_invalid,
            antimeridian=antimeridian,
            cores=cores_of(zones.sparkSession),
        )
        dataset = requested_dataset(parsed)
        zone = session_time_zone(zones.sparkSession)
        context = plan_zonal(dataset, request, parsed, time_zone=zone)
        return _mapped(rows, keys, context, requested_table(parsed, dataset))


def _mapped(
    zones: DataFrame, keys: Sequence[StructField], context: ZonalContext, table: Table
) -> DataFrame:
    """Return the result of a plan for zones of columns ``key0``, ``key1``, ..., ``geometry``."""
    from icechunk_format.workflows.zonal import Combining, Summing
    from icechunk_format.workflows.zonal.covering import COVER_SCHEMA
    from icechunk_format.workflows.zonal.result_fields import described_fields
    from icechunk_format.workflows.zonal.summing import PARTS_SCHEMA
    from icechunk_spark.schema import result_field, spark_struct, spark_type
    from icechunk_spark.zonal.steps import covered, step, summed

    keys = [result_field(key, "row", called="zone") for key in keys]
    added = [
        result_field(StructField(field.name, spark_type(field.type)), role, **described)
        for field, role, described in described_fields(context, table)
    ]
    _check_names([key.name for key in keys], [field.name for field in added])
    carried = [StructField(f"key{n}", key.dataType) for n, key in enumerate(keys)]
    of_cover = StructType([*spark_struct(COVER_SCHEMA), *carried])
    of_parts = StructType([*spark_struct(PARTS_SCHEMA), *carried])
    result = StructType([*keys, *added])
    cores = context.request.cores
    rows = zones.repartition(min(_MOST_PARTITIONS, cores * _COVERING_TASKS_OF_A_CORE))
    names = [key.name for key in keys]
    rows = rows.mapInArrow(step(partial(covered, context, names), of_cover), of_cover)
    tasks = _summing_tasks(context)
    rows = together(rows, F.pmod(F.col("task"), F.lit(tasks)), tasks)
    rows = rows.sortWithinPartitions("task")
    rows = rows.mapInArrow(step(partial(summed, context, Summing), of_parts), of_parts)
    rows = rows.repartition("zone", "split").sortWithinPartitions("zone", "split", "part")
    return rows.mapInArrow(step(partial(summed, context, Combining), result), result)


def _summing_tasks(context: ZonalContext) -> int:
    """Return the number of partitions that read; each runs whole tasks of the plan."""
    cells = math.prod(context.scan.table.sizes)
    wanted = max(context.request.cores * _SUMMING_TASKS_OF_A_CORE, cells // _CELLS_OF_A_PARTITION)
    return max(1, min(wanted, _MOST_PARTITIONS, context.column_count * context.split_count))


def _check_names(keys: Sequence[str], added: Sequence[str]) -> None:
    """Raise InvalidInputError if two columns of the result would have the same name."""
    seen: set[str] = set()
    for name in (*keys, *added):
        if name.lower() in seen:
            raise InvalidInputError(
                f"the result would have two columns {name!r}: rename that of the zones, since the"
                f" grid adds {', '.join(added)}",
                column=name,
            )
        seen.add(name.lower())


def _from_pandas(zones: Any, geometry: str, spark: SparkSession) -> tuple[DataFrame, Any]:
    """Return a frame of pandas or GeoPandas as a Spark DataFrame, and its CRS or None."""
    if not hasattr(zones, "columns") or geometry not in zones.columns:
        columns = ", ".join(map(str, getattr(zones, "columns", ())))
        raise InvalidInputError(
            f"geometry={geometry!r} is not a column of the zones, which have {columns or 'none'};"
            " give the name of the column of polygons with geometry=",
            option="geometry",
        )
    shapes = zones[geometry]
    values = shapes.to_numpy(object, copy=True)
    values[shapes.isna().to_numpy()] = None
    kinds = {type(value) for value in values} - {type(None)}
    if kinds and all(hasattr(kind, "wkb") for kind in kinds):
        values = [None if value is None else value.wkb for value in values]
    elif not any(
        all(issubclass(kind, allowed) for kind in kinds) for allowed in (str, bytes, bytearray)
    ):
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidInputError(
            f"geometry={geometry!r} holds values of type {names}; zones are polygons as WKB"
            " (bytes), as WKT (str) or as geometries of shapely",
            option="geometry",
        )
    plain = zones.drop(columns=geometry).assign(**{geometry: values})
    return spark.createDataFrame(plain), getattr(shapes.array, "crs", None)


def _with_keys(zones: DataFrame, geometry: str) -> tuple[DataFrame, list[StructField], Any]:
    """Return zones as columns ``key0``, ``key1``, ... and ``geometry``, and the fields of keys.

    The third item is the CRS of the geometry's type, or None.
    """
    fields = zones.schema.fields
    found = [field for field in fields if field.name == geometry]
    if not found:
        found = [field for field in fields if field.name.lower() == geometry.lower()]
    if len(found) != 1:
        known = ", ".join(field.name for field in fields)
        raise InvalidInputError(
            f"geometry={geometry!r} is {'more than one' if found else 'no'} column of the zones,"
            f" which have {known}",
            option="geometry",
        )
    [field] = found
    kind = field.dataType
    # Heavy, see rule 1.
    from icechunk_spark.schema import quoted

    column, crs = quoted(field.name), None
    if kind.typeName() in _SPATIAL_TYPES:
        srid = getattr(kind, "srid", None)
        crs = f"EPSG:{srid}" if isinstance(srid, int) and srid > 0 else None
        column = F.call_function("st_asbinary", column)
    elif not isinstance(kind, BinaryType | StringType):
        raise InvalidInputError(
            f"geometry={geometry!r} is {kind.simpleString()}; zones are polygons as WKB (BINARY),"
            " as WKT (STRING) or, from Spark 4.1 on, as GEOMETRY",
            option="geometry",
        )
    keys = [one for one in fields if one is not field]
    chosen = [quoted(key.name).alias(f"key{n}") for n, key in enumerate(keys)]
    return zones.select(*chosen, column.alias("geometry")), keys, crs
