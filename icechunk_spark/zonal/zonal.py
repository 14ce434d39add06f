"""Implements ``icechunk_spark.zonal``.

How the work is cut
-------------------
1. Tasks with some of the zones find the cells that each covers, chunk by chunk of the horizontal
   grid.
2. These rows are shuffled by chunk, so that a task reads the chunks along all other dimensions once
   for all zones. If the other dimensions are long, several tasks share them.
3. Sums of one zone over several chunks are shuffled by zone and combined.

Rules of this file
------------------
1. Importing it is cheap, because `icechunk_spark` imports it: Arrow and the dataset layer are
   imported by the first call.
2. Nothing about zones is collected; keys travel with the rows, so that zones are computed once.
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
from icechunk_format.names import choose
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.python_values import Names
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import parse_names
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.partitions import cores_of, together
from icechunk_spark.jobs.session_options import active_session, with_session_options
from icechunk_spark.jobs.time_zone import session_time_zone

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.plan import ZonalContext

_CHOICES: Final = {
    "coverage": ("fraction", "center", "touched"),
    "on_invalid": ("error", "null"),
    "antimeridian": ("error", "split", "keep"),
}
# Names of types of geometries, from Spark 4.1 on.
_SPATIAL_TYPES: Final = ("geometry", "geography")
_MOST_PARTITIONS: Final = 10_000
# Zones are few beside cells, so they are spread over all cores before they are covered.
_COVERING_TASKS_OF_A_CORE: Final = 2
_SUMMING_TASKS_OF_A_CORE: Final = 4
_CELLS_OF_A_PARTITION: Final = 256 << 20


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
    """Return statistics of a grid by polygons: a row for each zone and step of other dimensions.

    Parameters
    ----------
    zones
        A DataFrame with a column of polygons or multi-polygons: WKB (BINARY), WKT (STRING), or
        GEOMETRY from Spark 4.1 on; or a frame of GeoPandas. Its other columns are kept as keys.
    path
        Root of the repository.
    geometry
        The column of polygons. A NULL in it gives NULL as every statistic.
    variables
        Variables to sum up; by default all on the largest set of dimensions.
    statistics
        Some of ``count`` (of covered cells with a value, in fractions of a cell), ``mean``,
        ``sum``, ``min``, ``max``, ``std`` (of the population), ``median``, and
        ``quantile(q=0.9)`` with q from 0 to 1, weighted as exactextract weights it, in a column
        ``<variable>_quantile_90``. Quantiles are exact: all values of zones go through a shuffle.
    coverage
        ``fraction`` weighs a cell by the part of it that is inside, ``center`` takes cells whose
        label is inside, ``touched`` takes cells of which some part is inside.
    weights
        ``area`` for the spherical area of cells in square metres, on grids of latitude and
        longitude; or a variable along the two horizontal dimensions. Weights are multiplied with
        covered fractions in ``mean``, ``sum``, ``std`` and quantiles; a cell without a weight does
        not count.
    crs
        The CRS of zones, as pyproj takes it, if it is not that of the grid: ``"EPSG:3857"``. Frames
        of GeoPandas have theirs. ``"grid"`` for the coordinates of a projected grid.
    on_invalid
        ``error``, or ``null`` for NULL as statistics of a zone whose geometry is invalid.
    antimeridian
        For an edge over more than 180 degrees of longitude (and not over 360): ``split`` if it
        crosses the antimeridian, ``keep`` if it goes the long way round.
    spark
        The session, for a frame of GeoPandas; by default the active one.
    **options
        Options of reading: ``branch``, ``tag``, ``snapshot``, ``as_of``, ``group``, ``sel``,
        ``isel`` and ``where`` (about dimensions), ``decode_cf``, ``timestamp_type``,
        ``read_ahead_bytes``, ``storage_*``, ``virtual_*``.

    Returns
    -------
    DataFrame
        Keys of the zone, the other dimensions, and a column ``<variable>_<statistic>`` for each
        statistic: DOUBLE, but ``min`` and ``max`` in the variable's type up to 32 bits. A zone
        outside of the grid has NULL, and 0 as ``count``. Lazy, and pinned to the snapshot that
        the options mean now. Rows are in any order.

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
    given = {"coverage": coverage, "on_invalid": on_invalid, "antimeridian": antimeridian}
    for name, value in given.items():
        choose(name, value, _CHOICES[name])
    session = getattr(zones, "sparkSession", spark)
    chosen = options if session is None else with_session_options(session, options)
    parsed = parse_arguments(path, {"variables": variables, **chosen}, "zonal")
    with errors_on_one_line():
        from icechunk_format.workflows.zonal.cover import check_packages
        from icechunk_format.workflows.zonal.plan import ZonalRequest
        from icechunk_format.workflows.zonal.statistics import check_statistics

        check_packages()
        names = check_statistics(
            parse_names("statistics", statistics) if isinstance(statistics, str) else statistics
        )
        if type(zones).__module__.partition(".")[0] == "geopandas":
            zones, known = _from_geopandas(zones, geometry, spark or active_session())
            crs = known if crs is None else crs
        elif not hasattr(zones, "mapInArrow"):
            raise InvalidInputError(
                f"zones are of type {type(zones).__name__}: give a DataFrame of Spark, or a frame"
                " of GeoPandas",
                option="zones",
            )
        rows, keys, typed = _with_keys(zones, geometry)
        request = ZonalRequest(
            statistics=names,
            coverage=coverage,
            weights=weights,
            crs=typed if crs is None else crs,
            on_invalid=on_invalid,
            antimeridian=antimeridian,
            cores=cores_of(zones.sparkSession),
        )
        zone = session_time_zone(zones.sparkSession)
        return _mapped(rows, keys, _planned(parsed, request, zone))


