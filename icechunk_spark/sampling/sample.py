"""Implements ``icechunk_spark.sample``.

Importing it is cheap, because `icechunk_spark` imports it: Arrow, NumPy and the dataset layer are
imported by the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import Column, DataFrame

from icechunk_format.options.python_values import Names

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
    """Add the values of arrays at the points of a DataFrame.

    The plan is made in this call, and pinned to the snapshot of the options now; points are read
    when Spark runs. Points are brought together by chunk, and only chunks with a point are
    fetched.

    Parameters
    ----------
    points
        The points, one in each row; classic or Connect, of a batch or a stream. A frame of pandas
        or GeoPandas becomes a DataFrame of the active session; the points of GeoPandas are its
        columns ``x`` and ``y``, in the CRS of the frame unless `crs` says otherwise.
    path
        Root of the repository.
    on
        For each dimension or coordinate that points choose on, a column of `points`: its name, or
        an expression. Two coordinates with two dimensions (latitudes and longitudes of single
        cells) are given together. Times need TIMESTAMP, TIMESTAMP_NTZ or DATE, times of other
        calendars also ISO 8601 strings, strings STRING, everything else numbers.
    variables
        The variables to sample. By default all data variables whose dimensions are chosen by
        `on`, kept, selected by ``sel`` or ``isel``, or of size one.
    method
        ``exact`` takes a label that is equal, ``nearest`` the nearest one, ``pad`` the one before
        in the order of the array, ``linear`` interpolates between two. One for all, or one for
        each key of `on` (others are ``nearest``).
    tolerance
        For each key of `on`, how far a label may be: a number in the units of the labels, for
        times a string such as ``"1 hour"``. Of coordinates with two dimensions, degrees of arc.
        Without one, ``nearest`` goes half a step beyond the first and last label.
    outside
        What becomes of points outside of the grid or the tolerance: ``null`` values, an
        ``error``, or ``drop`` leaves them out. Points whose columns are NULL or NaN get NULL.
    keep
        Dimensions that become arrays, the outermost first.
    crs
        The CRS of the points, as pyproj takes it (``"EPSG:4326"``): they are moved
        into that of the grid, which is its CF grid mapping. ``"grid"`` means that they are in it.
    circular
        For keys of `on`, the period, or None for an axis that is not circular. By default
        longitudes in degrees have a period of 360.
    **options
        Options of reading, as `icechunk_spark.read` takes them: ``branch``, ``tag``,
        ``snapshot``, ``as_of``, ``group``, ``sel``, ``isel``, ``sel_method``, ``decode_cf``,
        ``timestamp_type``, ``missing_chunks`` (``skip`` gives NULL for chunks that were never
        written), ``read_ahead_bytes``, ``storage_*`` and ``virtual_*``.

    Returns
    -------
    DataFrame
        The columns of `points` as they are, and one column for each variable: of its own type,
        DOUBLE for interpolated integers, arrays where dimensions are kept. One row for each row
        of `points`, in any order.

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
