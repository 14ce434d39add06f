"""Records the files of a group in its subgroup ``virtualized_files``.

The record consists of ordinary arrays on the dimension ``file``. Every snapshot therefore has its
own record, which copies, rewrites, garbage collection and other libraries preserve. The layout of
the arrays is an attribute of the group.

==================  ==================================================================
array               of each file
==================  ==================================================================
``location``        URL
``size``            bytes
``etag``            entity tag of the storage, or empty
``modified``        seconds since 1970, rounded up
DIM_start           first element along a concatenated dimension
DIM_length          number of elements along it
DIM_keys            JSON: the first and the last key, see ``arrange``
``group_places``    JSON: starts and lengths of groups, if they differ from those above
==================  ==================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath, name
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import FormatError
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import Destination, path_in
from icechunk_format.workflows.virtualizing.planning.arrange import Along, FileSpan
from icechunk_format.workflows.virtualizing.scanning.headers import (
    Header,
    bounds_of_scalars,
    coordinate_paths,
)
from icechunk_format.workflows.virtualizing.scanning.source_files import SourceFile
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_group_metadata

RECORD: Final = "virtualized_files"
ATTRIBUTE: Final = "virtualized"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Maps arrays of files to arrays of the repository: the attributes of a record."""

    dims: tuple[str, ...]
    """The concatenated dimensions, slowest first."""
    new_dims: tuple[str, ...] = ()
    """Concatenated dimensions that files do not have."""
    model: Header = field(default_factory=Header)
    """The header with which files are compared."""
    loaded: frozenset[str] = frozenset()
    """Arrays whose values are stored in the repository."""
    spread: frozenset[str] = frozenset()
    """Scalars that become arrays along the first concatenated dimension."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digests of values common to all files, in hexadecimal."""
    splits: Mapping[str, int] = field(default_factory=dict)
    """The length of split chunks along the first axis, by array."""

    @cached_property
    def documents(self) -> Mapping[str, ArrayMetadata]:
        """The arrays of the model by path."""
        return self.model.documents()

    @cached_property
    def scalars(self) -> frozenset[str]:
        """Scalars, and bounds of scalar times: in each file, they have one value of a dimension."""
        found = {path for path, document in self.documents.items() if document.ndim == 0}
        bounds = {b for b in bounds_of_scalars(self.documents) if not self.own_dims(b)}
        return frozenset(found | bounds)

    @cached_property
    def stored(self) -> frozenset[str]:
        """The arrays whose values are stored; all other arrays are references."""
        return frozenset(
            path
            for path in self.documents
            if path in self.loaded or (path in self.scalars and self.added_dims(path))
        )

    def with_documents(self, documents: Mapping[str, ArrayMetadata]) -> Layout:
        """Return the layout with replaced documents of some arrays."""
        arrays = dict(self.model.arrays)
        arrays |= {p: json.dumps(own.raw, sort_keys=True) for p, own in documents.items()}
        return replace(self, model=replace(self.model, arrays=tuple(sorted(arrays.items()))))

    def added_dims(self, path: str) -> tuple[str, ...]:
        """Return the new dimensions that are added in front of those of an array."""
        if path in self.scalars:
            name = path.rpartition("/")[2]
            if name in self.new_dims:
                return (name,)
            is_along = path in self.spread or bool(self.new_dims and self.documents[path].ndim)
            return self.dims[:1] if is_along else ()
        is_data = path not in coordinate_paths(self.documents)
        has_own = bool(self.own_dims(path))
        is_concatenated = has_own or not (set(self.dims) - set(self.new_dims))
        return self.new_dims if is_data and is_concatenated else ()

    def own_dims(self, path: str) -> tuple[str, ...]:
        """Return the concatenated dimensions that an array has in files."""
        return tuple(d for d in self.documents[path].dimension_names or () if d in self.dims)

    def to_json(self) -> dict[str, Any]:
        """Return the layout as the attribute of a record."""
        return {
            "dims": list(self.dims),
            "new_dims": list(self.new_dims),
            "arrays": dict(self.model.arrays),
            "groups": dict(self.model.groups),
            "loaded": sorted(self.loaded),
            "spread": sorted(self.spread),
            "digests": dict(self.digests),
            "splits": dict(self.splits),
        }


