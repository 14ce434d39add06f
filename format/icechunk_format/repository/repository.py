"""``Repository``: reads a repository and changes it.

Rules of this file
------------------
1. Users hold one class, so one file: methods are documented here, work is done elsewhere.
2. What only reads is in ``RepositoryReader``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from icechunk_format.progress import ProgressOption
from icechunk_format.repository.commit.commit import CommitResult
from icechunk_format.repository.files import metadata_files as files
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.history.history import RepoInfoHistory
from icechunk_format.repository.history.resolve import Cutoff, parse_cutoff
from icechunk_format.repository.lifecycle.create import create_repository
from icechunk_format.repository.lifecycle.expire import ExpireResult, expire_snapshots
from icechunk_format.repository.lifecycle.expire_v1 import expire_snapshots_v1
from icechunk_format.repository.lifecycle.restore import restore_snapshot
from icechunk_format.repository.lifecycle.upgrade import UpgradeReport, upgrade_repository
from icechunk_format.repository.merging.merge import Merge, MergeResult, parent_of
from icechunk_format.repository.reader import RepositoryReader
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.session.committing import Resolve
from icechunk_format.repository.session.editing import edit_attributes
from icechunk_format.repository.state import transitions
from icechunk_format.repository.state.branch_tip import BranchTip, writable_tip
from icechunk_format.repository.state.branches_and_tags import RefsChanges, refs_changes
from icechunk_format.repository.state.config import (
    change_config,
    change_setting,
)
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.repo_file import config_in
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.spec.config.changes import changes_in
from icechunk_format.spec.config.config import RepositoryConfig
from icechunk_format.spec.envelope import SPEC_V1, SPEC_V2
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.spec.repo_info.updates import Availability
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import check_writable


class Repository(RepositoryReader):
    """An Icechunk repository of spec version 1 or 2, to be read and changed.

    The constructor does no I/O and checks nothing; use ``Repository.open``.

    Methods that change the repository may raise, beside the errors of ``RepositoryReader``,
    ``ReadOnlyError`` (the repository or the storage is read-only), ``ConflictError`` (other writers
    changed the repository on every attempt; nothing was changed) and ``CommitOutcomeUnknownError``
    (the storage did not report whether the change landed).

    Examples
    --------
    >>> repository = Repository.open("s3://bucket/weather")
    >>> repository.create_tag("v1", repository.resolve(branch="main"))
    """

    @classmethod
    def create(
        cls, location: Place, *, spec_version: int = SPEC_V2, check_clean_root: bool = True
    ) -> Self:
        """Create a repository at an empty location and open it; see ``create_repository``.

        Spec version 1 is for old readers. Without ``check_clean_root`` the location may hold
        objects.
        """
        place = Location.of(location)
        create_repository(
            open_storage(place), spec_version=spec_version, check_clean_root=check_clean_root
        )
        return cls(place, spec_version=spec_version)

    # -- sessions and restoring -------------------------------------------------------------

    def writable_session(
        self, branch: str = "main", *, base: SnapshotId | None = None
    ) -> WriteSession:
        """Begin a session that changes a branch.

        ``base`` is the snapshot of the branch that the work was planned on; None is the newest. A
        commit is rebased over later commits of other writers, or raises ConflictError.
        """
        check_writable(self.storage)
        # For the newest snapshot, no check: the commit of an earlier session has changed the state.
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
        """Return the tip of a branch, with which sessions and maintenance move the branch."""
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
        """Commit an earlier snapshot again, on top of a branch; later snapshots stay in history.

        No data are copied: nodes, chunks and their ids are those of the earlier snapshot. To drop
        the later snapshots instead, use ``reset_branch``. The default message names the restored
        snapshot; ``metadata`` are JSON values by name.

        Raises ``InvalidInputError`` (the branch has the same content) or ``ConflictError`` (the
        branch moved meanwhile; nothing was committed).
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

    # -- editing ----------------------------------------------------------------------------

    def set_attributes(
        self,
        path: str,
        values: Mapping[str, Any],
        *,
        remove: Iterable[str] = (),
        branch: str = "main",
        message: str | None = None,
    ) -> CommitResult | None:
        """Set and remove attributes of a group or array, in a commit; None if nothing changed.

        ``values`` are JSON values by name. Raises NotFoundError (no such node) or
        InvalidInputError (a value is no JSON, or an attribute to remove does not exist).
        """
        session = self.writable_session(branch)
        removed = list(remove)
        if not edit_attributes(session, path, values, removed):
            return None
        names = ", ".join([*values, *removed])
        return session.commit(f"Edit attributes of {path}: {names}" if message is None else message)

    def rename(
        self, path: str, new_path: str, *, branch: str = "main", message: str | None = None
    ) -> CommitResult:
        """Give a group or array another path, in a commit; see ``WriteSession.move``."""
        session = self.writable_session(branch)
        session.move(path, new_path)
        return session.commit(f"Rename {path} to {new_path}" if message is None else message)

    def drop(self, path: str, *, branch: str = "main", message: str | None = None) -> CommitResult:
        """Delete a group or array with all that is in it, in a commit; older snapshots keep it."""
        session = self.writable_session(branch)
        session.delete(path)
        return session.commit(f"Drop {path}" if message is None else message)

    # -- merging ----------------------------------------------------------------------------

    def merge(
        self,
        source: str,
        into: str = "main",
        *,
        resolve: Resolve | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Commit what a branch changed since the common ancestor on top of another branch.

        The changes become one commit; no chunk is copied, and ``source`` stays as it is. A later
        merge of the same branches begins where this one ended.

        Parameters
        ----------
        source, into
            Branches; ``into`` takes the changes.
        resolve
            Chunks that both sides changed: ``"ours"`` takes those of ``source``, ``"theirs"``
            keeps those of ``into``; None is a conflict.
        message, metadata
            Of the commit. The default message names the branches; metadata are JSON values.
        dry_run
            Only return what would be merged, and the conflicts.

        Raises
        ------
        ConflictError
            Both sides changed the same, or the common ancestor is gone; nothing was committed.
        NotFoundError
            A branch does not exist.
        """
        message = f"Merge branch {source!r} into {into!r}" if message is None else message
        merge = self._merge(f"branch {source!r}", self.resolve(branch=source), into)
        return merge.run(resolve=resolve, message=message, metadata=metadata, dry_run=dry_run)

    def cherry_pick(
        self,
        snapshot: SnapshotId | str,
        onto: str = "main",
        *,
        resolve: Resolve | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Commit what one snapshot changed, against its parent, on top of a branch.

        Parameters and errors are those of ``merge``; the default message is that of the snapshot.
        InvalidInputError if the snapshot has no parent.
        """
        picked = self.resolve(snapshot=snapshot)
        parent = parent_of(self._history(), picked, self.storage.root_url)
        merge = self._merge(f"snapshot {picked}", picked, onto)
        merge = replace(merge, base=parent, records="picked_snapshot")
        message = self.snapshot_info(picked).message if message is None else message
        return merge.run(resolve=resolve, message=message, metadata=metadata, dry_run=dry_run)

    def _merge(self, name: str, source: SnapshotId, into: str) -> Merge:
        return Merge(
            storage=self.storage,
            history=self._history(),
            config=self.config,
            spec_version=self._version_now(),
            tip=self.writable_tip(into),
            name=name,
            source=source,
            target=self.resolve(branch=into),
        )

    # -- branches and tags ------------------------------------------------------------------

    def create_branch(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a branch at a snapshot.

        Raises ``AlreadyExistsError``, or ``InvalidInputError`` for a malformed name; names of spec
        version 1 hold no ``/``.
        """
        self._refs().create_branch(name, self.resolve(snapshot=snapshot))

    def delete_branch(self, name: str) -> None:
        """Delete a branch, but never ``main``; its snapshots stay until garbage collection."""
        self._refs().delete_branch(name)

    def reset_branch(
        self, name: str, to: SnapshotId | str, from_: SnapshotId | str | None = None
    ) -> None:
        """Move a branch to any snapshot; with ``from_``, only if it is at that snapshot now.

        Raises ``ConflictError`` if the branch is not at ``from_``.
        """
        expected = None if from_ is None else self.resolve(snapshot=from_)
        self._refs().reset_branch(name, self.resolve(snapshot=to), expected)

    def fast_forward(self, branch: str, to: str) -> SnapshotId:
        """Move a branch to the tip of branch ``to``, which descends from it; return that snapshot.

        Write, audit, publish: commit to an audit branch, look at it, then move ``main`` there.

        Raises ``ConflictError`` if each branch has snapshots that the other does not have.
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

    # -- maintenance ------------------------------------------------------------------------

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
        """Remove snapshots from history that were committed before ``older_than``.

        ``older_than`` is a timestamp with a time zone, or an age, such as ``"30d"`` or a
        ``timedelta``. Roots of histories and tips of branches and tags stay; the oldest kept
        snapshot gets the root as its parent. Files stay until ``maintenance.collect_garbage``
        runs. The flags also delete branches (never ``main``) and tags with an expired snapshot.
        ``dry_run`` only reports what would be done.

        Raises ``InvalidInputError`` (an invalid ``older_than``) or ``ReadOnlyError`` (a tag would
        be deleted, and deleting tags is switched off).
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

    def update_config(self, changes: Mapping[str, Any]) -> RepositoryConfig:
        """Change settings of the stored configuration and keep all others; returns the new one.

        ``changes`` is a tree like the configuration itself, such as ``{"manifest": {"splitting":
        [SplittingRule(...)]}, "virtual_chunk_containers": {"s3://bucket/": {"store": {"s3":
        {"region": "eu-central-1"}}}}}``. Maps are merged; None resets a setting to its
        default, or removes a container. Splitting rules and containers are values or their trees.
        Raises ``InvalidInputError`` for an unknown setting or a wrong value.
        """
        return change_config(self.storage, changes, spec_version=self._version_now())

    def save_config(self, config: RepositoryConfig) -> RepositoryConfig:
        """Store the settings that were replaced in a configuration; see ``update_config``.

        Only replaced settings are stored, so later changes by other writers stay.
        ``RepositoryConfig(...)`` stores what differs from the defaults.
        """
        return self.update_config(changes_in(config))

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

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository itself; see ``set_status``."""
        self._change("metadata", lambda info: transitions.set_metadata(info, metadata))

    def set_feature_flag(self, flag: int, value: bool | None) -> None:
        """Switch a feature on or off, or back to its default with None; see ``set_status``."""
        self._change("feature flags", lambda info: transitions.set_flag(info, flag, value))

    # -- inside -----------------------------------------------------------------------------

    def _change(self, what: str, change: Callable[[RepoInfo], Transition]) -> None:
        change_setting(self.storage, self._version_now(), what, change)

    def _refs(self) -> RefsChanges:
        return refs_changes(self.storage, spec_version=self._version_now())
