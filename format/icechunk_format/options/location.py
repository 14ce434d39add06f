"""Makes the location of a repository from options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteRequest
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import VirtualAccess


def location_of(options: ReadRequest | WriteRequest) -> Location:
    """Return the location of the repository that is read or written."""
    return Location(
        url=options.path, client=options.storage_client, options=options.storage_options
    )


def access_of(options: ReadRequest | WriteRequest) -> VirtualAccess:
    """Return the right to fetch virtual chunks that the options grant."""
    return VirtualAccess(options.virtual_authorize, options.virtual_storage_options)


def maintenance_location(path: str, options: Mapping[str, Any]) -> Location:
    """Return the location of the repository at `path`, from ``storage.*`` options.

    Raises InvalidInputError if an option is unknown or does not apply to maintenance, or the path
    names a metadata table.
    """
    return location_of(parse_arguments(path, options, "maintenance"))


def storage_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Location`, except its URL, from collected options."""
    return {"client": given.get("storage.client", "auto"), "options": given.get("storage.*", {})}
