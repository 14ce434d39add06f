"""Places the results of blocks in new arrays: shapes, offsets and metadata.

==========================================  =======================================================
a dimension of a result                     is placed
==========================================  =======================================================
of the block, as long as the block          at the block
of the block, k times shorter               at 1/k of the block; k divides the dimension and blocks
of the block, and not divided into blocks   at 0; it may have any length
new                                         at 0; it has the same length in each block
==========================================  =======================================================

Coordinates, and variables that lack it in the source, may lack a dimension that is divided into
blocks. Other variables may not: each block would have a different value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import ArrayTarget, path_in
from icechunk_format.repository.changes import OF_VALUES
from icechunk_format.workflows.mapping.blocks import Block, BlockGrid
from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The encoding of one variable that a function returns, without its values.

    Parameters
    ----------
    attributes
        JSON values, as stored.
    fill_value
        Value of missing chunks; None is the default of the data type.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    fill_value: Any = None
    is_coordinate: bool = False

    @property
    def may_pass(self) -> bool:
        """True if failed blocks have the values of the source, if it has the same array."""
        return self.is_coordinate or not _has_missing(self.attributes, self.dtype)


class Result(NamedTuple):
    """One variable that a function returned for a block, encoded."""

    layout: Layout
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputArray:
    """A new array, and the placement of blocks in it.

    Parameters
    ----------
    factors
        Number of source elements for each element of the array, by dimension of the blocks.
    once
        Dimensions that are divided into blocks and absent in the array. The first block along them
        whose function does not fail writes the array.
    passed
        True if the values are those of the source, so that failed blocks take them from it.
    """

    target: ArrayTarget
    factors: Mapping[str, int]
    once: tuple[str, ...]
    passed: bool = False

    @property
    def needs_source(self) -> bool:
        """True if elements of failed blocks would read as values, unless the source has them."""
        metadata = self.target.metadata
        is_index = self.target.dims == (self.target.name,)
        has_missing = _has_missing(metadata.attributes, metadata.data_type.numpy)
        return bool(self.factors) and (is_index or not has_missing)

    def is_written_by(self, block: Block) -> bool:
        """Return True if a block writes its result to the array."""
        return not any(block.index[dim] for dim in self.once)

    def box(self, block: Block) -> tuple[list[int], list[int]]:
        """Return the elements of the array that belong to a block."""
        shape = self.target.metadata.shape
        lower, upper = [], []
        for dim, size in zip(self.target.dims, shape, strict=True):
            factor = self.factors.get(dim)
            lower.append(0 if factor is None else block.start[dim] // factor)
            upper.append(size if factor is None else block.stop[dim] // factor)
        return lower, upper


def output_array(
    grid: BlockGrid,
    layout: Layout,
    lengths: Mapping[str, int],
    group: str,
    *,
    chunks: Mapping[str, int],
    codecs: Sequence[Any] | None,
    passed: bool = False,
) -> OutputArray:
    """Return the array of a variable.

    Parameters
    ----------
    layout
        The layout of the result for one block, or for the whole group.
    lengths
        Lengths of the dimensions of the block, or of the group.
    """
    shape, steps, factors = [], [], {}
    for dim, size in zip(layout.dims, layout.shape, strict=True):
        length = lengths.get(dim, size)
        if dim not in grid.sizes or not grid.is_split(dim):
            shape.append(size)
            steps.append(size)
        elif size and length % size == 0:
            factors[dim] = factor = length // size
            shape.append(shortened(grid, layout.name, dim, factor))
            steps.append(grid.steps[dim] // factor)
        else:
            raise _refused(
                layout.name,
                dim,
                f"has {size} elements in a block of {length}; return as many, k"
                " times fewer, or read the whole dimension in one block",
            )
    once = tuple(dim for dim in grid.sizes if grid.is_split(dim) and dim not in layout.dims)
    passed_on = grid.has_array(layout.name, layout.dims)
    if once and not layout.is_coordinate and not passed_on:
        raise _refused(
            layout.name,
            once[0],
            "is divided into blocks and absent in the result, so each block would"
            f" have its own value; read all of it in one block: blocks={{{once[0]!r}: -1}}",
        )
    chunk_shape = []
    for dim, step in zip(layout.dims, steps, strict=True):
        chunk = chunks.get(dim, step)
        chunk = step if chunk == -1 else chunk
        if dim in factors and step % chunk:
            raise InvalidInputError(
                f"chunks: {dim} is {chunk}, which does not divide the {step} elements that a"
                f" block has in {layout.name!r}; choose blocks of a multiple of {chunk}, other"
                " chunks, or rechunk the result",
                option="chunks",
                dimension=dim,
                chunk=chunk,
                block=step,
            )
        chunk_shape.append(max(1, min(chunk, step)))
    dtype = layout.dtype
    metadata = build_array_metadata(
        shape=shape,
        data_type=parse_data_type("string") if dtype.hasobject else data_type_from_numpy(dtype),
        chunk_shape=chunk_shape,
        fill_value=layout.fill_value,
        codecs=codecs,
        dimension_names=layout.dims,
        attributes=layout.attributes,
        node_path=path_in(NodePath(group), layout.name),
    )
    return OutputArray(
        target=ArrayTarget.of_new(metadata),
        factors=factors,
        once=once,
        passed=passed and all(factor == 1 for factor in factors.values()),
    )


def shortened(grid: BlockGrid, name: str, dim: str, factor: int) -> int:
    """Return the length of an array along a dimension that is `factor` times shorter."""
    if grid.sizes[dim] % factor or grid.steps[dim] % factor:
        raise _refused(
            name,
            dim,
            f"is {factor} times shorter, which does not divide the"
            f" {grid.sizes[dim]} elements in blocks of {grid.steps[dim]}",
        )
    return grid.sizes[dim] // factor


def check_like_first(output: OutputArray, block: Block, layout: Layout, label: str) -> None:
    """Raise InvalidInputError if the result of a block does not match its array."""
    target = output.target
    expected = tuple(
        (block.stop[dim] - block.start[dim]) // output.factors[dim] if dim in output.factors else n
        for dim, n in zip(target.dims, target.metadata.shape, strict=True)
    )
    dtype = target.metadata.data_type.numpy
    stored = target.metadata.attributes
    for what, found, wanted in (
        ("the dimensions", layout.dims, target.dims),
        ("the shape", layout.shape, expected),
        ("the data type", str(layout.dtype), str(dtype)),
        *(
            # Compared as strings, since NaN differs from itself.
            (f"the attribute {key}", _string(layout.attributes.get(key)), _string(stored.get(key)))
            for key in OF_VALUES
        ),
    ):
        if found != wanted:
            raise InvalidInputError(
                f"variable {layout.name!r} of block {label} has {what} {found}, but its array has"
                f" {wanted}; return the same for each block"
                + (", or set it in encoding" if what.startswith("the attribute") else ""),
                variable=layout.name,
                block=label,
            )


def _has_missing(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    """Return True if elements of missing chunks read as missing."""
    return "_FillValue" in attributes or dtype.kind in "fc"


def _string(value: Any) -> str:
    """Return an attribute as a string for comparison: NaN equals itself, midnight is optional."""
    return repr(value).replace(" 00:00:00", "")


def _refused(name: str, dim: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"variable {name!r} that the function returned: dimension {dim!r} {problem}",
        variable=name,
        dimension=dim,
    )
