"""Reads and writes branches and tags of spec version 1: one JSON object per ref below ``refs/``.

Rules of this file
------------------
1. A ref file is a JSON object with the key ``snapshot``; other keys are ignored.
2. Deleting a tag keeps its file and adds an empty one, the tombstone; the name cannot be reused.
3. Names contain no ``/``, and new ones are not empty. Version 2 allows both.

Specification: "References" of spec version 1; version 2 keeps refs in ``repo``.
"""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REFS
from icechunk_format.errors import FormatError, InvalidInputError

RefKind = Literal["branch", "tag"]

MAIN = "main"
_FILE_TYPE = "ref"
# A ref file holds one id; a much larger object is not a ref.
_MAX_SIZE = 64 * 1024
_FILE = "/ref.json"
_TOMBSTONE = "/ref.json.deleted"


class RefKey(NamedTuple):
    """The branch or tag that an object key below ``refs/`` belongs to."""

    kind: RefKind
    name: str
    is_tombstone: bool


def decode_ref_json(data: bytes, object_key: str) -> SnapshotId:
    """Read the snapshot of a ref file."""

    def broken(problem: str, field: str | None = None) -> FormatError:
        return FormatError(problem, object_key=object_key, file_type=_FILE_TYPE, field=field)

    if len(data) > _MAX_SIZE:
        raise broken(f"it has {len(data)} bytes; a ref file has about 35")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise broken(f"it is not JSON in UTF-8 ({error})") from error
    string = content.get("snapshot") if isinstance(content, dict) else None
    if not isinstance(string, str):
        raise broken(
            'a JSON object like {"snapshot":"1CECHNKREP0F1RSTCMT0"} is expected', "snapshot"
        )
    try:
        return SnapshotId.parse(string)
    except InvalidInputError as error:
        raise broken(error.message, "snapshot") from error


def encode_ref_json(snapshot_id: SnapshotId) -> bytes:
    """Write a ref file."""
    return b'{"snapshot":"%s"}' % str(snapshot_id).encode("ascii")


def check_ref_name(name: str) -> str:
    """Return the name of a new branch or tag; InvalidInputError if version 1 forbids it."""
    if not name or "/" in name:
        raise InvalidInputError(
            f"{name!r} is not a valid branch or tag of spec version 1: names must not be empty or "
            "contain '/'",
            found=name,
            allowed="a name without '/'",
        )
    return name


def parse_ref_key(key: str) -> RefKey | None:
    """Return the ref that a key below ``refs/`` belongs to; None for other objects."""
    if not key.startswith(REFS):
        return None
    is_tombstone = key.endswith(_TOMBSTONE)
    suffix = _TOMBSTONE if is_tombstone else _FILE
    if not key.endswith(suffix):
        return None
    middle = key[len(REFS) : -len(suffix)]
    label, dot, name = middle.partition(".")
    if not dot or "/" in name:
        return None
    if label == "tag":
        return RefKey(kind="tag", name=name, is_tombstone=is_tombstone)
    if label == "branch" and not is_tombstone:
        return RefKey(kind="branch", name=name, is_tombstone=False)
    return None
