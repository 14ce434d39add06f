"""Compares the values that several blocks return for the same elements of an array.

Rules of this file
------------------
1. An array that lacks a divided dimension, such as labels of another dimension or a scalar
   coordinate, is returned by several blocks and stored once. All of them must return the same.
2. Values that every block returns are compared with those of the first block while tasks run, if
   they are small. Of other values, tasks return digests, which the driver compares.
3. If only some blocks are computed, the values must also be those that are stored, unless all
   blocks that return them are computed.
4. NaN equals NaN, and 0 equals -0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.blocks import BlockGrid
from icechunk_format.workflows.mapping.outputs import Layout, OutputArray, Result

# Larger arrays of the first block are not sent to tasks.
_MOST_BYTES: Final = 1 << 20
_STRING_BYTES: Final = 64


class SharedBox(NamedTuple):
    """Elements of an array that several blocks return: its name, and the first element."""

    name: str
    lower: tuple[int, ...]


class Digest(NamedTuple):
    """A digest of the values that a block returned for a box.

    `is_stored` is True if they equal the stored values of the last run.
    """

    value: bytes
    is_stored: bool = False


class Disagreement(NamedTuple):
    """Two blocks that return different values for a box; None is the last run."""

    box: SharedBox
    block: int
    other: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstValues:
    """The values that the first block returned for arrays that all blocks return."""

    label: str = ""
    values: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, grid: BlockGrid, label: str, results: Iterable[Result]) -> FirstValues:
        """Return the small arrays without divided dimensions among some results."""
        kept = {
            layout.name: values
            for layout, values in results
            if not any(dim in grid.sizes and grid.is_split(dim) for dim in layout.dims)
            and values.size * (_STRING_BYTES if values.dtype.hasobject else values.itemsize)
            <= _MOST_BYTES
        }
        return cls(label=label, values=kept)


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of values of one data type and shape."""
    if values.dtype.hasobject:
        data = repr(values.tolist()).encode("utf-8", "surrogatepass")
    else:
        if values.dtype.kind in "fc":
            values = np.where(np.isnan(values), np.nan, values + 0)
        data = np.asarray(values).tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()


def unequal(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the elements that differ."""
    same = (one == other) | ((one != one) & (other != other))
    return np.asarray(~np.asarray(same, np.bool_))


def differing(
    output: OutputArray,
    layout: Layout,
    labels: tuple[str, str],
    different: NDArray[np.bool_],
    shown: Sequence[str],
) -> InvalidInputError:
    """Return the error of two blocks with different values.

    Parameters
    ----------
    labels
        Labels of the two blocks.
    different
        A mask of the values that differ.
    shown
        The first of these values of both blocks, as text; empty if none differs any more.
    """
    kind = "coordinate" if layout.is_coordinate else "variable"
    dims = ", ".join(map(repr, output.once))
    found = "values differ between two calls with the same block"
    if shown:
        at = np.unravel_index(int(np.argmax(different)), different.shape) if layout.dims else ()
        where = ", ".join(f"{dim}[{i}]" for dim, i in zip(layout.dims, at, strict=True))
        found = (
            f"{different.sum()} of {different.size} values differ, first"
            f" {where + ': ' if where else ''}{shown[0]} and {shown[1]}"
        )
    one = dict.fromkeys(output.once, -1)
    return InvalidInputError(
        f"{kind} {layout.name!r} of block {labels[0]} is not that of {labels[1]} ({found}); it"
        f" lacks {dims}, which blocks divide, and is stored once: return the same in each block,"
        f" drop it, or read the whole dimension in one block: blocks={one}",
        variable=layout.name,
        block=labels[0],
    )


def check_agreement(
    grid: BlockGrid,
    arrays: Mapping[str, OutputArray],
    found: Iterable[tuple[int, Mapping[SharedBox, Digest | None]]],
) -> dict[SharedBox, int] | Disagreement:
    """Return the first block that returned each box, or two blocks that differ.

    Parameters
    ----------
    found
        Numbers of blocks, ascending, and the digests of their boxes; None for a failed block.
    """
    first: dict[SharedBox, tuple[int, Digest]] = {}
    computed: dict[SharedBox, int] = {}
    for number, shared in found:
        for box, digest in shared.items():
            computed[box] = computed.get(box, 0) + 1
            if digest is None:
                continue
            before = first.setdefault(box, (number, digest))
            if before[1].value != digest.value:
                return Disagreement(box, number, before[0])
    blocks = dict(zip(grid.sizes, grid.groups.counts, strict=True))
    sharing = {
        name: int(np.prod([blocks[dim] for dim in output.once])) for name, output in arrays.items()
    }
    for box, (number, digest) in first.items():
        if not digest.is_stored and computed[box] < sharing[box.name]:
            return Disagreement(box, number, None)
    return {box: number for box, (number, _) in first.items()}
