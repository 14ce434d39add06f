"""The ``repo`` object as one process sees it: decoded once for each state that it has.

Everything of spec version 2 hangs on this one object, and every question to a repository starts
with it. It may be large (one entry for each snapshot) and it changes under us, so a state is kept
with its object version, and a request that returns no body tells whether it still is the state.

Specification: "Repo info file".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from icechunk_format.errors import NotFoundError
from icechunk_format.spec import repo_info
from icechunk_format.spec.object_keys import REPO

if TYPE_CHECKING:
    from icechunk_format.spec.repo_info import RepoInfo
    from icechunk_format.storage.protocol import ObjectVersion, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoState:
    """A decoded ``repo`` object, and the version that it must still have to be replaced."""

    info: RepoInfo
    version: ObjectVersion


@lru_cache(maxsize=2)
def decode_state(data: bytes) -> RepoInfo:
    """Decode the ``repo`` object, once for the readers and the writer that meet the same state.

    Raises
    ------
    FormatError, UnsupportedError
        As for ``repo_info.decode``.
    """
    return repo_info.decode(data)


def read_state(storage: Storage) -> tuple[RepoState, bytes]:
    """Read the object and return its state and its bytes.

    Raises
    ------
    NotFoundError, StorageError, FormatError, UnsupportedError
        It is missing or cannot be read.
    """
    fetched = storage.get(REPO)
    return RepoState(info=decode_state(fetched.data), version=fetched.version), fetched.data


class RepoFile:
    """Reads the ``repo`` object of one storage.

    Threads may share it: what it remembers is one reference, replaced in one step.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._state: RepoState | None = None

    def fetch(self) -> RepoState | None:
        """Read the object whatever is known of it; None where there is none.

        Raises
        ------
        FormatError
            When it is damaged.
        UnsupportedError
            When its spec version is newer than this library.
        """
        try:
            fetched = self._storage.get(REPO)
        except NotFoundError as error:
            if error.facts.get("kind") != "object":
                raise
            state = None
        else:
            state = RepoState(info=decode_state(fetched.data), version=fetched.version)
        self._state = state
        return state

    def current(self) -> RepoState | None:
        """Return the state of now, reading the object only where it changed since the last time."""
        known = self.known()
        if known is not None and known.version.etag is not None:
            found = self._storage.head(REPO)
            if found is not None and found.version.etag == known.version.etag:
                return known
        return self.fetch()

    def known(self) -> RepoState | None:
        """Return the state that was seen last, asking nobody."""
        return self._state
