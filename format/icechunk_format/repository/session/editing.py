"""Edits nodes without bytes: attributes are set and removed in their ``zarr.json``.

The rest of a document stays as it is, and so do the order and the values of other attributes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.repository.session.session import WriteSession
from icechunk_format.spec.object_keys import snapshot_key


def edit_attributes(
    session: WriteSession, path: str, values: Mapping[str, Any], remove: Iterable[str] = ()
) -> bool:
    """Set and remove attributes of a group or array in a session; return True if any changed.

    Raises
    ------
    NotFoundError
        The node does not exist.
    InvalidInputError
        A value is not JSON, or an attribute to remove does not exist.
    """
    node = session.node(path)
    if node is None:
        session.delete(path)  # raises the error that names the node
    assert node is not None
    try:
        document = json.loads(node.user_data)
        attributes = dict(document.get("attributes") or {})
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(
            f"the zarr.json of {path!r} is damaged: {error}",
            object_key=snapshot_key(session.snapshot_id),
        ) from error
    for name in remove:
        if name not in attributes:
            known = ", ".join(sorted(attributes)) or "none"
            raise InvalidInputError(
                f"{path!r} has no attribute {name!r} to remove; it has {known}",
                name=name,
                node=path,
            )
        del attributes[name]
    for name, value in values.items():
        if not name:
            raise InvalidInputError("the name of an attribute is empty", name=name)
        attributes[name] = _checked(value, name)
    if attributes == document.get("attributes"):
        return False
    document["attributes"] = attributes
    session.update_metadata(path, json.dumps(document, indent=2).encode())
    return True


def _checked(value: Any, name: str) -> Any:
    """Return a JSON value, or raise InvalidInputError."""
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case float():
            raise InvalidInputError(
                f"attribute {name!r} is {value}, which JSON does not have; write it as a text",
                name=name,
            )
        case list() | tuple():
            return [_checked(item, name) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _checked(item, name) for key, item in value.items()}
    raise InvalidInputError(
        f"attribute {name!r} is a {type(value).__name__}; give a JSON value: a text, number,"
        " boolean, None, list or mapping",
        name=name,
        found=type(value).__name__,
    )
