"""Checks, joins and orders paths of groups and arrays: ``/``, ``/foo``, ``/foo/bar``.

Rules of this file
------------------
1. A path of a user is absolute and canonical: no empty, ``.`` or ``..`` segment, no trailing slash
   except the root's, no NUL. Everything else in UTF-8 is a legal segment. Existing writers store
   other absolute paths as well, which ``stored_node_path`` accepts.
2. The order of nodes in a snapshot is that of the raw UTF-8 bytes of their paths. Python compares
   strings by code point, which is the same order, so ``<`` on a ``NodePath`` follows it.
3. The ``to`` column of a transaction log's moves is sorted component by component instead
   (``/a/b`` before ``/a-b``); ``component_order`` is the key for that one list.

Specification: "Node Paths"; the order of rule 2 is what existing libraries write and search by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NewType

from icechunk_format.errors import InvalidInputError

NodePath = NewType("NodePath", str)

ROOT = NodePath("/")


def parse_node_path(string: str) -> NodePath:
    """Check a path and return it as a ``NodePath``, or raise InvalidInputError."""
    problem = _problem(string)
    if problem is not None:
        raise InvalidInputError(
            f"{string!r} is not a node path: {problem}; write it like '/', '/group' or "
            "'/group/array'",
            found=string,
            allowed="an absolute path without empty, '.' or '..' segments",
        )
    return NodePath(string)


def group_path(name: str | None) -> NodePath:
    """Return the path of a group named with or without slashes at its ends; None is the root."""
    return parse_node_path("/" + (name or "").strip("/"))


def stored_node_path(string: str) -> NodePath:
    """Return an absolute path of a file, canonical or not, or raise InvalidInputError."""
    if not string.startswith("/"):
        raise InvalidInputError(
            f"{string!r} is not a node path: it does not start with '/'",
            found=string,
            allowed="an absolute path",
        )
    return NodePath(string)


def is_canonical(path: NodePath) -> bool:
    """Return True if a path follows rule 1."""
    return _problem(path) is None


def _problem(string: str) -> str | None:
    if string == "/":
        return None
    if not string.startswith("/"):
        return "it does not start with '/'"
    if string.endswith("/"):
        return "it ends with '/'"
    if "\0" in string:
        return "it contains a NUL character"
    for segment in string[1:].split("/"):
        if segment in ("", ".", ".."):
            return f"it contains the segment {segment!r}"
    try:
        string.encode("utf-8")
    except UnicodeEncodeError:
        return "it contains a lone surrogate, which UTF-8 cannot encode"
    return None


def join(parent_path: NodePath, child_name: str) -> NodePath:
    """Return the path of a child; its name must be one segment."""
    if not child_name or "/" in child_name:
        raise InvalidInputError(
            f"{child_name!r} is not the name of one node: it is empty or contains '/'",
            found=child_name,
            allowed="one path segment",
        )
    prefix = "" if parent_path == ROOT else parent_path
    return parse_node_path(f"{prefix}/{child_name}")


def parent(path: NodePath) -> NodePath | None:
    """Return the path of the group of a node; None for the root."""
    if path == ROOT:
        return None
    return NodePath(path.rpartition("/")[0] or "/")


def ancestors(path: NodePath) -> Iterator[NodePath]:
    """Yield the paths of all groups above a node, the innermost first."""
    above = parent(path)
    while above is not None:
        yield above
        above = parent(above)


def name(path: NodePath) -> str:
    """Return the last segment; the empty string for the root."""
    return path.rpartition("/")[2]


def is_below(path: NodePath, ancestor: NodePath) -> bool:
    """Return True if a node is inside a group at any depth; a node is not below itself."""
    if path == ancestor:
        return False
    return ancestor == ROOT or path.startswith(ancestor + "/")


def component_order(path: NodePath) -> tuple[str, ...]:
    """Return the sort key of the moves in a transaction log: segment by segment."""
    return () if path == ROOT else tuple(path[1:].split("/"))
