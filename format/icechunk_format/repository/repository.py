"""``Repository``: reads a repository and changes it.

Long because it is the one class that users hold, with its documentation.

Rules of this file
------------------
1. This file only documents the methods of the public class and delegates their work.
2. Methods that only read are in ``RepositoryReader``. Merges need labels of arrays, so
   ``workflows.merging.repository`` adds them to this class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from icechunk_format.encoding.config.changes import changes_in
from icechunk_format.encoding.config.config import RepositoryConfig
from icechunk_format.encoding.envelope import SPEC_V1, SPEC_V2
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import RepoInfo
from icechunk_format.encoding.repo_info.updates import Availability
from icechunk_format.names import missing_attribute
from icechunk_format.progress import ProgressOption
from icechunk_format.repository.commit.commit import CommitResult
from icechunk_format.repository.files import metadata_files as files
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.history.history import RepoInfoHistory
from icechunk_format.repository.history.resolve import Cutoff, parse_cutoff
from icechunk_format.repository.lifecycle.create import create_repository
from icechunk_format.repository.lifecycle.expire import (
    ExpireResult,
    expire_snapshots,
    expire_snapshots_v1,
)
from icechunk_format.repository.lifecycle.restore import restore_snapshot
from icechunk_format.repository.lifecycle.upgrade import UpgradeReport, upgrade_repository
from icechunk_format.repository.reader import RepositoryReader
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.state import transitions
from icechunk_format.repository.state.branch_tip import BranchTip, writable_tip
from icechunk_format.repository.state.branches_and_tags import RefFilesChanges, RepoInfoChanges
from icechunk_format.repository.state.config import change_config, change_setting
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.repo_file import config_in
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import check_writable


class Repository(RepositoryReader):
    """An Icechunk repository of spec version 1 or 2, for reading and changing.

    The constructor does no I/O and checks nothing; use ``Repository.open``.

    Methods that change the repository may raise, in addition to the errors of ``RepositoryReader``,
    ``ReadOnlyError`` (the repository or the storage is read-only), ``ConflictError`` (other writers
    made conflicting changes, or changed the repository on every attempt; nothing was changed) and
    ``CommitOutcomeUnknownError`` (the storage did not report whether the change succeeded).

    Examples
    --------
    >>> repository = Repository.open("s3://bucket/weather")
    >>> repository.create_tag("v1", repository.resolve(branch="main"))
    """

    if not TYPE_CHECKING:  # which would take every attribute for an existing one

        def __getattr__(self, name: str) -> Any:
            """Refuse an attribute that does not exist."""
            raise missing_attribute(self, name)

    @classmethod
    def create(
        cls, location: Place, *, spec_version: int = SPEC_V2, check_clean_root: bool = True
    ) -> Self:
        """Create an empty repository with the branch ``main``, and return it.

        Parameters
        ----------
        location
            An empty location, or one with files of an interrupted creation: a ``Location``, a URL
            or a path.
        spec_version
            2, or 1 for old readers.
        check_clean_root
            If False, the location may contain objects, but no repository.

        Raises
        ------
        AlreadyExistsError
            The location contains a repository or other objects.
        InvalidInputError
            The location or the spec version is invalid.

        Examples
        --------
        >>> Repository.create("s3://bucket/weather")  # doctest: +SKIP
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
        """Return a session that changes a branch, in one commit.

        Parameters
        ----------
        branch
            The branch that a commit of the session moves.
        base
            The snapshot of the branch that the changes were planned on; None for the newest. A
            commit is rebased over later commits of other writers, or raises ConflictError.

        Raises
        ------
        NotFoundError
            The branch does not exist; with ``base``, that snapshot does not exist.

        Examples
        --------
        >>> session = repository.writable_session("main")  # doctest: +SKIP
        >>> session.commit("Add a group")  # doctest: +SKIP
        """
        check_writable(self.storage)
        # For the newest snapshot the state is read, since commits of earlier sessions changed it.
        state = self._state(is_read=base is None)
        history = self._history() if state is None else RepoInfoHistory(state.info)
        # Raises for a read-only repository, before the branch is resolved.
        status = None if state is None else state.info.status
        tip = writable_tip(self.storage, branch, status=status, state=self._held)
        snapshot = files.load_snapshot(self.storage, base or self._resolve(history, branch=branch))
        config = self.config if state is None else config_in(state.info)
        format = ManifestFormat(spec_version=self.spec_version, config=config)
        return WriteSession(self.storage, tip, snapshot, format)

    def writable_tip(self, branch: str) -> BranchTip:
        """Return the tip of a branch, which sessions and maintenance use to move the branch.

        Whether the branch exists is not checked.
        """
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
        """Commit an earlier snapshot again, on top of a branch, and return the commit.

        No data are copied: nodes, chunks and their ids are those of the earlier snapshot, and later
        snapshots stay in the history. To drop the later snapshots instead, use ``reset_branch``.

        Parameters
        ----------
        branch
            The branch that receives the commit.
        snapshot
            Id of any snapshot, on the branch or not.
        message, metadata
            Message and JSON values by name of the commit. The default message names the snapshot.

        Raises
        ------
        InvalidInputError
            The branch has the same content, or the id is malformed.
        NotFoundError
            The branch or the snapshot does not exist.
        ConflictError
            The branch moved in the meantime; nothing was committed.

        Examples
        --------
        >>> repository.restore("main", "1CECHNKREP0F1RSTCMT0")  # doctest: +SKIP
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
        """Set and remove attributes of a group or array, in one commit.

        Return the commit, or None if nothing changed.

        Parameters
        ----------
        path
            Path of the node, such as ``/t2m``; ``/`` is the root.
        values
            JSON values by name; attributes of other names do not change.
        remove
            Names of attributes to remove.
        branch
            The branch that receives the commit.
        message
            None for a message with the path and the names.

        Raises
        ------
        NotFoundError
            The branch, group or array does not exist.
        InvalidInputError
            A value is not JSON, or an attribute to remove does not exist.

        Examples
        --------
        >>> repository.set_attributes("/t2m", {"units": "K"}, remove=["history"])  # doctest: +SKIP
        """
        session = self.writable_session(branch)
        removed = list(remove)
        if not session.set_attributes(path, values, removed):
            return None
        names = ", ".join([*values, *removed])
        return session.commit(f"Edit attributes of {path}: {names}" if message is None else message)

    def rename(
        self, path: str, new_path: str, *, branch: str = "main", message: str | None = None
    ) -> CommitResult:
        """Move a group or array to another path, in one commit, and return the commit.

        Nodes in a group move with it. No data are copied.

        Parameters
        ----------
        path, new_path
            The current and the new path. The parent group of the new path must exist.
        branch, message
            As for ``set_attributes``; the default message names both paths.

        Raises
        ------
        NotFoundError
            The branch, the group or array, or the parent of the new path does not exist.
        AlreadyExistsError
            A node exists at the new path.
        InvalidInputError
            The node is the root or would move into itself, the new path is malformed, or the arrays
            of the new group would have different lengths of a dimension.
        ReadOnlyError
            A feature flag forbids moves.
        UnsupportedError
            The repository has spec version 1.
        """
        session = self.writable_session(branch)
        session.move(path, new_path)
        session.check_lengths()
        return session.commit(f"Rename {path} to {new_path}" if message is None else message)

    def drop(self, path: str, *, branch: str = "main", message: str | None = None) -> CommitResult:
        """Delete a group or array and its children, in one commit, and return the commit.

        Older snapshots do not change.

        Parameters
        ----------
        path
            Path of the node.
        branch, message
            As for ``set_attributes``; the default message names the path.

        Raises
        ------
        NotFoundError
            The branch, group or array does not exist.
        """
        session = self.writable_session(branch)
        session.delete(path)
        return session.commit(f"Drop {path}" if message is None else message)

    # -- branches and tags ------------------------------------------------------------------

    def create_branch(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a branch at a snapshot, given by its id.

        Raises
        ------
        AlreadyExistsError
            The branch exists.
        InvalidInputError
            The name is empty or contains NUL; in spec version 1, also ``/`` or characters that
            clients encode differently. Or the id is malformed.
        NotFoundError
            The snapshot does not exist.

        Examples
        --------
        >>> repository.create_branch("fix", repository.resolve(branch="main"))  # doctest: +SKIP
        """
        self._refs().create_branch(name, self.resolve(snapshot=snapshot))

    def delete_branch(self, name: str) -> None:
        """Delete a branch; garbage collection deletes snapshots that no branch or tag reaches.

        Raises
        ------
        NotFoundError
            The branch does not exist.
        InvalidInputError
            The branch is ``main``, which cannot be deleted.
        """
        self._refs().delete_branch(name)

    def reset_branch(
        self, name: str, to: SnapshotId | str, from_: SnapshotId | str | None = None
    ) -> None:
        """Move a branch to any snapshot; with ``from_``, only if the branch is at that snapshot.

        Raises
        ------
        NotFoundError
            The branch or a snapshot does not exist.
        ConflictError
            The branch is not at ``from_``.

        Examples
        --------
        >>> repository.reset_branch("main", "1CECHNKREP0F1RSTCMT0")  # doctest: +SKIP
        """
        expected = None if from_ is None else self.resolve(snapshot=from_)
        self._refs().reset_branch(name, self.resolve(snapshot=to), expected)

    def fast_forward(self, branch: str, to: str) -> SnapshotId:
        """Move a branch to the tip of branch ``to``, a descendant, and return that snapshot.

        Use it for write-audit-publish: commit to an audit branch, check it, then move ``main`` to
        it.

        Raises
        ------
        NotFoundError
            A branch does not exist.
        ConflictError
            The tip of ``branch`` is not in the history of ``to``; merge the branches instead.

        Examples
        --------
        >>> repository.fast_forward("main", "audit")  # doctest: +SKIP
        """
        return self._refs().fast_forward(branch, to)

    def create_tag(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a tag at a snapshot, given by its id; a tag cannot be moved.

        Raises
        ------
        AlreadyExistsError
            The tag exists, or was deleted.
        InvalidInputError
            The name or the id is malformed; see ``create_branch``.
        NotFoundError
            The snapshot does not exist.
        ReadOnlyError
            A feature flag forbids creating tags.
        """
        self._refs().create_tag(name, self.resolve(snapshot=snapshot))

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its name cannot be used again.

        Raises
        ------
        NotFoundError
            The tag does not exist.
        ReadOnlyError
            A feature flag forbids deleting tags.
        """
        self._refs().delete_tag(name)

    # -- maintenance ------------------------------------------------------------------------

    def upgrade(self, *, dry_run: bool = False, progress: ProgressOption = None) -> UpgradeReport:
        """Upgrade from spec version 1 to 2, or complete an interrupted upgrade.

        History, branches, tags, configuration and ids are kept; data are neither read nor written.
        Stop all writers first: libraries of version 1 cannot open the repository afterwards.

        Parameters
        ----------
        dry_run
            If True, nothing changes.
        progress
            Counts the snapshots that were read; see ``icechunk_format.progress``.

        Returns
        -------
        UpgradeReport
            Counts of snapshots and refs, and the files of version 1 that were deleted.

        Raises
        ------
        ConflictError
            Writers changed both versions after an interrupted upgrade, or kept changing one of
            them.
        """
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
        """Remove snapshots that were committed before a cutoff from the history.

        Roots of histories and tips of branches and tags are kept; the root becomes the parent of
        the oldest kept snapshot. ``maintenance.collect_garbage`` deletes the files.

        Parameters
        ----------
        older_than
            A timestamp with a time zone, an age (`timedelta`), or a string: an age such as
            ``"30d"``, with the units ``s``, ``min``, ``h``, ``d`` and ``w``, or an ISO 8601
            timestamp, by default in UTC.
        delete_expired_branches, delete_expired_tags
            If True, branches (except ``main``) and tags at an expired snapshot are deleted.
        dry_run
            If True, nothing changes.

        Returns
        -------
        ExpireResult
            The expired snapshots, and the deleted branches and tags.

        Raises
        ------
        InvalidInputError
            ``older_than`` is invalid.
        ReadOnlyError
            A tag would be deleted, but a feature flag forbids it.

        Examples
        --------
        >>> repository.expire_snapshots("30d").released_snapshots  # doctest: +SKIP
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
        """Change settings of the stored configuration, and return the new configuration.

        All other settings are kept.

        Parameters
        ----------
        changes
            A tree like the configuration itself. Maps are merged; None resets a setting to its
            default, or removes a container. Splitting rules and containers are objects or their
            trees.

        Raises
        ------
        InvalidInputError
            A setting is unknown, a value is invalid, or an option looks like a credential.

        Examples
        --------
        >>> store = {"s3": {"region": "eu-central-1"}}
        >>> repository.update_config(  # doctest: +SKIP
        ...     {"virtual_chunk_containers": {"s3://bucket/": {"store": store}}}
        ... )
        """
        return change_config(self.storage, changes, spec_version=self._version_now())

    def save_config(self, config: RepositoryConfig) -> RepositoryConfig:
        """Store the replaced settings of a configuration, and return the new configuration.

        Only replaced settings are stored, so concurrent changes of other settings are kept.
        ``RepositoryConfig(...)`` stores the settings that differ from the defaults.

        Raises ``InvalidInputError`` (a value is invalid, or ``previous_file`` was replaced).

        Examples
        --------
        >>> config = replace(repository.config, compression_level=9)  # doctest: +SKIP
        >>> repository.save_config(config)  # doctest: +SKIP
        """
        return self.update_config(changes_in(config))

    def set_status(self, availability: Availability, reason: str | None = None) -> None:
        """Allow or forbid changes of the repository, also if they are forbidden now.

        Parameters
        ----------
        availability
            ``Availability.ONLINE``, or ``Availability.READ_ONLY`` to forbid changes.
        reason
            The reason, for the errors of other writers.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.

        Examples
        --------
        >>> repository.set_status(Availability.READ_ONLY, "migration")  # doctest: +SKIP
        """
        now = now_in_microseconds()
        change_setting(
            self.storage,
            self._version_now(),
            "a status",
            lambda info: transitions.set_status(info, availability, now=now, reason=reason),
            even_if_read_only=True,
        )

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository itself, which are JSON values by name.

        Raises
        ------
        InvalidInputError
            A value is not JSON.
        UnsupportedError
            The repository has spec version 1.
        """
        self._change("metadata", lambda info: transitions.set_metadata(info, metadata))

    def set_feature_flag(self, flag: int, value: bool | None) -> None:
        """Enable or disable a feature.

        Parameters
        ----------
        flag
            Number of the feature: 3 moves nodes, 4 creates tags, 5 deletes tags.
        value
            True enables, False disables, None resets to the default, which is enabled.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.

        Examples
        --------
        >>> repository.set_feature_flag(5, False)  # doctest: +SKIP
        """
        self._change("feature flags", lambda info: transitions.set_flag(info, flag, value))

    # -- inside -----------------------------------------------------------------------------

    def _change(self, what: str, change: Callable[[RepoInfo], Transition]) -> None:
        change_setting(self.storage, self._version_now(), what, change)

    def _refs(self) -> RepoInfoChanges | RefFilesChanges:
        is_v1 = self._version_now() == SPEC_V1
        return RefFilesChanges(self.storage) if is_v1 else RepoInfoChanges(self.storage)
