"""Finding out which draft is at a place.

Specification: "File Layout" of both drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.drafts.numbered_refs import NumberedRepository, is_numbered
from icechunk_format.drafts.state_file import STATE, StateFileRepository
from icechunk_format.errors import NotFoundError
from icechunk_format.repository.lifecycle.discovery import has_repository
from icechunk_format.storage.location import Location, Place, open_storage

if TYPE_CHECKING:
    from icechunk_format.drafts.model import DraftRepository


def open_draft(location: Place, *, store_root: Place | None = None) -> DraftRepository:
    """Open a repository that was written by one of the two drafts, for reading.

    Parameters
    ----------
    location
        Where it is.
    store_root
        Where the data of a state file are, if the state file keeps them elsewhere. The place that
        the file itself names is not followed: the file may come from anybody.

    Raises
    ------
    NotFoundError
        No draft is there.
    FormatError
        The state file is damaged.
    InvalidInputError
        The data are elsewhere, and ``store_root`` was not given.
    StorageError
        The store failed.
    """
    place = Location.of(location)
    root = None if store_root is None else Location.of(store_root)
    storage = open_storage(place)
    if has_repository(storage):
        raise NotFoundError(
            f"a released version wrote the repository at {place}, so it is no draft; open it with "
            "Repository.open",
            kind="repository",
            location=str(place),
        )
    if storage.head(STATE) is not None:
        return StateFileRepository(place, storage, root)
    if is_numbered(storage):
        return NumberedRepository(place, storage)
    raise NotFoundError(
        f"there is no draft of a repository at {place}: neither {STATE!r} nor branch files like "
        "'r/main/ZZZZZZZZ.json' are there",
        kind="repository",
        location=str(place),
    )
