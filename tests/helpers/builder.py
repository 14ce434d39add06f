"""Builds repositories: empty ones in memory, arrays and commits in them, and the reference's.

Only ``reference_repository`` needs the ``icechunk`` wheel, and imports it when called, so that
tests that carry the mark ``needs_reference`` can be left out on machines without.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from helpers.sessions.model import array_document, group_document

from icechunk_format import Repository
from icechunk_format.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import icechunk

_numbers = itertools.count(1)


def new_place() -> str:
    """Return the URL of a place in memory that nothing was written to."""
    return f"memory://test-{next(_numbers)}"


def new_location() -> Location:
    """Return a place in memory that nothing was written to."""
    return Location(new_place())


def new_repository(spec_version: int = 2) -> Repository:
    """Create an empty repository in memory."""
    return Repository.create(new_location(), spec_version=spec_version)


def add_array(session: Any, path: str, shape: Sequence[int], *, version: int = 0) -> None:
    """Create an array of chunks of one element, and the root group if it does not exist."""
    if session.node("/") is None:
        session.create_group("/", group_document())
    shape = tuple(shape)
    document = array_document(shape, (1,) * len(shape), version)
    session.create_array(path, document, shape=shape, num_chunks=shape)


def commit_to(
    repository: Repository, branch: str, change: Callable[[Any], object], message: str = "change"
) -> Any:
    """Commit one change to a branch; return the id of the snapshot."""
    session = repository.writable_session(branch)
    change(session)
    return session.commit(message).snapshot_id


def reference_repository(
    path: Path | str,
    *,
    spec_version: int = 2,
    config: icechunk.RepositoryConfig | None = None,
    prefixes: Sequence[str] = (),
) -> icechunk.Repository:
    """Create an empty repository with the reference library.

    Chunks may be virtual below ``prefixes`` of local files.
    """
    import icechunk

    # The reference warns about local file systems on every open; here that is only noise.
    icechunk.set_logs_filter("off")
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)),
        config=config,
        authorize_virtual_chunk_access=file_access(prefixes),
        spec_version=spec_version,
    )


def file_access(prefixes: Sequence[str]) -> Any:
    """Return what lets the reference read virtual chunks below some prefixes of local files."""
    import icechunk

    if not prefixes:
        return None
    access = icechunk.Credentials.LocalFileSystemAccess()
    return icechunk.containers_credentials(dict.fromkeys(prefixes, access))
