"""Places what a function returned for blocks: shapes, offsets and metadata of the new arrays.

==========================================  =======================================================
a dimension of a result                     is placed
==========================================  =======================================================
of the block, as long as the block          at the block
of the block, k times shorter               at 1/k of the block; k divides the dimension and blocks
of the block, and not divided into blocks   at 0; it may have any length
new                                         at 0; it has the same length in each block
==========================================  =======================================================

A dimension that is divided into blocks may be missing in coordinates, and in variables that the
source has without it; each other variable would have one value for many blocks.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from icechunk_format.arrays.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.arrays.new_nodes import build_array_metadata
from icechunk_format.dataset.writing.part import ArrayTarget, path_in
from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.ids import NodeId
from icechunk_format.spec.node_path import NodePath
from icechunk_format.workflows.mapping.blocks import Block, BlockGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One variable that a function returned for a block, encoded.

    Parameters
    ----------
    attributes
        As they are stored: JSON values.
    fill_value
        Of missing chunks; None for the default of the type.
    """

    name: str
    dims: tuple[str, ...]
    values: NDArray[Any]
    attributes: Mapping[str, Any]
    fill_value: Any = None
    is_coordinate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A new array, and how its blocks are placed.

    Parameters
    ----------
    factors
        By dimension of the blocks: how many elements of the source are one of the array.
    once
        Dimensions that are divided into blocks and that the array does not have: the first block
        along them writes it.
    """

    target: ArrayTarget
    factors: Mapping[str, int]
    once: tuple[str, ...]

    def is_written_by(self, block: Block) -> bool:
        """Return True if the task of a block writes its result."""
        return not any(block.index[dim] for dim in self.once)

    def start(self, block: Block) -> tuple[int, ...]:
        """Return where the result of a block begins."""
        return tuple(
            block.start[dim] // self.factors[dim] if dim in self.factors else 0
            for dim in self.target.dims
        )


def place(
    grid: BlockGrid,
    block: Block,
    result: Result,
    group: str,
    *,
    chunks: Mapping[str, int],
    codecs: Sequence[Any] | None,
) -> Placed:
    """Return the array of which this is the result for the first block."""
    shape, steps, factors = [], [], {}
    for dim, size in zip(result.dims, result.values.shape, strict=True):
        length = block.stop[dim] - block.start[dim] if dim in grid.sizes else size
        if dim not in grid.sizes or not grid.is_split(dim):
            shape.append(size)
            steps.append(size)
        elif size and length % size == 0:
            factor = length // size
            if grid.sizes[dim] % factor or grid.steps[dim] % factor:
                raise _refused(
                    result,
                    dim,
                    f"is {factor} times shorter, which does not divide the"
                    f" {grid.sizes[dim]} elements in blocks of {grid.steps[dim]}",
                )
            factors[dim] = factor
            shape.append(grid.sizes[dim] // factor)
            steps.append(grid.steps[dim] // factor)
        else:
            raise _refused(
                result,
                dim,
                f"has {size} elements in a block of {length}; give the block's, or k"
                " times fewer, or all of the dimension in one block",
            )
    once = tuple(dim for dim in grid.sizes if grid.is_split(dim) and dim not in result.dims)
    passed_on = grid.dims.get(result.name) == result.dims
    if once and not result.is_coordinate and not passed_on:
        raise _refused(
            result,
            once[0],
            "is divided into blocks and is gone in the result, so each block would"
            f" have its own value; take all of it in one block: blocks={{{once[0]!r}: -1}}",
        )
    chunk_shape = []
    for dim, step in zip(result.dims, steps, strict=True):
        chunk = chunks.get(dim, step)
        chunk = max(1, step) if chunk == -1 else max(1, min(chunk, step))
        if dim in factors and step % chunk:
            raise InvalidInputError(
                f"chunks: {dim} is {chunk}, which does not divide the {step} elements of a block;"
                " choose other blocks, or rechunk the result",
                option="chunks",
                dimension=dim,
            )
        chunk_shape.append(chunk)
    dtype = result.values.dtype
    path = path_in(NodePath(group), result.name)
    metadata = build_array_metadata(
        shape=shape,
        data_type=parse_data_type("string") if dtype.hasobject else data_type_from_numpy(dtype),
        chunk_shape=chunk_shape,
        fill_value=result.fill_value,
        codecs=codecs,
        dimension_names=result.dims,
        attributes=result.attributes,
        node_path=path,
    )
    target = ArrayTarget(
        name=result.name,
        path=path,
        node_id=NodeId.from_random(secrets.token_bytes(NodeId.SIZE)),
        dims=result.dims,
        metadata=metadata,
    )
    return Placed(target=target, factors=factors, once=once)


def check_like_first(placed: Placed, block: Block, result: Result, label: str) -> None:
    """Raise InvalidInputError if the result of a block differs from that of the first."""
    target = placed.target
    expected = tuple(
        (block.stop[dim] - block.start[dim]) // placed.factors[dim] if dim in placed.factors else n
        for dim, n in zip(target.dims, target.metadata.shape, strict=True)
    )
    dtype = target.metadata.data_type.numpy
    for what, found, wanted in (
        ("dimensions", result.dims, target.dims),
        ("a shape", result.values.shape, expected),
        ("the data type", str(result.values.dtype), str(dtype)),
    ):
        if found != wanted and not (what == "the data type" and dtype.hasobject):
            raise InvalidInputError(
                f"variable {result.name!r} of block {label} has {what} {found}, and {wanted} was"
                " expected from the first block; return the same for each block",
                variable=result.name,
                block=label,
            )


def _refused(result: Result, dim: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"variable {result.name!r} that the function returned: dimension {dim!r} {problem}",
        variable=result.name,
        dimension=dim,
    )
