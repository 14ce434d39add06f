"""Brings zones into one form: the keys, then the geometry as WKB or WKT."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField

from icechunk_format.errors import InvalidInputError
from icechunk_spark.schema import quoted

# Names that Spark 4.1 and later give their types of geometries.
_SPATIAL = ("geometry", "geography")


def is_geopandas(zones: Any) -> bool:
    """Whether zones are a frame of GeoPandas."""
    return type(zones).__module__.partition(".")[0] == "geopandas"


def from_geopandas(zones: Any, geometry: str, spark: SparkSession) -> tuple[DataFrame, Any]:
    """Return a frame of GeoPandas as a DataFrame, and its reference system or None.

    Raises
    ------
    InvalidInputError
        The frame has no such column of geometries.
    """
    if not hasattr(zones, "columns") or geometry not in zones.columns:
        columns = ", ".join(map(str, getattr(zones, "columns", ())))
        raise InvalidInputError(
            f"geometry={geometry!r} is not a column of the zones, which have {columns or 'none'}",
            option="geometry",
        )
    shapes = zones.set_geometry(geometry).geometry
    plain = zones.drop(columns=geometry).assign(**{geometry: shapes.to_wkb()})
    return spark.createDataFrame(plain), shapes.crs


def with_keys(zones: DataFrame, geometry: str) -> tuple[DataFrame, list[StructField], Any]:
    """Return zones as columns ``key0``, ``key1``, ... and the geometry; and the fields of keys.

    The third item is the reference system that the type of the geometry says, or None.

    Raises
    ------
    InvalidInputError
        There is no such column, or it is of another type.
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
    column, crs = quoted(field.name), None
    if kind.typeName() in _SPATIAL:
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
