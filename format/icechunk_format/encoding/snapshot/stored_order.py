"""Finds lists in metadata files that violate the order of the format.

Decoders here sort such lists. Other clients use binary search and miss entries out of order, so
`verify` checks the stored order.

Rules of this file
------------------
1. The caller has decoded the payload, which detects damage. Each function uses the same reader as
   the decoder, since another would refuse bytes that the decoder ignores.
2. Results are names of lists, for messages, in the order of the schema.

Specification: the MUST-be-sorted notes of ``repo.fbs``, ``snapshot.fbs``, ``manifest.fbs`` and
``transaction_log.fbs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import CHUNK_ID_SIZE
from icechunk_format.encoding.manifest.decode import ARRAY_MANIFEST, CHUNK_REF, MANIFEST
from icechunk_format.encoding.repo_info.file import REPO
from icechunk_format.encoding.repo_info.lists import REF
from icechunk_format.encoding.repo_info.stored_snapshots import SNAPSHOT_INFO
from icechunk_format.encoding.snapshot.decode_nodes import NODE_SNAPSHOT
from icechunk_format.encoding.snapshot.file import SNAPSHOT
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_FILE
from icechunk_format.encoding.tables.bulk_reader import VectorReader
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.transaction_log import (
    NODE_LISTS,
    TRANSACTION_LOG,
    UPDATED_CHUNKS,
    read_node_list,
)
from icechunk_format.grid.coordinates import is_sorted, sorting_rows

_PAYLOADS = ("chunk_id", "compressed_location", "location", "inline")


def unsorted_in_repo(payload: bytes, *, object_key: str) -> list[str]:
    """Return the lists of a repo info file that are out of order."""
    root = read_root(payload, REPO, object_key=object_key, file_type="repo info")
    lists: dict[str, Iterable[Any]] = {
        "tags": [table.string("name").encode() for table in root.children("tags", REF)],
        "branches": [table.string("name").encode() for table in root.children("branches", REF)],
        "deleted_tags": [name.encode() for name in root.strings("deleted_tags")],
        "snapshots": [table.raw_id("id") for table in root.children("snapshots", SNAPSHOT_INFO)],
    }
    for name in ("enabled_feature_flags", "disabled_feature_flags"):
        flags = root.optional_records(name, "<u2")
        lists[name] = () if flags is None else flags.tolist()
    return _unsorted(lists)


def unsorted_in_snapshot(payload: bytes, *, object_key: str) -> list[str]:
    """Return the lists of a snapshot file that are out of order; equal items are in order."""
    root = read_root(payload, SNAPSHOT, object_key=object_key, file_type="snapshot")
    lists: dict[str, Iterable[Any]] = {
        "nodes": [table.blob("path") for table in root.children("nodes", NODE_SNAPSHOT)]
    }
    files = root.optional_children("manifest_files_v2", MANIFEST_FILE)
    if files is not None:
        lists["manifest_files_v2"] = [table.raw_id("id") for table in files]
    else:
        records = root.records("manifest_files", "V32")
        lists["manifest_files"] = [record.tobytes()[:CHUNK_ID_SIZE] for record in records]
    return _unsorted(lists)


def unsorted_in_transaction_log(payload: bytes, *, object_key: str) -> list[str]:
    """Return the lists of node ids of a transaction log that are out of order."""
    reader = VectorReader(payload, object_key=object_key, file_type="transaction log")
    root = reader.root(TRANSACTION_LOG, "transaction_log")
    lists: dict[str, Iterable[Any]] = {
        name: read_node_list(reader, root, name) for name in NODE_LISTS
    }
    (arrays,) = root.table_vectors("updated_chunks", UPDATED_CHUNKS)
    lists["updated_chunks"] = NodeId.many(arrays.column("node_id").tobytes())
    return _unsorted(lists)


def _unsorted(lists: dict[str, Iterable[Any]]) -> list[str]:
    return [
        name
        for name, items in lists.items()
        if any(left > right for left, right in pairwise(items))
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRefs:
    """The order of the references of one array in a manifest.

    Parameters
    ----------
    is_sorted
        True if coordinates ascend; equal neighbours are allowed.
    repeated
        Coordinates of references after the first with the same coordinate.
    ambiguous
        Coordinates of references with more than one payload.
    """

    node_id: NodeId
    is_sorted: bool
    repeated: NDArray[np.uint32]
    ambiguous: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredManifest:
    """The order of arrays and of references in a manifest."""

    is_sorted: bool
    arrays: tuple[StoredRefs, ...]


def stored_manifest(payload: bytes, *, object_key: str) -> StoredManifest:
    """Return the order of references in the decompressed flatbuffer of a manifest."""
    reader = VectorReader(payload, object_key=object_key, file_type="manifest")
    (arrays,) = reader.root(MANIFEST, "manifest").table_vectors("arrays", ARRAY_MANIFEST)
    node_ids = NodeId.many(arrays.column("node_id").tobytes())
    found = []
    for node_id, tables in zip(node_ids, arrays.table_vectors("refs", CHUNK_REF), strict=True):
        payloads = np.zeros(len(tables), dtype=np.uint8)
        for name in _PAYLOADS:
            payloads += tables.has(name)
        coords = tables.coordinates("index")
        repeated, ascends = coords[:0], is_sorted(coords)
        if not ascends:
            repeated, ascends = _repeated(coords), _ascends(coords)
        found.append(
            StoredRefs(
                node_id=node_id,
                is_sorted=ascends,
                repeated=repeated,
                ambiguous=coords[payloads > 1],
            )
        )
    in_order = all(left < right for left, right in pairwise(node_ids))
    return StoredManifest(is_sorted=in_order, arrays=tuple(found))


def _repeated(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
    is_repeated = np.ones(len(coords), dtype=np.bool_)
    is_repeated[sorting_rows(coords)] = False
    return coords[is_repeated]


def _ascends(coords: NDArray[np.uint32]) -> bool:
    """Return True if rows never descend."""
    is_new = np.ones(len(coords), dtype=np.bool_)
    is_new[1:] = (coords[1:] != coords[:-1]).any(axis=1)
    return is_sorted(coords[is_new])
