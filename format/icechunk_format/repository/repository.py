"""``Repository``: opens a repository, reads its versions and files, and changes it.

Rules of this file
------------------
1. One class is what users hold, so one file: methods are documented here, work is done elsewhere.
2. A ``Repository`` does no I/O before a method is called, and it is pickled as its location.
3. Each call reads branches, tags and settings, or checks that they have not changed.
4. Nodes are returned as the format stores them; their Zarr metadata are not decoded.

Specification: "Repository state", "Repo Info File"; version 1: "Refs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Unpack

from icechunk_format.display.lazily import html_by
from icechunk_format.errors import NotFoundError
from icechunk_format.progress import ProgressOption
from icechunk_format.repository.chunks.source import ChunkSource, checked_source
from icechunk_format.repository.commit.commit import CommitResult
from icechunk_format.repository.files import metadata_files as files
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.history.cutoff import Cutoff, parse_cutoff
from icechunk_format.repository.history.diff import Changes, changes_between
from icechunk_format.repository.history.graph import GraphEntry, version_graph
from icechunk_format.repository.history.history import History, RefFilesHistory, RepoInfoHistory
from icechunk_format.repository.history.resolve import VersionArguments, entry_of, resolve
from icechunk_format.repository.lifecycle.create import create_repository
from icechunk_format.repository.lifecycle.discovery import MAIN_REF, exists_at, no_repository
from icechunk_format.repository.lifecycle.expire import ExpireResult, expire_snapshots
from icechunk_format.repository.lifecycle.expire_v1 import expire_snapshots_v1
from icechunk_format.repository.lifecycle.restore import restore_snapshot
from icechunk_format.repository.lifecycle.upgrade import UpgradeReport, upgrade_repository
from icechunk_format.repository.session.session import WriteSession
from icechunk_format.repository.state import transitions
from icechunk_format.repository.state.branch_tip import BranchTip, writable_tip
from icechunk_format.repository.state.branches_and_tags import RefsChanges, refs_changes
from icechunk_format.repository.state.config import (
    change_config,
    change_setting,
    config_in,
    read_yaml_config,
)
from icechunk_format.repository.state.operations import read_operations
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.repo_file import RepoFile, RepoState
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.spec.config.changes import changes_in
from icechunk_format.spec.config.config import RepositoryConfig
from icechunk_format.spec.envelope import SPEC_V1, SPEC_V2
from icechunk_format.spec.ids import ManifestId, SnapshotId
from icechunk_format.spec.manifest.decode import Manifest
from icechunk_format.spec.object_keys import REPO
from icechunk_format.spec.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.spec.repo_info.updates import Availability, RepoStatus, Update
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.spec.transaction_log import TransactionLog
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import Storage, check_writable


class Repository:
    """An Icechunk repository of spec version 1 or 2.

    The constructor does no I/O and checks nothing; use ``Repository.open``.

    Every method may raise ``StorageError`` (the store failed), ``FormatError`` (a file is
    damaged), ``UnsupportedError`` (the spec version is newer) and ``NotFoundError`` (a snapshot or
    file does not exist). Methods that change the repository may also raise ``ReadOnlyError`` (the
    repository or the store is read-only), ``ConflictError`` (others changed the repository on every
    try, nothing was changed) and ``CommitOutcomeUnknownError`` (the store did not say whether the
    change landed). Methods name the errors that they raise beside these.

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
        self._held: RepoState | None = None

    @classmethod
    def open(cls, location: Place) -> Repository:
        """Find the repository at a ``Location``, or at a URL or path without options.

        Raises ``NotFoundError``, which says what is there instead, where no repository is.
        """
        place = Location.of(location)
        repository = cls._at(place)
        if repository is None:
            raise no_repository(place)
        return repository

    @classmethod
    def find(cls, location: Place) -> Repository | None:
        """Open the repository at a place; None where there is none, or not even a bucket."""
        try:
            return cls._at(Location.of(location))
        except NotFoundError:
            return None

    def as_read(self) -> Repository:
        """Return the repository in the state that this object read last.

        Branches, tags and settings then come from one state, without more requests; in spec version
        1, where each ref is a file, they are still read.
        """
        held = self._held or self._repo_file.known() or self._state()
        view = Repository(self.location, spec_version=self.spec_version)
        view._held = held
        return view

    @classmethod
    def create(
        cls, location: Place, *, spec_version: int = SPEC_V2, check_clean_root: bool = True
    ) -> Repository:
        """Create an empty repository at an empty place and open it; see ``create_repository``.

        Spec version 1 is for old readers. Without ``check_clean_root``, the place may hold objects.
        """
        place = Location.of(location)
        create_repository(
            open_storage(place), spec_version=spec_version, check_clean_root=check_clean_root
        )
        return cls(place, spec_version=spec_version)

    @staticmethod
    def exists(location: Place) -> bool:
        """Tell whether a repository of either spec version is at a location."""
        return exists_at(Location.of(location))

    def __repr__(self) -> str:
        return f"Repository({str(self.location)!r}, spec_version={self.spec_version})"

    _repr_html_ = html_by("history.repository_html")

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(Repository, spec_version=self.spec_version), (self.location,))

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
        """Return the one snapshot that the arguments mean; without any, the tip of ``main``.

        At most one of ``branch``, ``tag`` and ``snapshot`` is given. ``as_of``, with a branch, is
        an instant with a time zone: the newest snapshot at or before it is meant.

        Raises ``InvalidInputError`` (arguments do not fit together, ``as_of`` has no time zone) or
        ``NotFoundError`` (the text lists what exists).
        """
        history = self._history()
        return self._resolve(history, branch=branch, tag=tag, snapshot=snapshot, as_of=as_of)

    def ancestry(self, **version: Unpack[VersionArguments]) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first; arguments as for ``resolve``.

        Spec version 1 costs one request for each snapshot, made when it is asked for.
        """
        history = self._history()
        return history.ancestry(self._resolve(history, **version))

    def snapshot_info(self, snapshot_id: SnapshotId | str) -> SnapshotInfo:
        """Return parent, time, message and metadata of a snapshot."""
        return entry_of(self._history(), snapshot_id, repository_url=str(self.location))

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the entries of all snapshots, in no order.

        Spec version 2 lists them, detached ones included. Version 1 has those that a branch or tag
        reaches, at one request for each.
        """
        return self._history().snapshots()

    def graph(self) -> list[GraphEntry]:
        """Return all versions that branches and tags reach, newest first, with their names.

        Children come before parents. Costs are those of ``snapshots``.
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
        """Return what changed from a snapshot to one of its descendants, else InvalidInputError."""
        history = self._history()
        first = self._resolve(history, snapshot=older)
        return changes_between(self.storage, history, first, self._resolve(history, snapshot=newer))

    # -- files ------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: SnapshotId | str) -> Snapshot:
        """Return a snapshot with all of its nodes."""
        return files.load_snapshot(self.storage, self._existing(snapshot_id))

    def transaction_log(self, snapshot_id: SnapshotId | str) -> TransactionLog:
        """Return what a snapshot changed; spec version 1 has no log of the first snapshot."""
        return files.load_transaction_log(self.storage, self._existing(snapshot_id))

    def manifest(self, manifest_id: ManifestId, size_hint: int | None = None) -> Manifest:
        """Return a manifest; see ``metadata_files.load_manifests``."""
        return files.load_manifests(self.storage, [manifest_id], [size_hint])[0]

    def chunk_source(
        self,
        *,
        authorized: Sequence[str] = (),
        virtual_options: Mapping[str, str] | None = None,
    ) -> ChunkSource:
        """Return a picklable value that fetches chunks of this repository in any process.

        Virtual chunk containers are those of the state that this object read last. ``authorized``
        are URL prefixes from which virtual chunks may be fetched (option ``virtual.authorize``),
        ``virtual_options`` are options ``virtual.storage.*`` without that prefix. Raises
        ``InvalidInputError`` where a prefix has no bucket or host, or no store knows an option.
        """
        containers = self.as_read().config.virtual_chunk_containers
        return checked_source(self.location, containers, authorized, virtual_options or {})

    # -- sessions and restoring -------------------------------------------------------------

    def writable_session(
        self, branch: str = "main", *, base: SnapshotId | None = None
    ) -> WriteSession:
        """Begin a session that changes a branch.

        ``base`` is the version of the branch that the work was planned on; None is the newest. A
        commit is rebased over what others have committed since, or finds a conflict.
        """
        check_writable(self.storage)
        # For the newest version, no check: the commit of an earlier session has changed the state.
        state = self._state(is_read=base is None)
        history = self._history() if state is None else RepoInfoHistory(state.info)
        # Raises for a read-only repository, before the branch is looked up.
        status = None if state is None else state.info.status
        tip = writable_tip(self.storage, branch, status=status, state=self._held)
        return WriteSession(
            self.storage,
            tip,
            files.load_snapshot(self.storage, base or self._resolve(history, branch=branch)),
            config=self.config if state is None else config_in(state.info),
            spec_version=self.spec_version,
        )

    def writable_tip(self, branch: str) -> BranchTip:
        """Return the end of a branch, with which sessions and maintenance move the branch."""
        check_writable(self.storage)
        return writable_tip(self.storage, branch, status=self.status)

    def restore(
        self,
        branch: str,
        snapshot: SnapshotId | str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> CommitResult:
        """Commit an earlier version again, on top of a branch; later versions stay in history.

        No data are copied: nodes, chunks and their ids are those of the earlier version. To drop
        the later versions instead, use ``reset_branch``. Without a message, one says what was
        restored; ``metadata`` are JSON values by name, kept with the version.

        Raises ``InvalidInputError`` (the branch holds just that) or ``ConflictError`` (the branch
        moved meanwhile; nothing was committed).
        """
        seen = self.resolve(branch=branch)
        format = ManifestFormat(spec_version=self.spec_version, config=self.config)
        return restore_snapshot(
            self.storage,
            self.writable_tip(branch),
            format,
            seen,
            self.resolve(snapshot=snapshot),
            message=message,
            metadata=metadata,
        )

    # -- branches and tags ------------------------------------------------------------------

    def create_branch(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a branch at a snapshot.

        Raises ``AlreadyExistsError``, or ``InvalidInputError`` for a malformed name; names of spec
        version 1 hold no ``/``.
        """
        self._refs().create_branch(name, self.resolve(snapshot=snapshot))

    def delete_branch(self, name: str) -> None:
        """Delete a branch, but never ``main``; its versions stay until they are collected."""
        self._refs().delete_branch(name)

    def reset_branch(
        self, name: str, to: SnapshotId | str, from_: SnapshotId | str | None = None
    ) -> None:
        """Move a branch to any snapshot; with ``from_``, only if it is at that snapshot now.

        Raises ``ConflictError`` where the branch is not at ``from_``.
        """
        expected = None if from_ is None else self.resolve(snapshot=from_)
        self._refs().reset_branch(name, self.resolve(snapshot=to), expected)

    def fast_forward(self, branch: str, to: str) -> SnapshotId:
        """Move a branch to the tip of branch ``to``, which descends from it; return that snapshot.

        Write, audit, publish: commit to an audit branch, look at it, then move ``main`` there.

        Raises ``ConflictError`` where both branches have versions that the other has not.
        """
        return self._refs().fast_forward(branch, to)

    def create_tag(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a tag at a snapshot; a tag cannot be moved.

        Raises ``AlreadyExistsError`` (there is or was such a tag), ``ReadOnlyError`` (creating
        tags is switched off) or ``InvalidInputError`` (a malformed name).
        """
        self._refs().create_tag(name, self.resolve(snapshot=snapshot))

    def delete_tag(self, name: str) -> None:
        """Delete a tag, unless a feature flag forbids it; its name cannot be used again."""
        self._refs().delete_tag(name)

    # -- upkeep -----------------------------------------------------------------------------

    def upgrade(self, *, dry_run: bool = False, progress: ProgressOption = None) -> UpgradeReport:
        """Upgrade from spec version 1 to 2, or finish an interrupted upgrade; see ``upgrade``."""
        report = upgrade_repository(self.storage, dry_run=dry_run, progress=progress)
        if not dry_run:
            self.spec_version = SPEC_V2
        return report

    def expire_snapshots(
        self,
        older_than: Cutoff,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
    ) -> ExpireResult:
        """Take snapshots that were committed before an instant out of history.

        Roots of histories and tips of branches and tags stay; the oldest snapshot that is kept gets
        the root as its parent. Files stay until ``maintenance.collect_garbage`` runs. The flags
        also delete branches (never ``main``) and tags whose snapshot was committed before
        ``older_than``: an instant with a time zone, or an age, such as ``"30d"`` or a
        ``timedelta``. ``dry_run`` only reports what would be done.

        Raises ``InvalidInputError`` (no such cutoff) or ``ReadOnlyError`` (a tag would go, and
        deleting tags is switched off).
        """
        run = expire_snapshots_v1 if self._version_now() == SPEC_V1 else expire_snapshots
        return run(
            self.storage,
            parse_cutoff(older_than, argument="older_than"),
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
            dry_run=dry_run,
        )

    # -- settings ---------------------------------------------------------------------------

    @property
    def config(self) -> RepositoryConfig:
        """The stored configuration, with the defaults for what it leaves open."""
        state = self._state()
        return read_yaml_config(self.storage) if state is None else config_in(state.info)

    def update_config(self, changes: Mapping[str, Any]) -> RepositoryConfig:
        """Change settings of the stored configuration and keep all others; returns the new one.

        ``changes`` is a tree like the configuration itself, such as ``{"manifest": {"splitting":
        [SplittingRule(...)]}, "virtual_chunk_containers": {"s3://bucket/": {"store": {"s3":
        {"region": "eu-central-1"}}}}}``. Maps are merged; None gives a setting back to its
        default, or removes a container. Splitting rules and containers are given as values or as
        their trees. Raises ``InvalidInputError`` for an unknown setting or a wrong value.
        """
        return change_config(self.storage, changes, spec_version=self._version_now())

    def save_config(self, config: RepositoryConfig) -> RepositoryConfig:
        """Store what was replaced in a configuration that ``config`` gave; see ``update_config``.

        Only replaced settings are stored, so changes that others made meanwhile stay.
        ``RepositoryConfig(...)`` stores what differs from the defaults.
        """
        return self.update_config(changes_in(config))

    @property
    def status(self) -> RepoStatus | None:
        """Whether the repository takes changes; None for spec version 1, which has no status."""
        state = self._state()
        return None if state is None else state.info.status

    def set_status(self, availability: Availability, reason: str | None = None) -> None:
        """Open or close the repository for changes; UnsupportedError for spec version 1."""
        now = now_in_microseconds()
        change_setting(
            self.storage,
            self._version_now(),
            "a status",
            lambda info: transitions.set_status(info, availability, now=now, reason=reason),
            even_if_read_only=True,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the repository itself; empty for spec version 1."""
        state = self._state()
        return {} if state is None else state.info.metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository itself; see ``set_status``."""
        self._change("metadata", lambda info: transitions.set_metadata(info, metadata))

    def feature_flags(self) -> dict[int, bool]:
        """Return the flags that were set, by number; all others have their defaults."""
        state = self._state()
        return {} if state is None else transitions.flags_of(state.info)

    def set_feature_flag(self, flag: int, value: bool | None) -> None:
        """Switch a feature on or off, or back to its default with None; see ``set_status``."""
        self._change("feature flags", lambda info: transitions.set_flag(info, flag, value))

    # -- inside -----------------------------------------------------------------------------

    @classmethod
    def _at(cls, place: Location) -> Repository | None:
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
        """Return the spec version, after an upgrade through another handle the new one."""
        if self.spec_version == SPEC_V1 and self.storage.head(REPO) is not None:
            self.spec_version = SPEC_V2
        return self.spec_version

    def _change(self, what: str, change: Callable[[RepoInfo], Transition]) -> None:
        change_setting(self.storage, self._version_now(), what, change)

    def _refs(self) -> RefsChanges:
        return refs_changes(self.storage, spec_version=self._version_now())

    def _state(self, *, is_read: bool = False) -> RepoState | None:
        """Return the current state, read even if it may be known; None for spec version 1."""
        if self._held is not None or self._version_now() == SPEC_V1:
            return self._held
        return self._repo_file.existing(is_read=is_read)

    def _history(self) -> History:
        state = self._state()
        return RefFilesHistory(self.storage) if state is None else RepoInfoHistory(state.info)

    def _resolve(self, history: History, **version: Unpack[VersionArguments]) -> SnapshotId:
        return resolve(history, **version, repository_url=str(self.location))

    def _existing(self, snapshot_id: SnapshotId | str) -> SnapshotId:
        """Check that a snapshot belongs to the repository, by a request only if not yet known."""
        known = self._held or self._repo_file.known()
        if known and not isinstance(snapshot_id, str) and snapshot_id in known.info.snapshots:
            return snapshot_id
        return self._resolve(self._history(), snapshot=snapshot_id)
