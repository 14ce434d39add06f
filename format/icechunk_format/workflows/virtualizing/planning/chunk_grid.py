"""Checks that chunks of files make one grid, and cuts chunks where that is possible.

A Zarr array has one chunk shape, so that each file but the last has to consist of whole chunks.
Chunks of arrays that are not encoded can be cut along their first axis, since a part of such a
chunk is a range of its bytes: months of 31 and of 28 days then have chunks of one day.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icechunk_format.workflows.virtualizing.planning.compare import can_split

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.arrange import Placed
    from icechunk_format.workflows.virtualizing.planning.members import Layout, Member
    from icechunk_format.workflows.virtualizing.planning.record import Record
    from icechunk_format.workflows.virtualizing.scanning.headers import Header


def chunk_splits(
    layout: Layout, members: Sequence[Member], headers: Sequence[Header], record: Record | None
) -> dict[str, int]:
    """Return arrays whose chunks are cut along their first axis, with the length to cut to."""
    splits: dict[str, int] = {}
    for path, document in layout.documents.items():
        if layout.is_stored(path) or not can_split(document.raw, layout.dims):
            continue
        if record is not None:
            splits[path] = record.splits.get(path, chunk_shape_of(document.raw)[0])
            continue
        axis = layout.dims.index((document.dimension_names or ("",))[0])
        own = {number: _first_chunks(header).get(path) for number, header in enumerate(headers)}
        found = [(own[m.scanned.header], m.placed) for m in members]
        sizes = {size for size, placed in found if size is not None and placed is not None}
        lengths = {placed.lengths.at(path)[axis] for _, placed in found if placed is not None}
        broken = {n for n in lengths if n % max(sizes, default=1)}
        if len(sizes) > 1 or len(broken) > 1:
            splits[path] = math.gcd(*sizes, *lengths)
    return splits


def refuse_uncut(
    members: Sequence[Member], headers: Sequence[Header], splits: Mapping[str, int]
) -> bool:
    """Refuse files whose chunks do not consist of those of the array; whether there were any."""
    firsts = [_first_chunks(header) for header in headers]
    is_found = False
    for path, size in splits.items():
        for member in members:
            found = firsts[member.scanned.header].get(path, size)
            if found % size:
                is_found = True
                member.row.refuse(
                    f"its chunks of {found} steps cannot be cut to those of {size} that the array "
                    "has",
                    array=path,
                )
    return is_found


def refuse_misaligned(
    layout: Layout,
    files: Sequence[Placed],
    members: Sequence[Member],
    splits: Mapping[str, int],
) -> bool:
    """Refuse files that end within a chunk and are not the last; whether there were any."""
    of_placed = {id(member.placed): member for member in members}
    is_found = False
    for path, document in layout.documents.items():
        if layout.is_stored(path):
            continue
        chunks = chunk_shape_of(document.raw)
        for axis, dim in enumerate(document.dimension_names or ()):
            if dim not in layout.dims:
                continue
            size = splits.get(path, chunks[axis]) if axis == 0 else chunks[axis]
            number = layout.dims.index(dim)
            end = max((placed.starts.at(path)[number] for placed in files), default=0)
            for placed in files:
                length, start = placed.lengths.at(path)[number], placed.starts.at(path)[number]
                if start == end or length % size == 0:
                    continue
                text = (
                    f"has {length} steps along {dim}, which are no whole chunks of {size}: only "
                    "the last file of a Zarr array may end within a chunk"
                )
                way_out = (
                    "call again when that file has grown to whole chunks, which is noticed; or "
                    "give all files but that one to another group with group="
                )
                if not placed.is_old:
                    of_placed[id(placed)].row.refuse(text, array=path)
                    is_found = True
                    continue
                for after in files:
                    member = of_placed.get(id(after))
                    if member is not None and after.starts.at(path)[number] > start:
                        member.row.refuse(
                            f"follows a file that {text}; {way_out}",
                            array=path,
                            other=placed.file.url,
                        )
                        is_found = True
    return is_found


def chunk_shape_of(document: Mapping[str, Any]) -> list[int]:
    """Return the chunk shape of a ``zarr.json``."""
    chunks: list[int] = document["chunk_grid"]["configuration"]["chunk_shape"]
    return chunks


def _first_chunks(header: Header) -> dict[str, int]:
    """Return the length of chunks along the first axis, by array."""
    shapes = {path: chunk_shape_of(json.loads(text)) for path, text in header.arrays}
    return {path: shape[0] for path, shape in shapes.items() if shape}
