"""Reads the part of a further source that belongs to a block, on executors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.groups import DimSelection, SnapshotArrays, SnapshotSource

# Encoded bytes of chunks that a block holds at once.
FETCHED_AT_ONCE: Final = 32 * 2**20

Positions = range | NDArray[np.int64]
"""Elements of a further source for each selected element of the blocks, along one dimension."""


class StoredArray(NamedTuple):
    """The stored values of an array in a block.

    `span` has the smallest and largest value of times of the whole group.
    """

    dims: tuple[str, ...]
    values: NDArray[Any]
    attributes: dict[str, Any]
    span: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherSource:
    """A further source at one snapshot, aligned with the blocks; picklable.

    Parameters
    ----------
    paths, dims
        Path and dimensions of the arrays, by name.
    positions
        By dimension that the blocks have as well. Arithmetic sequences are ranges, so that the size
        does not depend on the length of the dimension.
    ranges
        Elements along the other dimensions, which each block reads as a whole.
    labelled
        Dimensions whose labels are those of the block.
    dropped
        Dimensions of one element that the arrays of a block do not have.
    """

    name: str
    source: SnapshotSource
    paths: Mapping[str, str]
    dims: Mapping[str, tuple[str, ...]]
    positions: Mapping[str, Positions]
    ranges: Mapping[str, tuple[int, int]]
    labelled: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Smallest and largest stored value of times, by name."""

    def dims_in_block(self, name: str) -> tuple[str, ...]:
        """Return the dimensions of an array in a block."""
        return tuple(dim for dim in self.dims[name] if dim not in self.dropped)

    def read(
        self, arrays: SnapshotArrays, parts: Mapping[str, Sequence[tuple[int, int]]]
    ) -> dict[str, StoredArray]:
        """Read all arrays at parts of the selected elements of each dimension of the blocks."""
        wanted = {
            dim: np.concatenate(
                [np.asarray(positions[first:end], np.int64) for first, end in parts[dim]]
            )
            for dim, positions in self.positions.items()
        }
        found = {}
        for name, path in self.paths.items():
            variable = arrays.variable(path)
            sizes = zip(variable.dims, variable.shape, strict=True)
            chosen = [
                DimSelection.of_indices(size, wanted[dim])
                if dim in wanted
                else DimSelection.span(size, *self.ranges[dim])
                for dim, size in sizes
            ]
            values = arrays.reader(path).read_selected(chosen, FETCHED_AT_ONCE)
            for axis, (dim, own) in enumerate(zip(variable.dims, chosen, strict=True)):
                if dim in wanted and not np.array_equal(own.positions(), wanted[dim]):
                    values = np.take(values, own.rank(wanted[dim]), axis)
            axes = tuple(i for i, dim in enumerate(variable.dims) if dim in self.dropped)
            values, attributes = np.squeeze(values, axes), dict(variable.metadata.attributes)
            dims, span = self.dims_in_block(name), self.spans.get(name)
            found[name] = StoredArray(dims, values, attributes, span)
        return found

    def bytes_of_block(self, steps: Mapping[str, int]) -> int:
        """Return the decoded bytes of the arrays in a block of these lengths."""
        arrays = self.source.open()
        lengths = {dim: end - first for dim, (first, end) in self.ranges.items()}
        lengths |= {dim: steps[dim] for dim in self.positions}
        return sum(
            arrays.variable(self.paths[name]).metadata.data_type.item_bytes
            * math.prod(lengths[dim] for dim in dims)
            for name, dims in self.dims.items()
        )
