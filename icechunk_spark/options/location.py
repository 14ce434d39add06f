"""Makes the location of a repository from options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.storage.location import Location
from icechunk_spark.options.parse import collect_options
from icechunk_spark.options.path import split_path
from icechunk_spark.options.python_values import option_texts
from icechunk_spark.options.read import ReadOptions
from icechunk_spark.options.write import WriteRequest

_STORAGE: Final = "storage.*"
_CLIENT: Final = "storage.client"


def location_of(options: ReadOptions | WriteRequest) -> Location:
    """Return the location of the repository that a load reads or a write fills."""
    return Location(
        url=options.path, client=options.storage_client, options=options.storage_options
    )


def upkeep_location(path: str, options: Mapping[str, Any]) -> Location:
    """Return the location of the repository at `path`, from ``storage.*`` options.

    Raises
    ------
    InvalidInputError
        An option is unknown or means nothing for upkeep, or the path names a metadata table.
    """
    given = collect_options(option_texts(options), use="read")
    foreign = sorted(set(given) - {_STORAGE, _CLIENT})
    if foreign:
        raise InvalidInputError(
            f"option '{foreign[0]}' means nothing for upkeep: only 'storage.*' options do, as in"
            " **{'storage.region': 'us-west-2'}",
            option=foreign[0],
        )
    root, table = split_path(str(path))
    if table is not None:
        raise InvalidInputError(
            f"the path names the metadata table '{table}': give the repository's, {root!r}",
            option="path",
        )
    return Location(url=root, client=given.get(_CLIENT, "auto"), options=given.get(_STORAGE, {}))
