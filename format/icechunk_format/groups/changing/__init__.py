"""Changes arrays of a group: stores chunks in tasks, and commits them with their documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.groups.changing.clearing import chunks_before, emptied
    from icechunk_format.groups.changing.commit import (
        ArraysCommit,
        check_planned_lengths,
        commit_arrays,
        with_own_attributes,
    )
    from icechunk_format.groups.changing.containers import check_prefix, outside_of, prefixes_of
    from icechunk_format.groups.changing.destination import find_base, open_destination
    from icechunk_format.groups.changing.reference_rows import references
    from icechunk_format.groups.changing.result import WriteResult
    from icechunk_format.groups.changing.shortened import has_expired
    from icechunk_format.groups.changing.storing import (
        ChunkValues,
        TaskFiles,
        encoded_chunks,
        index_of_box,
    )
    from icechunk_format.groups.changing.targets import (
        ArrayTarget,
        Destination,
        TaskReceipt,
        path_in,
    )

__all__ = [
    "ArrayTarget",
    "ArraysCommit",
    "ChunkValues",
    "Destination",
    "TaskFiles",
    "TaskReceipt",
    "WriteResult",
    "check_planned_lengths",
    "check_prefix",
    "chunks_before",
    "commit_arrays",
    "emptied",
    "encoded_chunks",
    "find_base",
    "has_expired",
    "index_of_box",
    "open_destination",
    "outside_of",
    "path_in",
    "prefixes_of",
    "references",
    "with_own_attributes",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".commit": [
            "ArraysCommit",
            "check_planned_lengths",
            "commit_arrays",
            "with_own_attributes",
        ],
        ".clearing": ["chunks_before", "emptied"],
        ".containers": ["check_prefix", "outside_of", "prefixes_of"],
        ".destination": ["find_base", "open_destination"],
        ".reference_rows": ["references"],
        ".result": ["WriteResult"],
        ".shortened": ["has_expired"],
        ".storing": ["ChunkValues", "TaskFiles", "encoded_chunks", "index_of_box"],
        ".targets": ["ArrayTarget", "Destination", "TaskReceipt", "path_in"],
    },
)
