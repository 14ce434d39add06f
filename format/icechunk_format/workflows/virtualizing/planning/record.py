"""Keeps which files a group was made of, in the repository itself: the group ``virtualized_files``.

The record is made of ordinary arrays on the dimension ``file``, so that every version has its own,
and copies, rewrites, collections and other libraries keep it. What files have in common is an
attribute of the group.

==================  ==================================================================
array               of each file
==================  ==================================================================
``location``        its URL
``size``            bytes
``etag``            entity tag of the store, or empty
``modified``        seconds since 1970, rounded up
``DIM_start``       first element along a concatenated dimension
``DIM_length``      elements along it
``DIM_keys``        JSON: the first and the last key, see ``arrange``
``group_places``    JSON: starts and lengths of groups, where they differ from those above
==================  ==================================================================
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import parse_group_metadata
from icechunk_format.dataset.reading.arrays.array_reader import ArrayReader
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.prepared import path_in
from icechunk_format.errors import FormatError
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.spec.node_path import NodePath
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.protocol import Storage
from icechunk_format.workflows.virtualizing.planning.arrange import Along, Placed
from icechunk_format.workflows.virtualizing.scanning.headers import Header
from icechunk_format.workflows.virtualizing.scanning.source_files import SourceFile

RECORD: Final = "virtualized_files"
ATTRIBUTE: Final = "virtualized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a group was made of.

    Parameters
    ----------
    dims
        The concatenated dimensions.
    new_dims
        Those of them that files do not have, and arrays got.
    model
        The header that files are compared with.
    loaded
        Arrays whose values are stored.
    spread
        Scalars of files that became arrays along the dimension.
    digests
        Of values that all files share, as hexadecimal text.
    splits
        Arrays whose chunks were cut along the first axis, and the length they were cut to.
    files
        In their places.
    """

    dims: tuple[str, ...]
    new_dims: tuple[str, ...]
    model: Header
    loaded: tuple[str, ...]
    spread: tuple[str, ...]
    digests: dict[str, str]
    splits: dict[str, int] = field(default_factory=dict)
    files: list[Placed] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return what files have in common."""
        return {
            "dims": list(self.dims),
            "new_dims": list(self.new_dims),
            "arrays": dict(self.model.arrays),
            "groups": dict(self.model.groups),
            "loaded": list(self.loaded),
            "spread": list(self.spread),
            "digests": self.digests,
            "splits": self.splits,
        }

    def columns(self) -> dict[str, tuple[str, list[Any]]]:
        """Return the data type and the values of each array of the record."""
        files = self.files
        columns: dict[str, tuple[str, list[Any]]] = {
            "location": ("string", [placed.file.url for placed in files]),
            "etag": ("string", [placed.file.etag or "" for placed in files]),
            "size": ("int64", [placed.file.size or 0 for placed in files]),
            "modified": ("int64", [placed.file.modified or 0 for placed in files]),
        }
        for axis, dim in enumerate(self.dims):
            columns[f"{dim}_start"] = ("int64", [placed.starts.own[axis] for placed in files])
            columns[f"{dim}_length"] = ("int64", [placed.lengths.own[axis] for placed in files])
            columns[f"{dim}_keys"] = (
                "string",
                [json.dumps([placed.first[axis], placed.last[axis]]) for placed in files],
            )
        if any(placed.starts.groups for placed in files):
            places = [
                {
                    group: [starts, placed.lengths.of(group)]
                    for group, starts in placed.starts.groups.items()
                }
                for placed in files
            ]
            columns["group_places"] = ("string", list(map(json.dumps, places)))
        return columns


def read_record(
    storage: Storage, snapshot: Snapshot, group: NodePath, source: ChunkSource
) -> Record | None:
    """Return the record of a group; None where it has none.

    Raises
    ------
    FormatError
        The record is damaged.
    """
    node = snapshot.node(path_in(group, RECORD))
    if node is None:
        return None
    path = str(node.path)
    attributes = parse_group_metadata(node.user_data, node_path=path).attributes
    said: Any = attributes.get(ATTRIBUTE)
    try:
        record = Record(
            dims=tuple(said["dims"]),
            new_dims=tuple(said["new_dims"]),
            model=Header(
                arrays=tuple(sorted((str(k), str(v)) for k, v in said["arrays"].items())),
                groups=tuple(sorted((str(k), str(v)) for k, v in said["groups"].items())),
            ),
            loaded=tuple(said["loaded"]),
            spread=tuple(said["spread"]),
            digests=dict(said["digests"]),
            splits=dict(said["splits"]),
        )
        columns: dict[str, NDArray[Any]] = {}
        for child in snapshot.children(node.path):
            if child.array is not None:
                variable = Variable(child)
                reader = ArrayReader(
                    storage=storage, snapshot=snapshot, variable=variable, chunk_source=source
                )
                columns[variable.name] = reader.read_box([0], list(variable.shape))
        for row in range(len(columns["location"])):
            keys = [json.loads(columns[f"{dim}_keys"][row]) for dim in record.dims]
            own = {
                key: tuple(int(columns[f"{dim}_{key}"][row]) for dim in record.dims)
                for key in ("start", "length")
            }
            places = json.loads(columns["group_places"][row]) if "group_places" in columns else {}
            lengths = {group: tuple(place[1]) for group, place in places.items()}
            record.files.append(
                Placed(
                    file=SourceFile(
                        url=str(columns["location"][row]),
                        size=int(columns["size"][row]),
                        etag=str(columns["etag"][row]) or None,
                        modified=int(columns["modified"][row]),
                    ),
                    first=tuple(key[0] for key in keys),
                    last=tuple(key[1] for key in keys),
                    lengths=Along(
                        own["length"], {g: n for g, n in lengths.items() if n != own["length"]}
                    ),
                    starts=Along(own["start"], {g: tuple(p[0]) for g, p in places.items()}),
                    is_old=True,
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FormatError(
            f"the record of files is damaged: {error}; write to another group",
            object_key=path,
            file_type="group",
            field=ATTRIBUTE,
        ) from error
    return record
