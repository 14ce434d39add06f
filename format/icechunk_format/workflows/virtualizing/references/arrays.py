"""Plans the arrays of the repository, with their values or references.

Long because stored, copied and referenced arrays are planned by one class, from the same model.

Rules of this file
------------------
1. Values of stored arrays are assembled on the driver, from small values that the scan returned.
   References of other arrays never pass through the driver.
2. If known files move to other starts, their arrays are replaced, reusing references of the base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import ArrayTarget, ChunkValues, Destination, path_in
from icechunk_format.workflows.virtualizing.copying.plan import (
    CopiedParts,
    is_aligned,
)
from icechunk_format.workflows.virtualizing.copying.run import CopySource
from icechunk_format.workflows.virtualizing.planning.chunk_grid import first_chunks
from icechunk_format.workflows.virtualizing.planning.compare import chunk_shape_of
from icechunk_format.workflows.virtualizing.planning.times import converted_times
from icechunk_format.workflows.virtualizing.references.manifests import MovedBox
from icechunk_format.workflows.virtualizing.references.tasks import PlannedArray, Segment
from icechunk_format.workflows.virtualizing.report import REFRESHED
from icechunk_format.zarr.codecs.build import default_codecs
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import differs
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.arrange import Along
    from icechunk_format.workflows.virtualizing.planning.copies import Copying
    from icechunk_format.workflows.virtualizing.planning.members import ArchivePlan, Member
    from icechunk_format.workflows.virtualizing.scanning.scan import StagedArray

# Chunk length of stored coordinates: with the chunks of files, each file would add a chunk.
_STORED_CHUNK: Final = 8_192
_DATES: Final = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True, kw_only=True)
class ArraysPlanner:
    """Plans the arrays of a call."""

    plan: ArchivePlan
    snapshot: Snapshot | None
    """The base; None for a new repository."""
    group: NodePath
    """The group of the arrays."""
    destination: Destination
    dates: frozenset[str] = frozenset()
    """Dimensions whose keys are dates in file names."""
    copying: Copying | None = None

    def arrays(self) -> list[PlannedArray]:
        """Return the arrays that the call creates or changes."""
        if not self.plan.taken:
            return []
        found = [self._array(path) for path in self.plan.layout.documents]
        found += [self._coordinate(axis) for axis in self._named_axes()]
        return [array for array in found if array is not None]

    def groups(self) -> dict[str, dict[str, Any] | None]:
        """Return the attributes of groups by path; None keeps those of an existing group."""
        model, found = self.plan.layout.model, {}
        for path, string in model.groups:
            attributes = {**json.loads(string), **model.volatile.get(f"{path}/", {})}
            found[path_in(self.group, path) if path else self.group] = attributes or None
        return found

    # -- one array --------------------------------------------------------------------------

    def _array(self, path: str) -> PlannedArray | None:
        layout = self.plan.layout
        document = layout.documents[path]
        added, own = layout.added_dims(path), layout.own_dims(path)
        is_moved = self._is_moved(path, added + own)
        variable = self._existing(path)
        if variable is not None and not added and not own:
            return None
        metadata = self._metadata(path, document, added)
        is_stored = path in layout.stored
        is_kept = variable is not None and variable.metadata.data_type == metadata.data_type
        is_kept &= is_stored or not is_moved
        is_kept &= variable is None or variable.metadata.ndim == metadata.ndim
        planned = _planned(metadata, variable if is_kept else None)
        if is_stored:
            self._store(planned, path, added, own, variable)
        else:
            self._refer(planned, path, added, own, is_moved and variable is not None)
        return planned

    def _existing(self, path: str) -> Variable | None:
        node = None
        if self.snapshot is not None:
            node = self.snapshot.node(path_in(self.group, path))
        return None if node is None or node.array is None else Variable(node)

    def _is_moved(self, path: str, dims: Sequence[str]) -> bool:
        axes = [self.plan.layout.dims.index(dim) for dim in dims]
        old = self.plan.old_starts
        return any(
            any(span.starts.at(path)[a] != old[span.file.url].at(path)[a] for a in axes)
            for span in self.plan.files
            if span.file.url in old
        )

    def _size(self, path: str, dim: str) -> int:
        return self.plan.sizes.at(path)[self.plan.layout.dims.index(dim)]

    def _metadata(self, path: str, document: ArrayMetadata, added: Sequence[str]) -> ArrayMetadata:
        layout = self.plan.layout
        raw = dict(document.raw)
        attributes = {**document.attributes, **layout.model.volatile.get(path, {})}
        names = list(document.dimension_names or [None] * document.ndim)
        shape = [
            self._size(path, name) if name in layout.dims else size
            for name, size in zip(names, document.shape, strict=True)
        ]
        chunks = list(chunk_shape_of(raw))
        if path in layout.splits:
            chunks[0] = layout.splits[path]
        codecs = raw["codecs"]
        if path in layout.stored:
            chunks = [
                _STORED_CHUNK if name in layout.dims else max(1, size)
                for name, size in zip(names, shape, strict=True)
            ]
            codecs = default_codecs(document.data_type)
        if added:
            shape = [self._size(path, dim) for dim in added] + shape
            first = _STORED_CHUNK if path in layout.stored else 1
            chunks = [first] * len(added) + chunks
            names = [*added, *names]
            codecs = [_deeper(codec, len(added), path) for codec in codecs]
        raw |= {
            "shape": shape,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "codecs": codecs,
            "attributes": attributes,
            "dimension_names": names,
        }
        return parse_array_metadata(dump_document(raw), node_path=path_in(self.group, path))

    # -- values -----------------------------------------------------------------------------

    def _store(
        self,
        planned: PlannedArray,
        path: str,
        added: Sequence[str],
        own: Sequence[str],
        variable: Variable | None,
    ) -> None:
        metadata = planned.target.metadata
        values = metadata.fill_array(metadata.shape)
        dims = self.plan.layout.dims
        names = metadata.dimension_names or ()
        axes = {names.index(dim): dims.index(dim) for dim in (*added, *own)}

        def part(start: Along, length: Along) -> tuple[slice, ...]:
            starts, lengths = start.at(path), length.at(path)
            box = [slice(None)] * metadata.ndim
            for axis, number in axes.items():
                box[axis] = slice(starts[number], starts[number] + lengths[number])
            return tuple(box)

        before = None
        if variable is not None:
            before = self.destination.open_base().reader(variable.path).read_all()
            if before.ndim < metadata.ndim:  # bounds that had no dimension of files yet
                before = np.broadcast_to(before, metadata.shape)
        for span in self.plan.files:
            if before is None or span.row is not None:
                continue
            was, now = self.plan.old_starts[span.file.url], span.starts
            values[part(now, span.lengths)] = before[part(was, span.lengths)]
        for member in self.plan.taken:
            assert member.span is not None
            found = self._values_of(member, path)
            box = part(member.span.starts, member.span.lengths)
            is_scalar = bool(added) and not self.plan.layout.documents[path].ndim
            values[box] = found.reshape(()) if is_scalar else found
        first = 0
        if before is not None and planned.target.old_shape is not None:
            first = _first_change(before, values)
        if values.shape[:1] != (first,):  # else nothing changed
            planned.values = ChunkValues.changed(metadata, values, first)

    def _values_of(self, member: Member, path: str) -> NDArray[Any]:
        """Return the values of a file, in the units and the data type of the array."""
        values = member.scanned.values[path]
        wanted = self.plan.layout.model.times().get(path)
        if wanted is None:
            return values
        own = member.scanned.header.times()[path]
        return converted_times(values, own, wanted, path)

    def _named_axes(self) -> list[int]:
        """Return the axes of new dimensions without a coordinate in files; keys become labels."""
        layout = self.plan.layout
        return [
            axis
            for axis, dim in enumerate(layout.dims)
            if dim in layout.new_dims
            and dim not in layout.documents
            and not all(type(span.first[axis]) is float for span in self.plan.files)
        ]

    def _coordinate(self, axis: int) -> PlannedArray:
        dim = self.plan.layout.dims[axis]
        keys = {span.starts.own[axis]: span.first[axis] for span in self.plan.files}
        is_string = all(isinstance(key, str) for key in keys.values())
        attributes: Mapping[str, Any] = _DATES if dim in self.dates else {}
        variable = self._existing(dim)
        if variable is not None and bool(attributes) != ("units" in variable.attributes):
            raise InvalidInputError(
                f"the coordinate {dim!r} of the repository holds "
                f"{'numbers, and names now give dates' if attributes else 'dates'}: give the "
                "template= that made it, or another group with group=",
                option="template",
                variable=dim,
            )
        metadata = build_array_metadata(
            shape=[len(keys)],
            data_type=parse_data_type("string" if is_string else "int64"),
            chunk_shape=[_STORED_CHUNK],
            dimension_names=[dim],
            attributes=attributes,
            node_path=path_in(self.group, dim),
        )
        planned = _planned(metadata, variable)
        metadata = planned.target.metadata
        values = metadata.fill_array(metadata.shape)
        for start, key in keys.items():
            values[start] = key
        planned.values = ChunkValues.changed(metadata, values, 0)
        return planned

    # -- references -------------------------------------------------------------------------

    def _refer(
        self,
        planned: PlannedArray,
        path: str,
        added: Sequence[str],
        own: Sequence[str],
        is_rebuilt: bool,
    ) -> None:
        layout = self.plan.layout
        metadata = planned.target.metadata
        names = metadata.dimension_names or ()
        concatenated = (*added, *own)
        axes = [names.index(dim) for dim in concatenated]
        numbers = [layout.dims.index(dim) for dim in concatenated]
        chunk = metadata.grid.chunk_shape or metadata.shape
        taken = {member.scanned.file.url: member for member in self.plan.taken}
        like = layout.model.times().get(path) or layout.documents[path]
        parts = CopiedParts(
            axes=axes,
            decoded_like=like,
            may_round=self.copying is not None and self.copying.rounds(path),
        )
        ends = [max((s.starts.at(path)[n] for s in self.plan.files), default=0) for n in numbers]
        for span in self.plan.files:
            indices, lengths = span.starts.at(path), span.lengths.at(path)
            starts = tuple(indices[n] for n in numbers)
            if starts in parts.sources:
                continue
            member, was = taken.get(span.file.url), self.plan.old_starts.get(span.file.url)
            lower, upper = [0] * metadata.ndim, list(metadata.shape)
            before, is_apart = [0] * metadata.ndim, True
            for axis, number, end in zip(axes, numbers, ends, strict=True):
                start, length = indices[number], lengths[number]
                lower[axis], upper[axis] = start, start + length
                before[axis] = start if was is None else was.at(path)[number]
                is_apart &= is_aligned(start, length, chunk[axis], is_last=start == end)
                is_apart &= member is not None or before[axis] % chunk[axis] == 0
            box = tuple(lower), tuple(upper)
            staged = None if member is None else member.scanned.staged(path)
            parts.sources[starts] = CopySource(
                lower=box[0],
                upper=box[1],
                file=staged,
                moved_from=tuple(before) if member is None else (),
            )
            shift = np.floor_divide(lower, chunk)
            if member is not None and staged and is_apart and path not in member.copied:
                if staged.count:
                    segment = self._segment(path, member, staged, starts, tuple(shift.tolist()))
                    member.row.references += segment.count
                    planned.segments.append(segment)
                if member.row.status == REFRESHED and not is_rebuilt:
                    planned.clear(box)
            elif member is not None:
                member.copy(path, "it shares chunks with other files")
                parts.copied.append(box)
            elif is_rebuilt and is_apart:
                moved = shift - np.floor_divide(before, chunk)
                first, last = np.subtract(metadata.grid.chunks_of_box(*box), moved)
                moved_box = MovedBox(
                    path=metadata.node_path,
                    lower=tuple(first.tolist()),
                    upper=tuple(last.tolist()),
                    shift=tuple(moved.tolist()),
                )
                volume = int(np.prod(last - first))
                planned.segments.append(Segment(starts=starts, count=volume, box=moved_box))
            elif is_rebuilt:
                parts.copied.append(box)
        if parts.copied:
            planned.copies = parts
            for box in () if is_rebuilt else parts.boxes(metadata):
                planned.clear(box)

    def _segment(
        self,
        path: str,
        member: Member,
        staged: StagedArray,
        starts: tuple[int, ...],
        shift: tuple[int, ...],
    ) -> Segment:
        """Return the references of a file, split if the array's chunks are."""
        segment = Segment(starts=starts, count=staged.count, staged=staged, shift=shift)
        if (length := self.plan.layout.splits.get(path)) is not None:
            size = first_chunks(member.scanned.header)[path]
            segment.parts = size // length
            [dim, *_] = self.plan.layout.own_dims(path)
            assert member.span is not None
            steps = member.span.lengths.at(path)[self.plan.layout.dims.index(dim)]
            segment.along = -(-steps // length)
            # The last chunk may have fewer parts.
            fewer = -(-steps // size) * segment.parts - segment.along
            segment.count = staged.count * segment.parts - staged.last * fewer
        return segment


def _planned(metadata: ArrayMetadata, variable: Variable | None) -> PlannedArray:
    """Return a planned array without values; `variable` is the array that it extends."""
    if variable is None:
        target = ArrayTarget.of_new(metadata)
    else:
        target = ArrayTarget.of_existing(variable, variable.metadata.with_shape(metadata.shape))
    # Messages name the path, since groups may have arrays of the same name.
    return PlannedArray(target=replace(target, name=target.path))


def _first_change(before: NDArray[Any], values: NDArray[Any]) -> int:
    """Return the first index along the first axis at which values are new or differ."""
    if before.shape[1:] != values.shape[1:]:
        return 0
    count = min(len(before), len(values))
    mask = differs(values[:count], before[:count]).any(axis=tuple(range(1, values.ndim)))
    return int(np.argmax(np.append(mask, True)))


def _deeper(codec: Mapping[str, Any], added: int, path: str) -> Mapping[str, Any]:
    """Adapt a codec to chunks with added leading dimensions of length one."""
    settings = dict(codec.get("configuration") or {})
    if codec["name"] == "transpose":
        settings["order"] = [*range(added), *(added + n for n in settings["order"])]
        return {**codec, "configuration": settings}
    if codec["name"] == "sharding_indexed":
        raise InvalidInputError(
            f"array {path!r} is sharded, and cannot get a new dimension; concatenate along one "
            "that it has",
            variable=path,
        )
    return codec
