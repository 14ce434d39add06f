"""Implements ``icechunk_spark.to_xarray``: a small result as an `xarray.Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.arguments import checked_arguments

if TYPE_CHECKING:
    import pyarrow as pa
    import xarray

# Doubles represent every integer up to this one.
_LARGEST_EXACT: Final = 2**53


@checked_arguments
def to_xarray(
    df: DataFrame, *, dims: Sequence[str] | None = None, max_cells: int = 10_000_000
) -> xarray.Dataset:
    """Collect a small DataFrame as an `xarray.Dataset`, for example to plot it.

    Parameters
    ----------
    df
        A result with one row for each cell, such as means by latitude and month.
    dims
        The columns that become dimensions. By default, the columns that were dimensions when they
        were read. Grouped columns keep this property; computed columns do not.
    max_cells
        Maximum number of rows, and of cells in the grid of their labels. The memory of this process
        holds the grid.

    Returns
    -------
    xarray.Dataset
        The other columns as variables over ``dims``, with the attributes of the arrays that they
        were read from. Cells without a row are missing. Labels are in the order of the array.

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
        from xarray import Dataset
    except ImportError:
        raise UnsupportedError(
            "to_xarray needs xarray: pip install 'icechunk-spark[xarray]'"
        ) from None
    from icechunk_spark.jobs.cancelling import cancellable
    from icechunk_spark.schema import column_metadata

    described = {field.name: column_metadata(field) for field in df.schema.fields}
    chosen = _dimensions(described, dims)
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"dims names a column more than once: {chosen}", option="dims")
    limited = df.limit(max_cells + 1)
    table = cancellable(limited, limited.toArrow)
    if len(table) > max_cells:
        raise InvalidInputError(
            f"the result has more than max_cells={max_cells} rows; aggregate the rows or "
            "select fewer, or raise max_cells if memory allows",
            allowed=max_cells,
        )
    for name in chosen:
        if table[name].null_count:
            raise InvalidInputError(
                f"dimension {name!r} has {table[name].null_count} NULL labels; drop those rows "
                f"with df.where('{name} IS NOT NULL')",
                column=name,
            )
    frame = table.to_pandas(date_as_object=False).set_index(chosen)
    twice = frame.index.duplicated()
    if twice.any():
        row = table.select(chosen).slice(int(twice.argmax()), 1).to_pylist()[0]
        labels = ", ".join(f"{name}={label}" for name, label in row.items())
        raise InvalidInputError(
            f"two rows have the labels {labels}; aggregate them, or name all dimensions with dims",
            found=tuple(row.values()),
        )
    cells = prod(len(frame.index.unique(level)) for level in chosen)
    if cells > max_cells:
        raise InvalidInputError(
            f"the labels of {len(frame)} rows span a grid of {cells} cells, more than "
            f"max_cells={max_cells}; choose fewer dims, or raise max_cells if memory allows",
            found=cells,
            allowed=max_cells,
        )
    _check_whole_numbers(table, cells)
    dataset = Dataset.from_dataframe(frame.sort_index())
    for name, metadata in described.items():
        dataset[name].attrs.update(metadata.get("attributes") or {})
        if name in chosen and metadata.get("order") == "descending":
            dataset = dataset.sortby(name, ascending=False)
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


def _dimensions(described: dict[str, dict[str, Any]], dims: Sequence[str] | None) -> list[str]:
    if dims is None:
        found = [name for name, held in described.items() if held.get("role") == "dimension"]
        if not found:
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
    return list(dims)
