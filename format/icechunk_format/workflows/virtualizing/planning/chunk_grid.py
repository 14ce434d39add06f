"""Checks that chunks of files form one grid, and splits chunks if possible.

A Zarr array has one chunk shape, so each file but the last must consist of whole chunks. Unencoded
chunks can be split along their first axis, since a part of such a chunk is a byte range: files of
31 and of 28 days then have chunks of one day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from icechunk_format.workflows.virtualizing.planning.compare import can_split, chunk_shape_of

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.arrange import FileSpan
    from icechunk_format.workflows.virtualizing.planning.members import Member
    from icechunk_format.workflows.virtualizing.planning.record import Layout
    from icechunk_format.workflows.virtualizing.scanning.headers import Header

_COPY_IT: Final = "copy files that do not fit with copy='mismatching'"


def chunk_splits(
    layout: Layout, members: Sequence[Member], files: Sequence[FileSpan], *, is_first: bool
) -> dict[str, int]:
    """Return the arrays whose chunks are split along their first axis, with the split length.

    The first call for a group chooses the lengths. `files` are arranged.
    """
    splits: dict[str, int] = {}
    for path, document in layout.documents.items():
        if path in layout.stored or not can_split(document.raw, layout.dims):
            continue
        if not is_first:
            splits[path] = layout.splits.get(path, chunk_shape_of(document.raw)[0])
            continue
        axis = layout.dims.index((document.dimension_names or ("",))[0])
        found = [(first_chunks(m.scanned.header).get(path), m.span) for m in members]
        sizes = {size for size, span in found if size is not None and span is not None}
        lengths = {span.lengths.at(path)[axis] for _, span in found if span is not None}
        end = max((span.starts.at(path)[axis] for span in files), default=0)
        is_broken = any(
            span.lengths.at(path)[axis] % max(sizes, default=1)
            for span in files
            if span.starts.at(path)[axis] != end
        )
        # The model may be the header of a refused file, with longer chunks.
        if is_broken or len(sizes | {chunk_shape_of(document.raw)[0]}) > 1:
            splits[path] = math.gcd(*sizes, *lengths)
    return splits


def refuse_uncut(members: Sequence[Member], splits: Mapping[str, int], *, copies: bool) -> None:
    """Refuse files whose chunks cannot be split to the array's.

    With `copies`, such files are copied instead.
    """
    for path, size in splits.items():
        for member in members:
            found = first_chunks(member.scanned.header).get(path, size)
            if found % size:
                reason = f"chunks of {found} steps cannot be cut to those of {size} of the array"
                if copies:
                    member.copy(path, reason)
                else:
                    member.row.refuse(f"{reason}; {_COPY_IT}", array=path)


def refuse_misaligned(layout: Layout, files: Sequence[FileSpan], splits: Mapping[str, int]) -> None:
    """Refuse files that end within a chunk and are not the last."""
    for path, document in layout.documents.items():
        if path in layout.stored:
            continue
        chunks = chunk_shape_of(document.raw)
        for axis, dim in enumerate(document.dimension_names or ()):
            if dim not in layout.dims:
                continue
            size = splits.get(path, chunks[axis]) if axis == 0 else chunks[axis]
            number = layout.dims.index(dim)
            end = max((span.starts.at(path)[number] for span in files), default=0)
            for span in files:
                length, start = span.lengths.at(path)[number], span.starts.at(path)[number]
                if start == end or length % size == 0:
                    continue
                reason = (
                    f"has {length} steps along {dim}, which are not whole chunks of {size}: only "
                    "the last file of a Zarr array may end within a chunk"
                )
                way_out = f"call again when that file has grown to whole chunks; or {_COPY_IT}"
                if span.row is not None:
                    span.row.refuse(f"{reason}; {_COPY_IT}", array=path)
                    continue
                for after in files:
                    if after.row is not None and after.starts.at(path)[number] > start:
                        after.row.refuse(
                            f"follows a file that {reason}; {way_out}",
                            array=path,
                            other=span.file.url,
                        )


@lru_cache(maxsize=4096)
def first_chunks(header: Header) -> dict[str, int]:
    """Return the length of chunks along the first axis by array."""
    shapes = {path: chunk_shape_of(own.raw) for path, own in header.documents().items()}
    return {path: shape[0] for path, shape in shapes.items() if shape}
