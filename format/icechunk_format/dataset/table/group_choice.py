"""Finds the group to read: the named group, or the only one with arrays."""

from __future__ import annotations

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.names import by_likeness, shortened, unknown
from icechunk_format.spec.node_path import ROOT, NodePath, parent, parse_node_path
from icechunk_format.spec.snapshot.file import Snapshot


def find_group(snapshot: Snapshot, group: str | None, *, label: str) -> NodePath:
    """Return the path of the group to read; ``label`` is the repository, for messages.

    ``group`` may lack the leading ``/``. None chooses the root if it has arrays, else the only
    group with arrays.
    """
    if group is None:
        with_arrays = sorted(
            {
                found
                for node in snapshot.nodes
                if node.array is not None and (found := parent(node.path)) is not None
            }
        )
        if ROOT in with_arrays or not with_arrays:
            return ROOT
        if len(with_arrays) == 1:
            return with_arrays[0]
        raise InvalidInputError(
            f"{len(with_arrays)} groups of {label} have arrays: {shortened(with_arrays)}; choose "
            f"one with the option group, for instance group={with_arrays[0]}",
            groups=tuple(with_arrays),
        )
    path = parse_node_path("/" + group.strip("/"))
    node = snapshot.node(path)
    if node is not None and node.array is None:
        return path
    if node is not None:
        above = parent(path) or ROOT
        raise InvalidInputError(
            f"{path} of {label} is an array; read it with group={above} and "
            f"variables={path.rpartition('/')[2]}",
            group=path,
        )
    groups = [str(n.path) for n in snapshot.nodes if n.array is None]
    raise NotFoundError(
        f"{label}: {unknown('group', path, groups)}",
        kind="node",
        name=str(path),
        existing=tuple(by_likeness(path, groups)),
    )
