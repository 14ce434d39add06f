"""Converts a result on the driver to an ``xarray.Dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.errors import UnsupportedError
from icechunk_format.workflows.reducing.request import ReducedArrays

if TYPE_CHECKING:
    import xarray as xr


def check_xarray() -> None:
    """Raise UnsupportedError if xarray is not installed."""
    try:
        import xarray  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "to=None returns a dataset of xarray: pip install 'icechunk-spark[xarray]', or give a"
            " repository with to=",
            package="xarray",
        ) from error


def dataset_of(result: ReducedArrays) -> xr.Dataset:
    """Return a result as a decoded dataset."""
    import xarray as xr

    variables = {
        name: (one.dims, one.values, dict(one.attributes)) for name, one in result.variables.items()
    }
    stored = xr.Dataset(variables, attrs=dict(result.attributes))
    decoded = xr.decode_cf(stored).load()
    return decoded.set_coords([name for name in result.coordinates if name in decoded.variables])
