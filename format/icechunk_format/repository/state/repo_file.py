"""Reads the ``repo`` object, its operations log, and decodes each state once per process.

Every read of a repository of spec version 2 starts with this object. It may be large (one entry for
each snapshot), and other writers replace it. So a state is cached with its object version, and a
HEAD request checks whether it is current.

The ``repo`` object has the newest entries of the operations log, and the name of the backup that
continues it. Users may delete backups: a missing backup ends the log.

Specification: "Repo info file", "Updates to the repo info file".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    decode_flexbuffer_config,
    decode_yaml_config,
)
from icechunk_format.encoding.object_keys import CONFIG_YAML, REPO, overwritten_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.lists import MIN_ROWS
from icechunk_format.encoding.repo_info.snapshot_list import SnapshotList
from icechunk_format.encoding.repo_info.updates import UnknownUpdate, Update
from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.repository.files.metadata_files import Loaded, ObjectCache
from icechunk_format.repository.files.optional_objects import fetch_if_there
from icechunk_format.storage.concurrency import PerProcess
from icechunk_format.storage.protocol import Fetched, ObjectVersion, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoState:
    """A ``repo`` object as stored and decoded, and its version, the condition for replacing it."""

    info: RepoInfo
    data: bytes
    version: ObjectVersion

    @classmethod
    def of(cls, fetched: Fetched) -> RepoState:
        """Decode a fetched object; errors are those of ``decode_state``."""
        return cls(info=decode_state(fetched.data), data=fetched.data, version=fetched.version)


# The last states of this process, keyed by their bytes; the limit is a number of states.
_STATES_KEPT: Final = 2
_STATES: Final = PerProcess(lambda: ObjectCache(_STATES_KEPT))


def decode_state(data: bytes) -> RepoInfo:
    """Decode the ``repo`` object; recent states are cached for all readers and writers."""
    found = _STATES.get().get_many([data], lambda _: [Loaded(repo_info.decode(data), cost=1)])
    return found[0]


def remember_state(data: bytes, info: RepoInfo) -> None:
    """Cache a state that was just written, so that the next read need not decode it.

    ``data`` must be ``info`` encoded. States that decode to other fields, and those with many
    snapshots that are not columns, are not cached.
    """
    held = info.snapshots
    if isinstance(held, SnapshotList):
        metadata: list[SnapshotInfo] = []
        is_other = held.columns.spec_version != info.spec_version
    else:
        metadata, is_other = [*held.values()], len(held) >= MIN_ROWS
    if (
        is_other
        or any(isinstance(update.details, UnknownUpdate) for update in info.latest_updates)
        or any(
            items.items and items.spec_version != info.spec_version
            for items in (info.metadata_items, *(each.metadata_items for each in metadata))
        )
    ):
        return
    as_decoded = replace(
        info,
        snapshots=(
            held
            if isinstance(held, SnapshotList)
            else {each.id: each for each in sorted(metadata, key=attrgetter("id.raw"))}
        ),
        tags=dict(sorted(info.tags.items())),
        branches=dict(sorted(info.branches.items())),
        deleted_tags=tuple(sorted(info.deleted_tags)),
        enabled_feature_flags=_sorted_flags(info.enabled_feature_flags),
        disabled_feature_flags=_sorted_flags(info.disabled_feature_flags),
    )
    _STATES.get().keep(data, Loaded(as_decoded, cost=1))


def _sorted_flags(flags: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if flags is None else tuple(sorted(flags))


def read_state(storage: Storage) -> RepoState:
    """Read the object."""
    return RepoState.of(storage.get(REPO))


def config_in(info: RepoInfo) -> RepositoryConfig:
    """Return the configuration in ``repo``, with the defaults for missing settings."""
    return RepositoryConfig() if info.config is None else decode_flexbuffer_config(info.config)


def read_yaml_config(storage: Storage) -> RepositoryConfig:
    """Return the configuration of spec version 1; the defaults if it has no ``config.yaml``."""
    fetched = fetch_if_there(storage, CONFIG_YAML)
    return RepositoryConfig() if fetched is None else decode_yaml_config(fetched.data)


def logged_states(storage: Storage, newest: RepoInfo) -> Iterator[tuple[str | None, RepoInfo]]:
    """Yield a state and the backups that continue its log, with their names, newest first."""
    name, state = None, newest
    followed: set[str] = set()
    while True:
        yield name, state
        name = state.repo_before_updates
        if name is None:
            return
        if name in followed:
            raise FormatError(
                f"the operations log has a cycle at the backup {name!r}",
                object_key=REPO,
                file_type="repo info",
                field="repo_before_updates",
            )
        followed.add(name)
        object_key = overwritten_key(name)
        try:
            data = storage.get(object_key).data
        except NotFoundError:
            return
        state = repo_info.decode(data, object_key=object_key)


def read_operations(storage: Storage, newest: RepoInfo) -> Iterator[Update]:
    """Yield the entries of the log, newest first, fetching each backup when it is reached.

    An entry names the backup in which it is the newest. This name is absent in the backup itself
    and is added here.
    """
    for name, state in logged_states(storage, newest):
        for position, update in enumerate(state.latest_updates):
            is_newest_of_backup = position == 0 and update.backup_path is None
            yield replace(update, backup_path=name) if is_newest_of_backup else update


class RepoFile:
    """Reads the ``repo`` object of one storage.

    Threads may share it: its state is one reference, replaced in one step.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._state: RepoState | None = None

    def fetch(self) -> RepoState | None:
        """Read the object, even if its state is cached; None if it does not exist."""
        fetched = fetch_if_there(self._storage, REPO)
        self._state = None
        if fetched is not None:
            self._state = RepoState.of(fetched)
        return self._state

    def current(self) -> RepoState | None:
        """Return the current state; the object is read only if it changed since the last call."""
        known = self.known()
        if known is not None and known.version.etag is not None:
            found = self._storage.head(REPO)
            if found is not None and found.version.etag == known.version.etag:
                return known
        return self.fetch()

    def existing(self, *, is_read: bool) -> RepoState:
        """Return the current state of a repository that was opened before.

        With ``is_read`` the object is read even if its state is cached.
        """
        state = self.fetch() if is_read else self.current()
        if state is None:
            url = self._storage.root_url
            raise NotFoundError(
                f"the repository at {url} was deleted after it was opened: its 'repo' object "
                "does not exist",
                kind="repository",
                location=url,
            )
        return state

    def known(self) -> RepoState | None:
        """Return the cached state without I/O."""
        return self._state
