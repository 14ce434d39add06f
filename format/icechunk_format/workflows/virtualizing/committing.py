"""Makes the commit of a ``virtualize`` call: groups, arrays, references and record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import coords_of_boxes
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import (
    ArraysCommit,
    ArrayTarget,
    ChunkValues,
    Destination,
    path_in,
    with_own_attributes,
)
from icechunk_format.options.write import WriteOptions
from icechunk_format.workflows.virtualizing.planning.record import ATTRIBUTE, RECORD, Record
from icechunk_format.workflows.virtualizing.references.tasks import PlannedArray
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata

_FILES_PER_CHUNK: Final = 10_000


def check_consent(wanted: set[str], covered: set[str], containers: bool) -> None:
    """Raise InvalidInputError if a prefix needs a container and containers must not be added."""
    missing = sorted(wanted - covered)
    if missing and not containers:
        raise InvalidInputError(
            f"containers=False, and no virtual chunk container of the repository covers "
            f"{missing[0]}: readers could not fetch the chunks. Add a container to the "
            "configuration, or leave containers=False out",
            option="containers",
            place=missing[0],
        )


def archive_commit(
    destination: Destination,
    options: WriteOptions,
    base: Snapshot | None,
    *,
    group: NodePath,
    groups: Mapping[str, Mapping[str, Any] | None],
    arrays: Sequence[PlannedArray],
    record: Record,
    message: str,
) -> ArraysCommit:
    """Return the commit of the planned arrays and of the record; `base` is its base."""
    path = path_in(group, RECORD)
    described = {
        "description": "Files that the arrays of this group were made of; see virtualize",
        ATTRIBUTE: record.layout.to_json(),
    }
    arrays = [*arrays, *_record_arrays(record, base, path)]
    written = [array.target.path for array in arrays]
    own = {
        name: None if found is None else with_own_attributes(base, name, found, written)
        for name, found in groups.items()
    }
    boxes = {array.target.path: np.array(array.cleared, np.int64) for array in arrays}
    return ArraysCommit(
        destination=destination,
        options=options,
        arrays=[array.target for array in arrays],
        groups={**own, path: described},
        values=[array.values for array in arrays if array.values is not None],
        cleared={
            path: coords_of_boxes(edges.transpose(0, 2, 1)).astype(np.int64)
            for path, edges in boxes.items()
            if len(edges)
        },
        message=message,
    )


def _record_arrays(record: Record, base: Snapshot | None, group: str) -> Iterator[PlannedArray]:
    """Yield the arrays of a record, which replace all values."""
    for name, (kind, values) in record.columns().items():
        metadata = build_array_metadata(
            shape=[len(values)],
            data_type=parse_data_type(kind),
            chunk_shape=[_FILES_PER_CHUNK],
            dimension_names=["file"],
            node_path=f"{group}/{name}",
        )
        node = None if base is None else base.node(metadata.node_path)
        yield PlannedArray(
            target=ArrayTarget.of_new(metadata)
            if node is None
            else ArrayTarget.of_existing(Variable(node), metadata),
            values=ChunkValues(
                metadata=metadata, start=0, values=np.array(values, metadata.data_type.numpy)
            ),
        )
