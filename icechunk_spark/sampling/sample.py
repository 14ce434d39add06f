"""Implements ``icechunk_spark.sample``.

The import is cheap, because `icechunk_spark` imports this module: the first call imports Arrow,
NumPy and the dataset layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import Column, DataFrame

from icechunk_format.options.keywords import Names

Method = Literal["exact", "nearest", "linear", "pad"]


def sample(
    points: Any,
    path: str,
    *,
    on: Mapping[str, str | Column],
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
        Dimensions that become arrays, the outermost first.
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
        The columns of `points` and one column for each variable, with one row for each row of
        `points`, in any order. The type of a column is that of the variable, DOUBLE for
        interpolated integers, and an array if dimensions are kept.

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
    # Heavy: Arrow, NumPy, the dataset layer.
    from icechunk_spark.sampling.plan import sampled_points

    return sampled_points(
        points,
        path,
        on=on,
        variables=variables,
        method=method,
        tolerance=tolerance,
        outside=outside,
        keep=keep,
        crs=crs,
        circular=circular,
        options=options,
    )
