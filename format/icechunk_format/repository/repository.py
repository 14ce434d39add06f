"""A repository: the handle from which versions, files and chunks are found.

Rules of this file
------------------
1. The handle remembers nothing that can change without asking whether it changed. Branches seen
   now are the branches of now; what is pinned is a snapshot id, by whoever resolved it.
2. It does no I/O until it is asked something, and it travels as its location.
3. Nodes are handed out as the format stores them; their Zarr metadata are opaque here.

It is long because every question that a user may ask has its docstring here; each answer is a few
lines, and the work is in the modules that they call.

Specification: "Repository state", "Repo info file"; version 1: "Refs".
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository.chunks.container_options import check_virtual_options
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.chunks.virtual import parse_authorized
from icechunk_format.repository.files.metadata_files import (
    load_manifest,
    load_snapshot,
    load_transaction_log,
)
from icechunk_format.repository.history.diff import Changes, add_up
from icechunk_format.repository.history.graph import GraphEntry, version_graph
from icechunk_format.repository.history.history import (
    History,
    RefFilesHistory,
    RepoInfoHistory,
    versions_after,
)
from icechunk_format.repository.history.resolve import resolve
from icechunk_format.repository.lifecycle.create import create_repository
from icechunk_format.repository.lifecycle.discovery import MAIN_REF, has_repository, no_repository
from icechunk_format.repository.repository_changes import RepositoryChanges, SessionStart
from icechunk_format.repository.state.operations import read_operations
from icechunk_format.repository.state.repo_file import RepoFile, RepoState
from icechunk_format.repository.state.transitions import check_status
from icechunk_format.spec.config.config import (
    RepositoryConfig,
    decode_flexbuffer_config,
    decode_yaml_config,
)
from icechunk_format.spec.envelope import SPEC_V1, SPEC_V2
from icechunk_format.spec.object_keys import CONFIG_YAML
from icechunk_format.storage.location import Location, Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from icechunk_format.spec.ids import ManifestId, SnapshotId
    from icechunk_format.spec.manifest.decode import Manifest
    from icechunk_format.spec.repo_info.file import SnapshotInfo
    from icechunk_format.spec.repo_info.updates import RepoStatus, Update
    from icechunk_format.spec.snapshot.file import Snapshot
    from icechunk_format.spec.transaction_log import TransactionLog
    from icechunk_format.storage.protocol import Storage


class Repository(RepositoryChanges):
    """An Icechunk repository of spec version 1 or 2.

    Use ``Repository.open``; the constructor believes what it is told and asks nobody.

    Parameters
    ----------
    location
        Where the repository is.
    spec_version
        1 or 2.
    """

    def __init__(self, location: Location, *, spec_version: int) -> None:
        self.location = location
        self.spec_version = spec_version

    @classmethod
    def open(cls, location: Place) -> Repository:
        """Find the repository at a location.

        Parameters
        ----------
        location
            A ``Location``, or the URL or path of one without options.

        Raises
        ------
        NotFoundError
            When no repository is there, with what is there instead.
        FormatError
            When its ``repo`` object is damaged.
        UnsupportedError
            When its spec version is newer than this library.
        StorageError
            When the store fails.
        """
        place = Location.of(location)
        repository = cls(place, spec_version=SPEC_V2)
        if repository._repo_file.fetch() is not None:
            return repository
        if repository.storage.head(MAIN_REF) is not None:
            return cls(place, spec_version=SPEC_V1)
        raise no_repository(place)

    @classmethod
    def open_version(
        cls,
        location: Place,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | SnapshotId | None = None,
        as_of: datetime | None = None,
    ) -> tuple[Repository, SnapshotId]:
        """Find a repository and the one snapshot that the arguments mean, in one look at it.

        ``open`` and ``resolve`` answer the same with three requests instead of one, since each
        asks for the state of its own time. Arguments and errors are theirs.
        """
        repository = cls.open(location)
        known = repository._repo_file.known()
        history = repository._history() if known is None else RepoInfoHistory(known.info)
        return repository, repository._resolve(history, branch, tag, snapshot, as_of)

    @classmethod
    def create(
        cls,
        location: Place,
        *,
        spec_version: int = SPEC_V2,
        check_clean_root: bool = True,
    ) -> Repository:
        """Create an empty repository and open it; see ``create_repository`` for what it raises.

        Parameters
        ----------
        location
            An empty place.
        spec_version
            2, or 1 for readers that know nothing newer.
        check_clean_root
            Whether to make sure that the place is empty.
        """
        place = Location.of(location)
        create_repository(
            open_storage(place), spec_version=spec_version, check_clean_root=check_clean_root
        )
        return cls(place, spec_version=spec_version)

    @staticmethod
    def exists(location: Place) -> bool:
        """Tell whether a repository of either spec version is at a location."""
        place = Location.of(location)
        try:
            return has_repository(open_storage(place))
        except NotFoundError:
            # No bucket, so no repository in it.
            return False

    def __repr__(self) -> str:
        return f"Repository({str(self.location)!r}, spec_version={self.spec_version})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self.location, self.spec_version))

    @property
    def storage(self) -> Storage:
        """The storage of the repository in this process."""
        return open_storage(self.location)

    # -- versions ---------------------------------------------------------------------------

    def branches(self) -> dict[str, SnapshotId]:
        """Return every branch and its newest snapshot, sorted by name."""
        return self._history().branches()

    def tags(self) -> dict[str, SnapshotId]:
        """Return every tag and its snapshot, sorted by name; deleted tags are left out."""
        return self._history().tags()

    def deleted_tags(self) -> tuple[str, ...]:
        """Return the names of deleted tags. The format never gives a name out again."""
        return self._history().deleted_tags()

    def resolve(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | SnapshotId | None = None,
        as_of: datetime | None = None,
    ) -> SnapshotId:
        """Return the one snapshot that the arguments mean; without any, the tip of ``main``.

        Parameters
        ----------
        branch, tag, snapshot
            At most one of them.
        as_of
            With a branch: the newest snapshot of its history at or before this instant, which
            needs a time zone.

        Raises
        ------
        InvalidInputError
            When arguments exclude one another, an id is malformed, or ``as_of`` has no time zone.
        NotFoundError
            When the branch, tag or snapshot does not exist (the text lists what does), or the
            history begins after ``as_of``.
        """
        return self._resolve(self._history(), branch, tag, snapshot, as_of)

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | SnapshotId | None = None,
        as_of: datetime | None = None,
    ) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first; arguments as for ``resolve``.

        Spec version 1 costs one request for each snapshot, made when it is asked for.
        """
        history = self._history()
        return history.ancestry(self._resolve(history, branch, tag, snapshot, as_of))

    def snapshot_info(self, snapshot_id: SnapshotId | str) -> SnapshotInfo:
        """Return the entry of one snapshot: parent, time, message, metadata.

        Raises
        ------
        NotFoundError
            When the repository has no such snapshot.
        """
        history = self._history()
        found = history.snapshot_info(self._resolve(history, snapshot=snapshot_id))
        if found is None:
            raise NotFoundError(
                f"snapshot {snapshot_id} of {self.location} was deleted just now",
                kind="snapshot",
                name=str(snapshot_id),
            )
        return found

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the entries of all snapshots, in no order.

        Spec version 2 lists them, detached ones included. In version 1 they are those that a
        branch or tag reaches, at one request for each.
        """
        return self._history().snapshots()

    def graph(self) -> list[GraphEntry]:
        """Return all versions that branches and tags reach, with the names that point to them.

        Children come before parents, and the newest first among the rest. Spec version 1 costs one
        request for each version.
        """
        history = self._history()
        snapshots = {info.id: info for info in history.snapshots()}
        return version_graph(snapshots, history.branches(), history.tags())

    def operations(self) -> Iterator[Update]:
        """Yield the operations log, newest first. Spec version 1 has none.

        The log runs through backups of the ``repo`` object; a missing backup ends it.
        """
        state = self._state()
        return iter(()) if state is None else read_operations(self.storage, state.info)

    def diff(self, older: SnapshotId | str, newer: SnapshotId | str) -> Changes:
        """Return what changed from a snapshot to one of its descendants.

        Raises
        ------
        InvalidInputError
            When ``older`` is not an ancestor of ``newer``.
        NotFoundError
            When one of them does not exist.
        """
        history = self._history()
        first = self._resolve(history, snapshot=older)
        last = self._resolve(history, snapshot=newer)
        between = versions_after(first, history.ancestry(last))
        if between is None:
            raise InvalidInputError(
                f"snapshot {first} is not an ancestor of {last} in {self.location}, so there is "
                "no chain of changes from one to the other; give them in the order of history",
                older=str(first),
                newer=str(last),
            )
        logs: list[TransactionLog] = []
        missing: list[str] = []
        for info in reversed(between):
            for log_id in (*info.pruned_ancestor_tx_logs, info.id):
                try:
                    logs.append(load_transaction_log(self.storage, log_id))
                except NotFoundError:
                    missing.append(str(log_id))
        return add_up(
            logs,
            older=load_snapshot(self.storage, first),
            newer=load_snapshot(self.storage, last),
            missing_logs=missing,
        )

    # -- files ------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: SnapshotId | str) -> Snapshot:
        """Return a snapshot with all of its nodes.

        Raises
        ------
        NotFoundError
            When the repository has no such snapshot, or its file is gone.
        FormatError
            When its file is damaged.
        """
        return load_snapshot(self.storage, self._existing(snapshot_id))

    def transaction_log(self, snapshot_id: SnapshotId | str) -> TransactionLog:
        """Return what a snapshot changed.

        Raises
        ------
        NotFoundError
            When the repository has no such snapshot, or no log of it: spec version 1 writes none
            for the first snapshot.
        """
        return load_transaction_log(self.storage, self._existing(snapshot_id))

    def manifest(self, manifest_id: ManifestId, size_hint: int | None = None) -> Manifest:
        """Return a manifest; see ``objects.load_manifest``."""
        return load_manifest(self.storage, manifest_id, size_hint)

    def chunk_source(
        self,
        *,
        authorized: Sequence[str] = (),
        virtual_options: Mapping[str, str] | None = None,
    ) -> ChunkSource:
        """Return the recipe for fetching chunks of this repository anywhere.

        Virtual chunk containers are those of the state that this object saw last.

        Parameters
        ----------
        authorized
            URL prefixes from which virtual chunks may be fetched: ``virtual.authorize``.
        virtual_options
            Storage options for virtual chunks: ``virtual.storage.*`` without that prefix.

        Raises
        ------
        InvalidInputError
            When a prefix is no URL with a bucket or host, or no store knows an option.
        """
        options = dict(virtual_options or {})
        parse_authorized(authorized)
        check_virtual_options(options, authorized)
        known = self._repo_file.known()
        config = self.config if known is None else _config_in(known)
        return ChunkSource(
            location=self.location,
            containers=tuple(config.virtual_chunk_containers),
            authorized=tuple(authorized),
            virtual_options=options,
        )

    # -- settings ---------------------------------------------------------------------------

    @property
    def config(self) -> RepositoryConfig:
        """The stored configuration, with the defaults for what it leaves open.

        Raises
        ------
        FormatError
            When it is damaged.
        """
        state = self._state()
        if state is not None:
            return _config_in(state)
        try:
            data = self.storage.get(CONFIG_YAML).data
        except NotFoundError:
            return RepositoryConfig()
        return decode_yaml_config(data)

    @property
    def status(self) -> RepoStatus | None:
        """Whether the repository takes changes; None for spec version 1, which has no status."""
        state = self._state()
        return None if state is None else state.info.status

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the repository itself; empty for spec version 1."""
        state = self._state()
        return {} if state is None else state.info.metadata

    def feature_flags(self) -> dict[int, bool]:
        """Return the flags that were set, by number; all others have their defaults."""
        state = self._state()
        if state is None:
            return {}
        enabled = dict.fromkeys(state.info.enabled_feature_flags or (), True)
        disabled = dict.fromkeys(state.info.disabled_feature_flags or (), False)
        return dict(sorted((enabled | disabled).items()))

    # -- inside -----------------------------------------------------------------------------

    @cached_property
    def _repo_file(self) -> RepoFile:
        return RepoFile(self.storage)

    def _state(self, *, is_read: bool = False) -> RepoState | None:
        """Return the state of now, read even if it may be known; None for spec version 1."""
        if self.spec_version == SPEC_V1:
            return None
        state = self._repo_file.fetch() if is_read else self._repo_file.current()
        if state is None:
            raise NotFoundError(
                f"the repository at {self.location} is gone: its 'repo' object was deleted after "
                "it was opened",
                kind="repository",
                location=str(self.location),
            )
        return state

    def _begin(self, branch: str, base: SnapshotId | None) -> SessionStart:
        # Read, not asked for: since the last session the state has changed, if only by its commit.
        state = self._state(is_read=True)
        history = self._history() if state is None else RepoInfoHistory(state.info)
        # A branch that cannot be written is refused before one that does not exist.
        if state is not None:
            check_status(state.info.status)
        return SessionStart(
            base=self._resolve(history, branch=branch) if base is None else base,
            config=self.config if state is None else _config_in(state),
            status=None if state is None else state.info.status,
        )

    def _history(self) -> History:
        state = self._state()
        if state is not None:
            return RepoInfoHistory(state.info)
        return RefFilesHistory(self.storage)

    def _resolve(
        self,
        history: History,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | SnapshotId | None = None,
        as_of: datetime | None = None,
    ) -> SnapshotId:
        return resolve(
            history,
            branch=branch,
            tag=tag,
            snapshot=snapshot,
            as_of=as_of,
            repository_url=str(self.location),
        )

    def _existing(self, snapshot_id: SnapshotId | str) -> SnapshotId:
        """Check that a snapshot belongs to the repository, asking only where that is not known."""
        known = self._repo_file.known() if self.spec_version == SPEC_V2 else None
        if (
            known is not None
            and not isinstance(snapshot_id, str)
            and snapshot_id in known.info.snapshots
        ):
            return snapshot_id
        return self._resolve(self._history(), snapshot=snapshot_id)


def _config_in(state: RepoState) -> RepositoryConfig:
    stored = state.info.config
    return RepositoryConfig() if stored is None else decode_flexbuffer_config(stored)


def _restore(location: Location, spec_version: int) -> Repository:
    return Repository(location, spec_version=spec_version)
