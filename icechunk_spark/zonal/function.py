"""Implements ``icechunk_spark.zonal``.

How the work is cut
-------------------
1. Tasks with a part of the zones find the cells that each covers, chunk by chunk of the horizontal
   grid.
2. These rows are brought together by chunk, so that a task reads the chunks that lie above one
   another once for all zones. Where the other dimensions are long, several tasks share them.
3. Sums of one zone over several chunks are brought together and combined.

Rules of this file
------------------
1. Importing it is cheap, because `icechunk_spark` imports it: Arrow and the dataset layer are
   imported by the first call.
2. Nothing about zones is collected; keys travel with the rows, so that zones are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.keywords import parse_options_of_values
from icechunk_format.options.python_values import Names
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import parse_names
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.partitions import cores_of, together
from icechunk_spark.jobs.time_zone import session_time_zone

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.plan import ZonalContext

_CHOICES: Final = {
    "coverage": ("fraction", "center", "touched"),
    "on_invalid": ("error", "null"),
    "antimeridian": ("error", "split", "keep"),
}
_MOST_PARTITIONS: Final = 10_000
# Zones are few beside cells, so they are dealt out to all cores before they are covered.
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
    """Sum a grid up by polygons: one row for each zone and each step of the other dimensions.

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
        ``fraction`` counts a cell by the part of it that lies inside, ``center`` counts cells
        whose label does, ``touched`` counts cells of which some part does.
    weights
        ``area`` for the spherical area of cells in square metres, on grids of latitude and
        longitude; or a variable along the two horizontal dimensions. Weights are multiplied with
        covered fractions in ``mean``, ``sum``, ``std`` and quantiles; a cell without a weight does
        not count.
    crs
        The reference system of zones, whatever pyproj takes, if it is not that of the grid:
        ``"EPSG:3857"``. Frames of GeoPandas say theirs. ``"grid"`` for the coordinates of a
        projected grid.
    on_invalid
        ``error``, or ``null`` for NULL as statistics of a zone whose geometry is invalid.
    antimeridian
        What an edge over more than 180 degrees of longitude means (and not over 360): ``split``
        for one that crosses the antimeridian, ``keep`` for one that goes the long way round.
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
        the options mean now. Rows come in any order.

    Raises
    ------
    IcechunkError
        An option cannot be used, what it names does not exist, or a package of the extra ``geo``
        is missing. An action raises it for a zone that cannot be used, with its keys.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.zonal(  # doctest: +SKIP
    ...     catchments, "s3://bucket/weather", variables=["rain"], statistics=["mean", "max"]
    ... )
    """
    for name, value in (
        ("coverage", coverage),
        ("on_invalid", on_invalid),
        ("antimeridian", antimeridian),
    ):
        if value not in _CHOICES[name]:
            raise InvalidInputError(
                f"{name}={value!r} is not known; choose {', '.join(_CHOICES[name])}", option=name
            )
    given = {"variables": variables, **options}
    parsed = parse_options_of_values(path, given, "zonal", also="where")
    with errors_on_one_line():
        from icechunk_format.workflows.zonal.cover import check_packages
        from icechunk_format.workflows.zonal.plan import ZonalRequest
        from icechunk_format.workflows.zonal.statistics import check_statistics
        from icechunk_spark.zonal.zones import from_geopandas, is_geopandas, with_keys

        check_packages()
        names = check_statistics(
            parse_names("statistics", statistics) if isinstance(statistics, str) else statistics
        )
        if is_geopandas(zones):
            zones, known = from_geopandas(zones, geometry, spark or _active_session())
            crs = known if crs is None else crs
        elif not hasattr(zones, "mapInArrow"):
            raise InvalidInputError(
                f"zones are of type {type(zones).__name__}: give a DataFrame of Spark, or a frame"
                " of GeoPandas",
                option="zones",
            )
        rows, keys, typed = with_keys(zones, geometry)
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
    table = context.scan.table
    cells = 1
    for size in table.sizes:
        cells *= size
    wanted = max(
        context.request.cores * _SUMMING_TASKS_OF_A_CORE, cells // _CELLS_OF_A_PARTITION, 1
    )
    return max(1, min(wanted, _MOST_PARTITIONS, context.column_count * context.split_count))


def _check_names(keys: Sequence[str], added: Sequence[str]) -> None:
    """Refuse keys that have the name of a column of the result, or of another key."""
    seen: set[str] = set()
    for name in (*keys, *added):
        if name.lower() in seen:
            raise InvalidInputError(
                f"the result would have two columns {name!r}: rename that of the zones, since the"
                f" grid adds {', '.join(added)}",
                column=name,
            )
        seen.add(name.lower())


def _active_session() -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except (PySparkException, RuntimeError):
        raise InvalidInputError(
            "there is no active Spark session: give one as spark=", option="spark"
        ) from None
