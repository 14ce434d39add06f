"""Implements ``icechunk_spark.to_xarray``: a small result as an `xarray.Dataset`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql import DataFrame

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.arguments import checked_arguments

if TYPE_CHECKING:
    import pyarrow as pa
    import xarray

    from icechunk_spark.reading.result_rows import ResultRows

# Doubles represent every integer up to this one.
_LARGEST_EXACT: Final = 2**53
_ISO_8601: Final = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z?")
# Names of the classes of cftime for calendars of CF.
_CALENDARS: Final = {
    "360_day": "360Day",
    "365_day": "NoLeap",
    "noleap": "NoLeap",
    "366_day": "AllLeap",
    "all_leap": "AllLeap",
    "julian": "Julian",
    "standard": "Gregorian",
    "gregorian": "Gregorian",
    "proleptic_gregorian": "ProlepticGregorian",
}


@checked_arguments
def to_xarray(
    df: DataFrame, *, dims: Sequence[str] | None = None, max_cells: int = 10_000_000
) -> xarray.Dataset:
    """Collect a small DataFrame as an `xarray.Dataset`, for example to plot it.

    Parameters
    ----------
    df
        A result with one row for each cell, such as means by latitude and month, or a result of
        `sample` or `zonal`.
    dims
        The columns that become dimensions. By default, the columns that were dimensions when they
        were read. Grouped columns keep this property; computed columns do not. For results of
        `sample` and `zonal`, also the only column of the points or of the zones' keys; several
        such columns become coordinates of a dimension ``point`` or ``zone``. The kept dimensions of
        `sample` are added.
    max_cells
        Maximum number of rows, and of cells in the grid of their labels. The memory of this process
        holds the grid.

    Returns
    -------
    xarray.Dataset
        The other columns as variables over ``dims``, with the attributes of the arrays that they
        were read from. Cells without a row are missing. Labels are in the order of the array. Times
        of calendars such as ``360_day`` are objects of cftime if it is installed, else strings.

    Raises
    ------
    InvalidInputError
        No column is a dimension, a column does not exist, a label is NULL, two rows have the same
        labels, a BIGINT column with missing values would be rounded, or the result has more than
        ``max_cells`` rows or cells.
    UnsupportedError
        xarray is not installed: ``pip install 'icechunk-spark[xarray]'``.

    Examples
    --------
    >>> means = df.groupBy("latitude", "longitude").avg("t2m")  # doctest: +SKIP
    >>> icechunk_spark.to_xarray(means)["avg(t2m)"].plot()  # doctest: +SKIP
    """
    try:
        import xarray  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "to_xarray needs xarray: pip install 'icechunk-spark[xarray]'"
        ) from None
    from icechunk_spark.reading.result_rows import ResultRows
    from icechunk_spark.schema import column_metadata, result_metadata

    described = {}
    for field in df.schema.fields:
        read, result = column_metadata(field), result_metadata(field)
        # The labels of a grid whose cells are points remain dimensions.
        role = read if read.get("role") == "dimension" else {}
        described[field.name] = {**read, **result, **role}
    rows = ResultRows(described)
    chosen = _dimensions(rows, dims)
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"dims names a column more than once: {chosen}", option="dims")
    table = _collected(df, rows.cells_of_a_row, max_cells)
    if dims is None or not chosen:
        table, chosen = rows.numbered(table, chosen or rows.dimensions())
    names = [name for name in table.column_names if name not in rows.arrays]
    coordinates = rows.coordinates(table, chosen)
    own = [name for name in names if name not in coordinates or name in chosen]
    dataset = _grid(table.select(own), chosen, max_cells)
    for part, by in coordinates.values():
        dataset = _merged(dataset, _grid(part, by, max_cells))
    for kept, values in rows.values_by_kept().items():
        cells = rows.cells(table, chosen, values)
        part = _grid(cells, [*chosen, *kept], max_cells)
        order = {name: cells[name].unique().to_pandas() for name in kept}
        dataset = _merged(dataset, part.reindex(order))
    for name, metadata in described.items():
        if name in dataset.variables:
            dataset[name].attrs.update(metadata.get("attributes") or {})
        if name in chosen and metadata.get("order") == "descending":
            dataset = dataset.sortby(name, ascending=False)
    dataset = _with_calendars(dataset, described)
    # Numbers of points and zones were needed to join the parts.
    dataset = dataset.drop_vars(set(chosen) - described.keys())
    return dataset.set_coords([name for name in rows.keys if name in dataset.data_vars])


def _collected(df: DataFrame, cells_of_a_row: int, max_cells: int) -> pa.Table:
    """Return the rows of a small result; raise InvalidInputError if it is larger."""
    from icechunk_spark.jobs.cancelling import cancellable

    most_rows = max_cells // cells_of_a_row
    limited = df.limit(most_rows + 1)
    table = cancellable(limited, limited.toArrow)
    if len(table) > most_rows:
        each = "" if cells_of_a_row == 1 else f", with {cells_of_a_row} cells in each row"
        raise InvalidInputError(
            f"the result has more than max_cells={max_cells} {'cells' if each else 'rows'}{each};"
            " aggregate the rows or select fewer, or raise max_cells if memory allows",
            allowed=max_cells,
        )
    return table


def _merged(dataset: xarray.Dataset, part: xarray.Dataset) -> xarray.Dataset:
    # The labels of both are the same, in another order.
    return dataset.merge(part, join="left", compat="override")


def _grid(table: pa.Table, dims: list[str], max_cells: int) -> xarray.Dataset:
    """Return the dataset whose cells are the rows of a table."""
    from xarray import Dataset

    for name in dims:
        if table[name].null_count:
            raise InvalidInputError(
                f"dimension {name!r} has {table[name].null_count} NULL labels; drop those rows "
                f"with df.where('{name} IS NOT NULL')",
                column=name,
            )
    frame = table.to_pandas(date_as_object=False).set_index(dims)
    twice = frame.index.duplicated()
    if twice.any():
        row = table.select(dims).slice(int(twice.argmax()), 1).to_pylist()[0]
        labels = ", ".join(f"{name}={label}" for name, label in row.items())
        raise InvalidInputError(
            f"two rows have the labels {labels}; aggregate them, or name all dimensions with dims",
            found=tuple(row.values()),
        )
    cells = prod(len(frame.index.unique(level)) for level in dims)
    if cells > max_cells:
        raise InvalidInputError(
            f"the labels of {len(frame)} rows span a grid of {cells} cells, more than "
            f"max_cells={max_cells}; choose fewer dims, or raise max_cells if memory allows",
            found=cells,
            allowed=max_cells,
        )
    _check_whole_numbers(table, cells)
    return Dataset.from_dataframe(frame.sort_index())


def _with_calendars(
    dataset: xarray.Dataset, described: Mapping[str, Mapping[str, Any]]
) -> xarray.Dataset:
    """Convert ISO 8601 strings of calendars that NumPy lacks to times of cftime, as xarray does."""
    try:
        import cftime
    except ImportError:
        return dataset
    for name, metadata in described.items():
        calendar = (metadata.get("encoding") or {}).get("calendar")
        if calendar not in _CALENDARS or name not in dataset.variables:
            continue
        if dataset[name].dtype.kind in "mM":
            continue
        # xarray compares strings with the class of the calendar.
        time = getattr(cftime, f"Datetime{_CALENDARS[calendar]}")
        held = dataset[name]
        parts = [_ISO_8601.fullmatch(value) for value in map(str, held.values.ravel())]
        if not all(parts):
            continue
        times = np.empty(held.size, object)
        for number, part in enumerate(parts):
            assert part is not None
            *fields, fraction = part.groups()
            microseconds = int((fraction or "").ljust(6, "0"))
            times[number] = time(*map(int, fields), microseconds)
        decoded = {name: (held.dims, times.reshape(held.shape), held.attrs)}
        is_coordinate = name in dataset.coords
        dataset = dataset.assign_coords(decoded) if is_coordinate else dataset.assign(decoded)
    return dataset


def _check_whole_numbers(table: pa.Table, cells: int) -> None:
    """Refuse integers that a dataset would round: with missing values, it holds doubles."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in table.column_names:
        column = table[name]
        if not pa.types.is_int64(column.type) or (cells == len(table) and not column.null_count):
            continue
        ends = pc.min_max(column)
        if max(abs(ends[end].as_py() or 0) for end in ("min", "max")) > _LARGEST_EXACT:
            raise InvalidInputError(
                f"column {name!r} has integers beyond 2^53 and missing values; "
                "a dataset would hold DOUBLE, which rounds them; cast it to double or to "
                "decimal(20, 0), or fill the missing values",
                column=name,
            )


def _dimensions(rows: ResultRows, dims: Sequence[str] | None) -> list[str]:
    described = rows.described
    if dims is None:
        found = rows.dimensions()
        if not found and not rows.keys:
            raise InvalidInputError(
                f"no column of ({', '.join(described)}) was a dimension when it was read; name "
                "the dimension columns with dims",
                found=tuple(described),
            )
        return found
    missing = [name for name in dims if name not in described]
    if missing or not dims:
        raise InvalidInputError(
            f"dims={list(dims)!r} must name columns of the DataFrame: {', '.join(described)}",
            found=tuple(dims),
            allowed=tuple(described),
        )
    # Columns of arrays add their own dimensions.
    return [name for name in dims if name not in rows.arrays]
