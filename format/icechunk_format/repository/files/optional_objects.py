"""Fetches objects that may not exist, such as refs and ``config.yaml`` of spec version 1.

Functions return None for a missing object, and raise for a missing bucket.
"""

from __future__ import annotations

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.v1_branches_and_tags import decode_ref_json
from icechunk_format.errors import NotFoundError
from icechunk_format.storage.protocol import Fetched, ObjectVersion, Storage


def fetch_if_there(storage: Storage, key: str) -> Fetched | None:
    """Fetch an object; None if it does not exist."""
    try:
        return storage.get(key)
    except NotFoundError as error:
        missing_key(error)
        return None


def missing_key(error: NotFoundError) -> str:
    """Return the key of the missing object; raise the error if the bucket is missing."""
    if error.facts.get("kind") != "object":
        raise error
    return str(error.facts["key"])


def read_ref(storage: Storage, key: str) -> tuple[SnapshotId, ObjectVersion] | None:
    """Read a ref file of spec version 1; None if it does not exist."""
    fetched = fetch_if_there(storage, key)
    if fetched is None:
        return None
    return decode_ref_json(fetched.data, object_key=key), fetched.version
