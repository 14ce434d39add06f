"""Reads and writes a Zarr name with its configuration, the JSON form of all extension points.

Rules of this file
------------------
1. ``"name"``, ``{"name": "name"}`` and ``{"name": "name", "configuration": {}}`` are equivalent.
2. Errors name the node path and the field. Quoted values are shortened, since a document may be
   megabytes of untrusted text.

Spec: Zarr v3 core, "Extension definition".
"""

from __future__ import annotations

import reprlib
from typing import Any, NamedTuple

from icechunk_format.errors import FormatError

INT64_MAX = 2**63 - 1


class NamedConfiguration(NamedTuple):
    """A registered name such as ``"zstd"``, and its parameters."""

    name: str
    configuration: dict[str, Any]


class Member(NamedTuple):
    """A member of the ``zarr.json`` of a node, for messages."""

    node_path: str
    field: str

    def at(self, suffix: str) -> Member:
        """Return a member within this one, such as ``[2]`` or ``.configuration``."""
        return Member(self.node_path, f"{self.field}{suffix}")

    def error(self, problem: str) -> FormatError:
        """Return the error for a member that violates the Zarr v3 specification."""
        return FormatError(
            problem, object_key=self.node_path, file_type="zarr.json", field=self.field
        )


def shortened(value: object) -> str:
    """Return ``repr(value)``, cut to a length that fits in a message."""
    return reprlib.repr(value)


def is_integer(value: object) -> bool:
    """Return True if a JSON value is an integer; ``true`` and ``false`` are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_named_configuration(value: object, where: Member) -> NamedConfiguration:
    """Read an extension in its short or its long form."""
    if isinstance(value, str):
        return NamedConfiguration(name=value, configuration={})
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise where.error(
            f"expected a name, or an object with a name and a configuration; found "
            f"{shortened(value)}"
        )
    configuration = value.get("configuration")
    if configuration is None:
        configuration = {}
    if not isinstance(configuration, dict):
        raise where.error(
            f"the configuration of {shortened(value['name'])} must be an object, found "
            f"{shortened(configuration)}"
        )
    return NamedConfiguration(name=value["name"], configuration=configuration)