def _planned(options: ReadRequest, request: Any, time_zone: str) -> ZonalContext:
    from icechunk_format.workflows.zonal.plan import plan_zonal
    from icechunk_spark.reading.plan import open_group

    _, dataset = open_group(options, snapshot=None)
    return plan_zonal(
        dataset,
        request,
        variables=options.variables,
        decode_cf=options.decode_cf,
        timestamp_type=options.timestamp_type,
        where=options.where,
        sel=options.sel,
        isel=options.isel,
        sel_method=options.sel_method,
        time_zone=time_zone,
        read_ahead_bytes=options.read_ahead_bytes,
    )


def _mapped(zones: DataFrame, keys: Sequence[StructField], context: ZonalContext) -> DataFrame:
    """Return the result of a plan for zones of columns ``key0``, ``key1``, ..., ``geometry``."""
    from icechunk_format.workflows.zonal.combining import Combining
    from icechunk_format.workflows.zonal.covering import COVER_SCHEMA
    from icechunk_format.workflows.zonal.summing import PARTS_SCHEMA, Summing
    from icechunk_spark.schema import spark_struct, spark_type
    from icechunk_spark.zonal.steps import covered, step, summed

    added = [StructField(f.name, spark_type(f.type)) for f in context.result_fields()]
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
    """Return how many partitions share the reading; each holds whole tasks of the plan."""
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


def _from_geopandas(zones: Any, geometry: str, spark: SparkSession) -> tuple[DataFrame, Any]:
    """Return a frame of GeoPandas as a DataFrame, and its CRS or None."""
    if not hasattr(zones, "columns") or geometry not in zones.columns:
        columns = ", ".join(map(str, getattr(zones, "columns", ())))
        raise InvalidInputError(
            f"geometry={geometry!r} is not a column of the zones, which have {columns or 'none'}",
            option="geometry",
        )
    shapes = zones.set_geometry(geometry).geometry
    plain = zones.drop(columns=geometry).assign(**{geometry: shapes.to_wkb()})
    return spark.createDataFrame(plain), shapes.crs


def _with_keys(zones: DataFrame, geometry: str) -> tuple[DataFrame, list[StructField], Any]:
    """Return zones as columns ``key0``, ``key1``, ... and ``geometry``, and the fields of keys.

    The third item is the CRS that the type of the geometry has, or None.
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
