"""``RepositoryReader``: opens a repository and reads its history, files and settings.

Long because callers hold one class, which is documented here; its methods delegate.

Rules of this file
------------------
1. A reader does no I/O before a method is called, and it is pickled as its location.
2. Each call reads branches, tags and settings, or checks that they have not changed.
3. Nodes are returned as stored; their Zarr metadata are not decoded.
4. Modules that change a repository are not imported, so that drivers and executors that only read
   load half of the package.

Specification: "Repository state", "Repo Info File"; version 1: "Refs".
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from icechunk_format.display import html_by
from icechunk_format.encoding.envelope import SPEC_V1, SPEC_V2
from icechunk_format.encoding.object_keys import REPO
from icechunk_format.errors import NotFoundError
from icechunk_format.repository.chunks.source import ChunkSource, checked_source
from icechunk_format.repository.files import metadata_files as files
from icechunk_format.repository.history.history import History, RefFilesHistory, RepoInfoHistory
from icechunk_format.repository.history.resolve import SnapshotArguments, entry_of, resolve
from icechunk_format.repository.lifecycle.discovery import MAIN_REF, exists_at, no_repository
from icechunk_format.repository.state.repo_file import (
    RepoFile,
    RepoState,
    config_in,
    read_operations,
    read_yaml_config,
)
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.options import VirtualAccess

if TYPE_CHECKING:
    from icechunk_format.encoding.config.config import RepositoryConfig
    from icechunk_format.encoding.ids import ManifestId, SnapshotId
    from icechunk_format.encoding.manifest.decode import Manifest
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.encoding.repo_info.updates import RepoStatus, Update
    from icechunk_format.encoding.snapshot.file import Snapshot
    from icechunk_format.encoding.transaction_log import TransactionLog
    from icechunk_format.repository.history.diff import Changes
    from icechunk_format.repository.history.graph import GraphEntry
    from icechunk_format.storage.protocol import Storage


_log = logging.getLogger(__name__)


class RepositoryReader:
    """An Icechunk repository of spec version 1 or 2, for reading.

    The constructor does no I/O and checks nothing; use ``open``.

    Every method may raise ``StorageError`` (a request failed), ``FormatError`` (a file is damaged),
    ``UnsupportedError`` (the spec version is newer), ``NotFoundError`` (a snapshot or file does not
    exist) and, if it takes the id of a snapshot, ``InvalidInputError`` (the id is malformed).
    Methods list further errors.

    Attributes
    ----------
    location
        Where the repository is, with the options of its storage.
    spec_version
        1 or 2.
    """

    def __init__(self, location: Location, *, spec_version: int) -> None:
        self.location = location
        self.spec_version = spec_version
        self._held: RepoState | None = None

    @classmethod
    def open(cls, location: Place) -> Self:
        """Open an existing repository.

        Parameters
        ----------
        location
            A ``Location``, a URL or a path.

        Raises
        ------
        NotFoundError
            The location contains no repository; the message describes its contents.
        InvalidInputError
            The URL or an option of the location is invalid.

        Examples
        --------
        >>> repository = Repository.open("s3://bucket/weather")  # doctest: +SKIP
        """
        place = Location.of(location)
        repository = cls._at(place)
        if repository is None:
            raise no_repository(place)
        _log.info("opened %s, spec version %d", place, repository.spec_version)
        return repository

    @classmethod
    def find(cls, location: Place) -> Self | None:
        """Open the repository at a location; return None if it or its bucket does not exist.

        Parameters and errors are those of ``open``.

        Examples
        --------
        >>> Repository.find("s3://bucket/weather") is None  # doctest: +SKIP
        """
        try:
            return cls._at(Location.of(location))
        except NotFoundError:
            return None

    def as_read(self) -> Self:
        """Return the repository pinned to the state that this object read last.

        Branches, tags and settings then come from one state, without further requests; in spec
        version 1, where each ref is a file, they are still read.

        Examples
        --------
        >>> pinned = repository.as_read()  # doctest: +SKIP
        >>> pinned.branches(), pinned.tags()  # doctest: +SKIP
        """
        held = self._held or self._repo_file.known() or self._state()
        view = type(self)(self.location, spec_version=self.spec_version)
        view._held = held
        return view

    @staticmethod
    def exists(location: Place) -> bool:
        """Return True if a repository of either spec version exists at a location.

        Examples
        --------
        >>> Repository.exists("s3://bucket/weather")  # doctest: +SKIP
        """
        return exists_at(Location.of(location))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.location)!r}, spec_version={self.spec_version})"

    _repr_html_ = html_by("history.repository_html")

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(type(self), spec_version=self.spec_version), (self.location,))

    @property
    def storage(self) -> Storage:
        """The storage of the repository in this process."""
        return open_storage(self.location)

    # -- history --------------------------------------------------------------------------------

    def branches(self) -> dict[str, SnapshotId]:
        """Return every branch and its newest snapshot, sorted by name.

        Examples
        --------
        >>> repository.branches()["main"]  # doctest: +SKIP
        """
        return self._history().branches()

    def tags(self) -> dict[str, SnapshotId]:
        """Return every tag and its snapshot, sorted by name, without deleted tags.

        Examples
        --------
        >>> repository.tags()["v1"]  # doctest: +SKIP
        """
        return self._history().tags()

    def deleted_tags(self) -> tuple[str, ...]:
        """Return the names of deleted tags, which cannot be used again."""
        return self._history().deleted_tags()

    def resolve(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | SnapshotId | None = None,
        as_of: datetime | None = None,
    ) -> SnapshotId:
        """Return the id of the snapshot that the arguments select; by default the tip of ``main``.

        Parameters
        ----------
        branch, tag, snapshot
            Name of a branch, name of a tag, or id of a snapshot; at most one of them.
        as_of
            A timestamp with a time zone, only with a branch: selects the newest snapshot that was
            committed at or before it.

        Raises
        ------
        InvalidInputError
            The arguments exclude one another, the id is malformed, or ``as_of`` has no time zone.
        NotFoundError
            The branch, tag or snapshot does not exist (the message lists existing names), or the
            history of the branch begins after ``as_of``.

        Examples
        --------
        >>> repository.resolve(branch="main")  # doctest: +SKIP
        >>> repository.resolve(as_of=datetime(2024, 7, 1, tzinfo=UTC))  # doctest: +SKIP
        """
        history = self._history()
        return self._resolve(history, branch=branch, tag=tag, snapshot=snapshot, as_of=as_of)

    def ancestry(self, **version: Unpack[SnapshotArguments]) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first.

        Parameters and errors are those of ``resolve``. In spec version 1, each snapshot needs a
        request, which is made when it is reached.

        Examples
        --------
        >>> [info.message for info in repository.ancestry(tag="v1")]  # doctest: +SKIP
        """
        history = self._history()
        return history.ancestry(self._resolve(history, **version))

    def snapshot_info(self, snapshot_id: SnapshotId | str) -> SnapshotInfo:
        """Return id, parent, time, message and metadata of a snapshot, without its nodes.

        Examples
        --------
        >>> repository.snapshot_info("1CECHNKREP0F1RSTCMT0").message  # doctest: +SKIP
        """
        return entry_of(self._history(), snapshot_id, repository_url=str(self.location))

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the entries of all snapshots, in any order.

        Spec version 2 lists all snapshots, including detached ones. In version 1, only snapshots
        that a branch or tag reaches are found, with a request for each.

        Examples
        --------
        >>> len(repository.snapshots())  # doctest: +SKIP
        """
        return self._history().snapshots()

    def graph(self) -> list[GraphEntry]:
        """Return all snapshots that branches and tags reach, newest first, with their names.

        Children precede parents. Costs are those of ``snapshots``.

        Examples
        --------
        >>> [entry.branches for entry in repository.graph()]  # doctest: +SKIP
        """
        from icechunk_format.repository.history.graph import snapshot_graph

        history = self._history()
        snapshots = {info.id: info for info in history.snapshots()}
        return snapshot_graph(snapshots, history.branches(), history.tags())

    def operations(self) -> Iterator[Update]:
        """Yield the operations log, newest first; spec version 1 has none.

        The log continues in backups of the ``repo`` object; a missing backup ends it.

        Examples
        --------
        >>> next(repository.operations())  # doctest: +SKIP
        """
        state = self._state()
        return iter(()) if state is None else read_operations(self.storage, state.info)

    def diff(self, older: SnapshotId | str, newer: SnapshotId | str) -> Changes:
        """Return the changes from a snapshot to one of its descendants.

        Only transaction logs are read, neither manifests nor chunks.

        Parameters
        ----------
        older, newer
            Ids of the snapshots.

        Returns
        -------
        Changes
            Paths of created, deleted, changed and moved nodes, and the changed chunks of each
            array.

        Raises
        ------
        InvalidInputError
            ``newer`` is not a descendant of ``older``.

        Examples
        --------
        >>> repository.diff(older, newer).updated_arrays  # doctest: +SKIP
        """
        from icechunk_format.repository.history.diff import changes_between

        history = self._history()
        first = self._resolve(history, snapshot=older)
        return changes_between(self.storage, history, first, self._resolve(history, snapshot=newer))

    # -- files ----------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: SnapshotId | str) -> Snapshot:
        """Return a snapshot with all of its nodes.

        Examples
        --------
        >>> repository.snapshot(repository.resolve()).nodes[0].path  # doctest: +SKIP
        """
        return files.load_snapshot(self.storage, self._existing(snapshot_id))

    def transaction_log(self, snapshot_id: SnapshotId | str) -> TransactionLog:
        """Return the transaction log of a snapshot: the nodes and chunks that its commit changed.

        Raises ``NotFoundError`` (the log does not exist, as for the first snapshot of spec version
        1).

        Examples
        --------
        >>> repository.transaction_log(repository.resolve()).updated_chunks  # doctest: +SKIP
        """
        return files.load_transaction_log(self.storage, self._existing(snapshot_id))

    def manifest(self, manifest_id: ManifestId, size_hint: int | None = None) -> Manifest:
        """Return a manifest: the chunk references of one or several arrays.

        Parameters
        ----------
        manifest_id
            Its id, as in the snapshot.
        size_hint
            Deprecated; it has no effect.
        """
        if size_hint is not None:
            warnings.warn("size_hint= has no effect", DeprecationWarning, stacklevel=2)
        return files.load_manifests(self.storage, [manifest_id])[0]

    def chunk_source(
        self, *, authorized: Sequence[str] = (), virtual_options: Mapping[str, str] | None = None
    ) -> ChunkSource:
        """Return a picklable value that fetches chunks of this repository in any process.

        Virtual chunk containers are those of the state that this object read last.

        Parameters
        ----------
        authorized
            URL prefixes from which virtual chunks may be fetched (option ``virtual.authorize``); by
            default none.
        virtual_options
            Options ``virtual.storage.*`` without that prefix; they override those of the
            containers.

        Raises
        ------
        InvalidInputError
            A prefix has no bucket or host, or an option does not exist.

        Examples
        --------
        >>> source = repository.chunk_source(authorized=["s3://archive/"])  # doctest: +SKIP
        """
        containers = self.as_read().config.virtual_chunk_containers
        access = VirtualAccess(tuple(authorized), virtual_options or {})
        return checked_source(self.location, access, containers)

    # -- settings -------------------------------------------------------------------------------

    @property
    def config(self) -> RepositoryConfig:
        """The stored configuration, with defaults for missing settings."""
        state = self._state()
        return read_yaml_config(self.storage) if state is None else config_in(state.info)

    @property
    def status(self) -> RepoStatus | None:
        """Availability for changes, since when, and why; None for spec version 1."""
        state = self._state()
        return None if state is None else state.info.status

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the repository itself; empty for spec version 1."""
        state = self._state()
        return {} if state is None else state.info.metadata

    def feature_flags(self) -> dict[int, bool]:
        """Return the flags that were set, by number; all others have their defaults.

        ``Repository.set_feature_flag`` lists the numbers. Empty in spec version 1.
        """
        state = self._state()
        if state is None:
            return {}
        enabled = dict.fromkeys(state.info.enabled_feature_flags or (), True)
        disabled = dict.fromkeys(state.info.disabled_feature_flags or (), False)
        return dict(sorted((enabled | disabled).items()))

    # -- inside ---------------------------------------------------------------------------------

    @classmethod
    def _at(cls, place: Location) -> Self | None:
        repository = cls(place, spec_version=SPEC_V2)
        if repository._repo_file.fetch() is not None:
            return repository
        if repository.storage.head(MAIN_REF) is not None:
            return cls(place, spec_version=SPEC_V1)
        return None

    @cached_property
    def _repo_file(self) -> RepoFile:
        return RepoFile(self.storage)

    def _version_now(self) -> int:
        """Return the current spec version, also after an upgrade through another object."""
        if self.spec_version == SPEC_V1 and self.storage.head(REPO) is not None:
            self.spec_version = SPEC_V2
        return self.spec_version

    def _state(self, *, is_read: bool = False) -> RepoState | None:
        """Return the current state, None for spec version 1; ``is_read`` forces a read."""
        if self._held is not None or self._version_now() == SPEC_V1:
            return self._held
        return self._repo_file.existing(is_read=is_read)

    def _history(self) -> History:
        state = self._state()
        return RefFilesHistory(self.storage) if state is None else RepoInfoHistory(state.info)

    def _resolve(self, history: History, **version: Unpack[SnapshotArguments]) -> SnapshotId:
        return resolve(history, **version, repository_url=str(self.location))

    def _existing(self, snapshot_id: SnapshotId | str) -> SnapshotId:
        """Return the id of an existing snapshot; sends a request only if necessary."""
        known = self._held or self._repo_file.known()
        if known and not isinstance(snapshot_id, str) and snapshot_id in known.info.snapshots:
            return snapshot_id
        return self._resolve(self._history(), snapshot=snapshot_id)
