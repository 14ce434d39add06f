"""Checks chunk coordinates and receipts against the chunk grid of their array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import box_of_grid
from icechunk_format.repository.files.manifest_files import ManifestReceipt

# More chunks than an axis can have.
_NO_LIMIT: Final = 2**32


def grid_of(node: NodeSnapshot) -> NDArray[np.int64]:
    """Return the box of valid chunk coordinates, shape (ndim, 2).

    The grid of an array without elements includes its first chunk, as in existing writers.
    """
    counts = () if node.array is None else node.array.num_chunks
    return box_of_grid(max(count, 1) for count in counts)


def outside(path: str, coords: tuple[int, ...], grid: NDArray[np.int64]) -> InvalidInputError:
    """Return the error for a chunk that is not in the grid of its array."""
    return InvalidInputError(
        f"the chunk {coords} is outside of array {path!r}, which has "
        f"{tuple(grid[:, 1].tolist())} chunks; resize the array first",
        name=path,
        coords=coords,
    )


def whole_chunks_after(before: NodeSnapshot, after: NodeSnapshot) -> tuple[int, ...] | None:
    """Return the number of chunks along each axis that a smaller shape neither drops nor cuts.

    None if no axis is shorter. If the chunk grid is not regular, the last chunk counts as cut.
    """
    was, now = before.array, after.array
    if was is None or now is None:
        return None
    is_shorter = [new < old for old, new in zip(was.shape, now.shape, strict=True)]
    if not any(is_shorter):
        return None
    grid = _chunk_grid(after.user_data)
    sizes = grid["configuration"].get("chunk_shape") if grid.get("name") == "regular" else None
    if not isinstance(sizes, list) or len(sizes) != len(now.shape):
        sizes = [0] * len(now.shape)
    whole = []
    for shorter, length, count, size in zip(
        is_shorter, now.shape, now.num_chunks, sizes, strict=True
    ):
        if not shorter:
            whole.append(_NO_LIMIT)
        elif isinstance(size, int) and size > 0:
            whole.append(length // size)
        else:
            whole.append(max(0, count - 1))
    return tuple(whole)


def _chunk_grid(user_data: bytes) -> dict[str, Any]:
    """Return the chunk grid of the document of an array; empty if it has none."""
    try:
        grid = json.loads(user_data)["chunk_grid"]
        return grid if isinstance(grid["configuration"], dict) else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def check_regular(node: NodeSnapshot) -> None:
    """Raise InvalidInputError unless the chunk grid of an array is regular."""
    name = _chunk_grid(node.user_data).get("name")
    if name != "regular":
        raise InvalidInputError(
            f"the chunk grid of array {node.path!r} is {name!r}; only the chunks of a 'regular' "
            "grid can be shifted, since only they have one shape. Read the array and write it "
            "shifted",
            name=node.path,
            found=name,
            allowed=("regular",),
        )


def check_grid_of_v1(path: str, user_data: bytes) -> None:
    """Raise InvalidInputError if the document of an array has another grid than a regular one.

    Snapshots of spec version 1 store one chunk length for each dimension.
    """
    name = _chunk_grid(user_data).get("name", "regular")
    if name != "regular":
        raise InvalidInputError(
            f"the chunk grid of array {path!r} is {name!r}; spec version 1 has only 'regular' "
            "grids, use a repository of spec version 2",
            name=path,
            found=name,
            allowed=("regular",),
        )


def check_receipts(path: str, receipts: Sequence[ManifestReceipt], grid: NDArray[np.int64]) -> None:
    """Raise InvalidInputError for receipts that are inconsistent or exceed the grid."""
    for receipt in receipts:
        extents = np.array(receipt.extents, dtype=np.int64).reshape(len(receipt.extents), 2)
        if extents.shape != grid.shape or (extents != receipt.coords.bounds()).any():
            raise InvalidInputError(
                f"manifest {receipt.manifest_id} has extents {receipt.extents}, which do not "
                f"match its chunks or the dimensions of array {path!r}",
                name=path,
                extents=receipt.extents,
            )
        if (extents[:, 1] > grid[:, 1]).any():
            raise outside(path, tuple((extents[:, 1] - 1).tolist()), grid)
        if receipt.num_chunk_refs != receipt.coords.count or not receipt.num_chunk_refs:
            raise InvalidInputError(
                f"the receipt of manifest {receipt.manifest_id} of array {path!r} records "
                f"{receipt.num_chunk_refs} references for {receipt.coords.count} chunks; one "
                "for each and at least one is needed",
                name=path,
                found=receipt.num_chunk_refs,
                expected=receipt.coords.count,
            )
