"""Takes apart values that users give for an option: arrays, lists and values without dimensions.

Values of NumPy, pandas and xarray are recognised by their methods, so that nothing is imported.
"""

from __future__ import annotations

from typing import Any


def items_of(value: Any) -> list[Any] | None:
    """Return the items of a list, a range or an array; None for anything else."""
    if isinstance(value, list | tuple | range):
        return list(value)
    if hasattr(value, "to_numpy"):  # of pandas, xarray and Arrow
        value = value.to_numpy()
    return list(value) if type(value).__name__ == "ndarray" and value.ndim else None


def single(value: Any) -> Any:
    """Take the only value out of an array without dimensions, as xarray's labels are."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "__array__"):
        array = value.to_numpy() if hasattr(value, "to_numpy") else value
        return array[()]
    return value
