"""Joins the metadata documents of a node that both sides of a merge changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.errors import NotFoundError
from icechunk_format.groups import Variable
from icechunk_format.repository.changes import metadata_of, same_meaning
from icechunk_format.repository.files import load_snapshot
from icechunk_format.storage.protocol import Storage
from icechunk_format.workflows.merging.sides import CannotMerge
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

# Limit for the snapshots of the target that are read to find an attribute that was changed back.
_MOST_STATES: Final = 1_000


def joined_metadata(
    base: NodeSnapshot, source: NodeSnapshot, target: NodeSnapshot
) -> NodeSnapshot | None:
    """Return a node with the metadata that each side changed; None if both changed the same.

    The rest of a document, such as the shape, may change on one side if attributes keep the meaning
    of values.
    """
    if metadata_of(base) == metadata_of(target):
        return source
    try:
        documents = [json.loads(node.user_data) for node in (base, source, target)]
        attributes = [dict(document.pop("attributes", None) or {}) for document in documents]
    except (ValueError, AttributeError, TypeError):
        return None  # A damaged document is left as it is.
    was, ours, theirs = documents
    joined = joined_attributes(*attributes)
    if joined is None or (ours != was and theirs not in (was, ours)):
        return None
    keeps = same_meaning(base, source) and same_meaning(base, target)
    if not (ours == was == theirs or keeps):
        return None
    if ours in (was, theirs) and joined == attributes[2]:
        return replace(target, path=source.path)
    rest, node = (theirs, target) if ours == was else (ours, source)
    data = json.dumps({**rest, "attributes": joined}, indent=2).encode()
    return replace(node, path=source.path, user_data=data)


def joined_attributes(
    base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the attributes of both sides; None if both changed one differently."""
    pairs = [{(k, json.dumps(v)) for k, v in side.items()} for side in (base, ours, theirs)]
    mine, others, apart = ({k for k, _ in one ^ two} for one, two in combinations(pairs, 2))
    if mine & others & apart:
        return None
    kept = {k: v for k, v in theirs.items() if k not in mine}
    return kept | {k: v for k, v in ours.items() if k in mine}


def merged_document(base: Variable, source: Variable, target: Variable) -> ArrayMetadata:
    """Return the target's document, with the source's attributes if only the source changed them.

    Raises
    ------
    CannotMerge
        Both sides changed an attribute, or one side changed the meaning of stored values.
    """
    was, ours, theirs = (each.attributes for each in (base, source, target))
    if not (same_meaning(base.node, source.node) and same_meaning(base.node, target.node)):
        raise CannotMerge
    joined = joined_attributes(was, ours, theirs)
    if joined is None:
        raise CannotMerge
    if joined == theirs:
        return target.metadata
    document = {**target.metadata.raw, "attributes": joined}
    return parse_array_metadata(dump_document(document), node_path=target.node.path)


def was_changed_back(
    storage: Storage,
    node_id: NodeId,
    sides: tuple[NodeSnapshot, NodeSnapshot, NodeSnapshot],
    states: Iterable[SnapshotId],
) -> bool:
    """Return True if the target may have changed back an attribute that the source changed.

    The target then merged or set the attribute before, so that its value is a decision as well.
    ``sides`` are the node in the common snapshot, the source and the target, and ``states`` the
    snapshots in which the target changed it.
    """
    base, source, target = map(_attributes_of, sides)
    keys = {
        key
        for key in {*base, *source}
        if base.get(key) != source.get(key) and base.get(key) == target.get(key)
    }
    for number, snapshot_id in enumerate(states if keys else ()):
        try:
            node = load_snapshot(storage, snapshot_id).nodes.with_id(node_id)
        except NotFoundError:
            return True  # The snapshot expired, and was collected.
        found = {} if node is None else _attributes_of(node)
        if number >= _MOST_STATES or any(found.get(key) != base.get(key) for key in keys):
            return True
    return False


def _attributes_of(node: NodeSnapshot) -> Mapping[str, Any]:
    try:
        found = json.loads(node.user_data).get("attributes")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