def _parse_layout(given: Any) -> Layout:
    """Parse the result of ``to_json``; raises KeyError, TypeError, ValueError or AttributeError."""
    return Layout(
        dims=tuple(given["dims"]),
        new_dims=tuple(given["new_dims"]),
        model=Header(arrays=_sorted_pairs(given["arrays"]), groups=_sorted_pairs(given["groups"])),
        loaded=frozenset(given["loaded"]),
        spread=frozenset(given["spread"]),
        digests=dict(given["digests"]),
        splits=dict(given["splits"]),
    )


def _sorted_pairs(given: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(k), str(v)) for k, v in given.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The files of a group, sorted by start, and their layout."""

    layout: Layout
    files: list[FileSpan] = field(default_factory=list)

    def columns(self) -> dict[str, tuple[str, list[Any]]]:
        """Return the data type and the values of each array of the record."""
        files = self.files
        columns: dict[str, tuple[str, list[Any]]] = {
            "location": ("string", [span.file.url for span in files]),
            "etag": ("string", [span.file.etag or "" for span in files]),
            "size": ("int64", [span.file.size or 0 for span in files]),
            "modified": ("int64", [span.file.modified or 0 for span in files]),
        }
        for axis, dim in enumerate(self.layout.dims):
            columns[f"{dim}_start"] = ("int64", [span.starts.own[axis] for span in files])
            columns[f"{dim}_length"] = ("int64", [span.lengths.own[axis] for span in files])
            columns[f"{dim}_keys"] = (
                "string",
                [json.dumps([span.first[axis], span.last[axis]]) for span in files],
            )
        if any(span.starts.groups for span in files):
            groups = [
                {
                    group: [starts, span.lengths.of(group)]
                    for group, starts in span.starts.groups.items()
                }
                for span in files
            ]
            columns["group_places"] = ("string", list(map(json.dumps, groups)))
        return columns


def read_record(destination: Destination, snapshot: Snapshot, group: NodePath) -> Record | None:
    """Return the record of a group; None if the group has no record."""
    node = snapshot.node(path_in(group, RECORD))
    if node is None:
        return None
    path = str(node.path)
    attributes = parse_group_metadata(node.user_data, node_path=path).attributes
    try:
        layout = _parse_layout(attributes.get(ATTRIBUTE))
        columns: dict[str, NDArray[Any]] = {}
        for child in snapshot.children(node.path):
            if child.array is not None:
                columns[name(child.path)] = destination.reader(snapshot, Variable(child)).read_all()
        rows = range(len(columns["location"]))
        return Record(layout=layout, files=[_file_span(layout.dims, columns, row) for row in rows])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FormatError(
            f"the record of files is damaged: {error}; write to another group",
            object_key=path,
            file_type="group",
            field=ATTRIBUTE,
        ) from error


def _file_span(dims: Sequence[str], columns: Mapping[str, NDArray[Any]], row: int) -> FileSpan:
    def integers(kind: str) -> tuple[int, ...]:
        return tuple(int(columns[f"{dim}_{kind}"][row]) for dim in dims)

    keys = [json.loads(columns[f"{dim}_keys"][row]) for dim in dims]
    groups = json.loads(columns["group_places"][row]) if "group_places" in columns else {}
    own = integers("length")
    lengths = {group: tuple(length) for group, (_, length) in groups.items()}
    return FileSpan(
        file=SourceFile(
            url=str(columns["location"][row]),
            size=int(columns["size"][row]),
            etag=str(columns["etag"][row]) or None,
            modified=int(columns["modified"][row]),
        ),
        first=tuple(key[0] for key in keys),
        last=tuple(key[1] for key in keys),
        lengths=Along(own, {group: n for group, n in lengths.items() if n != own}),
        starts=Along(integers("start"), {g: tuple(start) for g, (start, _) in groups.items()}),
    )
