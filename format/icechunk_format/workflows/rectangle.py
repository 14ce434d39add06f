"""Resolves ``sel`` and ``isel`` to one range of elements along each dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.tables import Dataset, Given, combined_selection
from icechunk_format.tables.cf import attribute_decoder

Ranges = dict[str, tuple[int, int]]


def common_sizes(variables: Iterable[Variable], label: str) -> dict[str, int]:
    """Return the lengths of dimensions, starting with arrays with the most dimensions."""
    sizes: dict[str, int] = {}
    for variable in sorted(variables, key=lambda v: -len(v.dims)):
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise InvalidInputError(
                    f"dimension {dim!r} of {label} has {sizes[dim]} elements in one array"
                    f" and {size} in {variable.name!r}; select variables with equal lengths",
                    dimension=dim,
                )
    return sizes


def selected_ranges(
    dataset: Dataset, sizes: Mapping[str, int], *, sel: Given | None, isel: Given | None
) -> Ranges:
    """Return the range of elements of each selected dimension, by name."""

    def labels(dim: str) -> pa.Array:
        variable = dataset.variables.get(dim)
        if variable is None or variable.dims != (dim,):
            raise InvalidInputError(
                f"the dimension {dim!r} has no labels in {dataset.label}; select on it with isel",
                dimension=dim,
            )
        metadata = variable.metadata
        decoder = attribute_decoder(metadata.attributes, metadata.data_type, name=dim)
        return decoder.decode(dataset.read(dim))

    found = combined_selection(sizes, labels, sel=sel, isel=isel)
    for dim, own in found.items():
        if own.indices is not None or not own.count:
            problem = "nothing" if not own.count else f"{own.count} elements with gaps between them"
            raise InvalidInputError(
                f"sel and isel choose {problem} along {dim!r}; blocks are cut from one range"
                " without a step, such as 0:24 or 2024-01-01:2024-01-31",
                dimension=dim,
            )
    return {dim: (own.start, own.stop) for dim, own in found.items()}
