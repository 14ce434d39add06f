"""Makes the location of a repository from options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from icechunk_format.options.parse import collect_options
from icechunk_format.options.path import repository_path
from icechunk_format.options.python_values import option_texts
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import refused
from icechunk_format.options.write import WriteRequest
from icechunk_format.storage.location import Location

_STORAGE: Final = "storage.*"
_CLIENT: Final = "storage.client"


def location_of(options: ReadRequest | WriteRequest) -> Location:
    """Return the location of the repository that a load reads or a write fills."""
    return Location(
        url=options.path, client=options.storage_client, options=options.storage_options
    )


def maintenance_location(
    path: str, options: Mapping[str, Any], *, also: Collection[str] = ()
) -> Location:
    """Return the location of the repository at `path`, from ``storage.*`` options.

    Options of the names `also` are passed over.

    Raises
    ------
    InvalidInputError
        An option is unknown or means nothing for maintenance, or the path names a metadata table.
    """
    given = collect_options(option_texts(options), use="read")
    storage = storage_alone(
        {name: value for name, value in given.items() if name not in also},
        "for maintenance: only 'storage.*' options do, as in **{'storage.region': 'us-west-2'}",
    )
    return Location(repository_path(path), **storage)


def storage_alone(given: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the arguments of `Location` in parsed options; refuse others, which mean nothing."""
    foreign = sorted(set(given) - {_STORAGE, _CLIENT})
    if foreign:
        raise refused(foreign[0], f"means nothing {why}")
    return {"client": given.get(_CLIENT, "auto"), "options": dict(given.get(_STORAGE, {}))}
