"""Brings a small result back as an `xarray.Dataset`, by the metadata of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from icechunk_format.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import xarray


def to_xarray(
    df: DataFrame, *, dims: Sequence[str] | None = None, max_cells: int = 10_000_000
) -> xarray.Dataset:
    """Collect a DataFrame as an `xarray.Dataset`, ready to plot.

    Parameters
    ----------
    df
        A result with one row for each cell, such as means by latitude and month.
    dims
        The columns that become dimensions. Without, those that were dimensions when they were
        read: grouping keeps that, computing a column loses it.
    max_cells
        The most rows, and the most cells of the grid that their labels span. The grid is held in
        the memory of this process.

    Returns
    -------
    xarray.Dataset
        The other columns as variables over ``dims``, with the attributes that columns were read
        with. Cells without a row are missing.

    Raises
    ------
    InvalidInputError
        No column is a dimension, a name is no column, a label is NULL, two rows have the same
        labels, or there are more than ``max_cells`` rows or cells.
    UnsupportedError
        xarray is not installed: ``pip install 'icechunk-spark[xarray]'``.
    """
    try:
        from xarray import Dataset
    except ImportError:
        raise UnsupportedError(
            "to_xarray needs xarray: pip install 'icechunk-spark[xarray]'"
        ) from None
    from icechunk_spark.schema import column_metadata

    described = {field.name: column_metadata(field) for field in df.schema.fields}
    chosen = _dimensions(described, dims)
    table = df.limit(max_cells + 1).toArrow()
    if len(table) > max_cells:
        raise InvalidInputError(
            f"the result has more than max_cells={max_cells} rows; aggregate or select more, or "
            "raise max_cells where memory allows",
            allowed=max_cells,
        )
    for name in chosen:
        if table[name].null_count:
            raise InvalidInputError(
                f"dimension {name!r} has {table[name].null_count} NULL labels; drop those rows, "
                f"with df.where('{name} IS NOT NULL')",
                column=name,
            )
    frame = table.to_pandas().set_index(chosen)
    if not frame.index.is_unique:
        example = frame.index[frame.index.duplicated()][0]
        raise InvalidInputError(
            f"two rows have the labels {example!r} of ({', '.join(chosen)}); aggregate them, or "
            "name all dimensions with dims",
            found=repr(example),
        )
    cells = prod(len(frame.index.unique(level)) for level in chosen)
    if cells > max_cells:
        raise InvalidInputError(
            f"the labels of {len(frame)} rows span a grid of {cells} cells, more than "
            f"max_cells={max_cells}; choose fewer dims, or raise max_cells where memory allows",
            found=cells,
            allowed=max_cells,
        )
    dataset = Dataset.from_dataframe(frame)
    for name, metadata in described.items():
        dataset[name].attrs.update(metadata.get("attributes") or {})
        if name in chosen and metadata.get("order") == "descending":
            dataset = dataset.sortby(name, ascending=False)
    return dataset


def _dimensions(described: dict[str, dict[str, Any]], dims: Sequence[str] | None) -> list[str]:
    if dims is None:
        found = [name for name, held in described.items() if held.get("role") == "dimension"]
        if not found:
            raise InvalidInputError(
                f"no column of ({', '.join(described)}) was a dimension when it was read; name "
                "the columns that are, with dims",
                found=tuple(described),
            )
        return found
    missing = [name for name in dims if name not in described]
    if missing or not dims:
        raise InvalidInputError(
            f"dims names {missing or 'nothing'}; the columns are ({', '.join(described)})",
            found=tuple(dims),
            allowed=tuple(described),
        )
    return list(dims)
