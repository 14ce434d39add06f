"""Sets and removes attributes in the ``zarr.json`` of nodes.

The rest of a document is kept, with the order and the values of other attributes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from icechunk_format.errors import FormatError, InvalidInputError


def with_attributes(
    document: bytes,
    values: Mapping[str, Any],
    remove: Iterable[str] = (),
    *,
    path: str,
    object_key: str = "",
) -> bytes | None:
    """Return a ``zarr.json`` with attributes set and removed; None if nothing changes.

    Raises InvalidInputError if a value is not JSON, or an attribute to remove does not exist.
    """
    try:
        found = json.loads(document)
        attributes = dict(found.get("attributes") or {})
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(
            f"the zarr.json of {path!r} is damaged: {error}", object_key=object_key
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
    if attributes == (found.get("attributes") or {}):
        return None
    return json.dumps({**found, "attributes": attributes}, indent=2).encode()


def _checked(value: Any, name: str) -> Any:
    """Return a JSON value, or raise InvalidInputError."""
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case float():
            raise InvalidInputError(
                f"attribute {name!r} is {value}, which JSON does not have; write it as a string",
                name=name,
            )
        case list() | tuple():
            return [_checked(item, name) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _checked(item, name) for key, item in value.items()}
    raise InvalidInputError(
        f"attribute {name!r} is a {type(value).__name__}; give a JSON value: a string, number,"
        " boolean, None, list or mapping",
        name=name,
        found=type(value).__name__,
    )
