"""Defines the record of a followed source, stored as JSON in an attribute of the result's group.

Rules of this file
------------------
1. The record is committed with the arrays, so resetting the branch also resets the record.
2. A record contains no credentials: the URL of the repository is the sanitized one of messages.
3. A repository is untrusted: an invalid record counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import AlreadyExistsError
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import path_in
from icechunk_format.storage.location import Location
from icechunk_format.zarr.zarr_json import parse_group_metadata

RECORD_KEY: Final = "icechunk_spark_map_blocks"
"""The name of the attribute."""
MOST_FAILED: Final = 1_000
"""If more blocks failed, they are not recorded, and the next run computes all."""
BEGINNING: Final = "beginning"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRecord:
    """The source that a result was computed from.

    Parameters
    ----------
    repository, group, snapshot_id
        The source.
    function, function_version
        Name of the function, and the version given by the user.
    settings
        All other settings that affect the results.
    arrays
        ``node`` (the id), and ``factors``, ``once`` and ``passed`` of `OutputArray`, by name of the
        array. Records of earlier releases lack ``passed``.
    failed
        Indices of skipped blocks; None if there are too many.
    others
        For each further source: ``name``, ``repository``, ``group``, ``snapshot_id``, and
        ``settings`` that affect its elements. Absent without further sources.
    base
        The snapshot of the target that the commit of the run was based on; ``BEGINNING`` if the run
        created the repository. None in records of earlier releases.
    """

    repository: str
    group: str
    snapshot_id: str
    function: str
    function_version: str | None
    settings: Mapping[str, Any]
    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: Sequence[Sequence[int]] | None = ()
    base: str | None = None
    others: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> str:
        """Return the record as JSON."""
        fields = asdict(self)
        if not self.others:
            del fields["others"]
        return json.dumps({"format": _FORMAT, **fields}, sort_keys=True)


def parse_record(string: object) -> FollowRecord | None:
    """Parse a record; None if it is absent or invalid."""
    try:
        found = json.loads(string) if isinstance(string, str) else None
    except ValueError:
        return None
    if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
        return None
    kinds: dict[str, Any] = {
        "repository": str,
        "group": str,
        "snapshot_id": str,
        "function": str,
        "function_version": (str, type(None)),
        "settings": dict,
        "arrays": dict,
        "failed": (list, type(None)),
        "base": (str, type(None)),
        "others": list,
    }
    found.setdefault("base", None)
    found.setdefault("others", [])
    if found.keys() != kinds.keys():
        return None
    if not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        return None
    is_usable = all(_is_placement(placed) for placed in found["arrays"].values()) and all(
        isinstance(at, list) and all(type(index) is int for index in at)
        for at in found["failed"] or ()
    )
    is_usable = is_usable and all(map(_is_other, found["others"]))
    return FollowRecord(**found) if is_usable else None


def _is_other(found: object) -> bool:
    """Return True if an entry of ``others`` has the required fields."""
    kinds = dict.fromkeys(("name", "repository", "group", "snapshot_id"), str)
    return (
        isinstance(found, dict)
        and found.keys() == {*kinds, "settings"}
        and all(isinstance(found[name], kind) for name, kind in kinds.items())
        and isinstance(found["settings"], dict)
    )


def _is_placement(found: object) -> bool:
    """Return True if an entry of ``arrays`` has the required fields."""
    fields = {"node", "factors", "once"}
    if not isinstance(found, dict) or found.keys() | {"passed"} != fields | {"passed"}:
        return False
    factors, once = found["factors"], found["once"]
    return (
        isinstance(found["node"], str)
        and isinstance(factors, dict)
        and all(type(factor) is int and factor > 0 for factor in factors.values())
        and isinstance(once, list)
        and all(isinstance(dim, str) for dim in once)
        and isinstance(found.get("passed", False), bool)
    )


def last_record(base: Snapshot | None, group: NodePath) -> FollowRecord | None:
    """Return the record of the last run whose result is in a group."""
    node = None if base is None else base.node(group)
    if node is None or node.array is not None:
        return None
    attributes = parse_group_metadata(node.user_data, node_path=group).attributes
    return parse_record(attributes.get(RECORD_KEY))


def known_array(
    snapshot: Snapshot, group: NodePath, record: FollowRecord, name: str
) -> Variable | None:
    """Return an array of the last run; None if it was deleted or replaced."""
    placed = record.arrays.get(name)
    node = snapshot.node(path_in(group, name))
    if placed is None or node is None or node.array is None or str(node.id) != placed["node"]:
        return None
    return Variable(node)


def check_free(
    base: Snapshot | None,
    group: NodePath,
    target: Location,
    mode: str,
    known: FollowRecord | None,
) -> None:
    """Raise AlreadyExistsError if the group has arrays of others, which `mode` does not replace."""
    nodes = [] if base is None else [n for n in base.children(group) if n.array is not None]
    own = set() if known is None else {path_in(group, name) for name in known.arrays}
    taken = [node.path for node in nodes if node.path not in own]
    if taken and mode == "errorifexists":
        raise AlreadyExistsError(
            f"group {group} of {target} already has arrays ({', '.join(taken)}); choose"
            " another group, or replace arrays with the same names: mode='overwrite', or"
            " --overwrite of the command",
            kind="arrays",
            group=str(group),
        )
