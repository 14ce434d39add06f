"""Reduces arrays along dimensions, by group, from whatever chunks there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.reducing.datasets import check_xarray, dataset_of
    from icechunk_format.workflows.reducing.reduce import one_process, reduce_arrays
    from icechunk_format.workflows.reducing.request import (
        ReducedArrays,
        ReduceRequest,
        ReduceResult,
    )

__all__ = [
    "ReduceRequest",
    "ReduceResult",
    "ReducedArrays",
    "check_xarray",
    "dataset_of",
    "one_process",
    "reduce_arrays",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".datasets": ["check_xarray", "dataset_of"],
        ".reduce": ["one_process", "reduce_arrays"],
        ".request": ["ReduceRequest", "ReduceResult", "ReducedArrays"],
    },
)
