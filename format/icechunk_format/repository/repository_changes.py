"""What a repository can be asked to change: sessions, branches, tags, status, flags, metadata.

``Repository`` inherits these methods; they are here because reading and changing are two things.
Each method is one change of the repository, made by ``refs_changes``, ``publish`` or a module of
its own; the length is that of their docstrings.

Specification: "Repo Info File", "Updates to the repo info file"; version 1: "Refs".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_format.errors import ReadOnlyError, UnsupportedError
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.lifecycle.expire import expire_snapshots
from icechunk_format.repository.lifecycle.expire_v1 import expire_snapshots_v1
from icechunk_format.repository.lifecycle.restore import RestorePlace, restore_snapshot
from icechunk_format.repository.lifecycle.upgrade import upgrade_repository
from icechunk_format.repository.session.session import WriteSession
from icechunk_format.repository.state import branches_and_tags as refs_changes
from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.branch_tip import RefBranchTip, RepoBranchTip
from icechunk_format.repository.state.config import change_config
from icechunk_format.repository.state.publish import now_in_microseconds, update_repo
from icechunk_format.spec.config.changes import changes_in
from icechunk_format.spec.envelope import SPEC_V1, SPEC_V2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from icechunk_format.repository.commit.commit import CommitResult
    from icechunk_format.repository.lifecycle.expire import ExpireResult
    from icechunk_format.repository.lifecycle.upgrade import UpgradeReport
    from icechunk_format.repository.state.branch_tip import BranchTip
    from icechunk_format.repository.state.transitions import Transition
    from icechunk_format.spec.config.config import RepositoryConfig
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.repo_info.file import RepoInfo
    from icechunk_format.spec.repo_info.updates import Availability, RepoStatus
    from icechunk_format.storage.location import Location
    from icechunk_format.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """What a session begins with, all of one state; the status is None in version 1."""

    base: SnapshotId
    config: RepositoryConfig
    status: RepoStatus | None


class RepositoryChanges(ABC):
    """The changing half of ``Repository``."""

    location: Location
    spec_version: int

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """The storage of the repository in this process."""

    @property
    @abstractmethod
    def config(self) -> RepositoryConfig:
        """The stored configuration."""

    @property
    @abstractmethod
    def status(self) -> RepoStatus | None:
        """Whether the repository takes changes; None for spec version 1."""

    @abstractmethod
    def resolve(
        self, *, branch: str | None = None, snapshot: str | SnapshotId | None = None
    ) -> SnapshotId:
        """Return the one snapshot that is meant."""

    def writable_session(
        self, branch: str = "main", *, base: SnapshotId | None = None
    ) -> WriteSession:
        """Begin a session that can change a branch.

        Parameters
        ----------
        branch
            The branch.
        base
            A version of it to begin with, where the work was planned on that; None is the newest.
            A commit passes what others have committed since, or finds a conflict.

        Raises
        ------
        NotFoundError
            There is no such branch.
        ReadOnlyError
            The repository is set to read-only, or the store cannot be written.
        FormatError, StorageError
            The repository cannot be read.
        """
        self._check_store()
        begun = self._begin(branch, base)
        return WriteSession(
            self.storage,
            self._tip(branch, begun.status),
            load_snapshot(self.storage, begun.base),
            config=begun.config,
            spec_version=self.spec_version,
        )

    @abstractmethod
    def _begin(self, branch: str, base: SnapshotId | None) -> SessionStart:
        """Return what a session needs to know, all of one state, from one request."""

    def writable_tip(self, branch: str) -> BranchTip:
        """Return the end of a branch for moving it, which sessions and upkeep do.

        Raises
        ------
        ReadOnlyError
            The repository is set to read-only, or the store cannot be written.
        """
        self._check_store()
        return self._tip(branch, self.status)

    def _check_store(self) -> None:
        if self.storage.is_read_only:
            raise ReadOnlyError(
                f"{self.location} can only be read; open the repository at a store that can be "
                "written",
                location=str(self.location),
            )

    def _tip(self, branch: str, status: RepoStatus | None) -> BranchTip:
        if status is not None:
            repo_changes.check_status(status)
        make_tip = RefBranchTip if self.spec_version == SPEC_V1 else RepoBranchTip
        return make_tip(self.storage, branch)

    def restore(
        self,
        branch: str,
        snapshot: SnapshotId | str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> CommitResult:
        """Commit an earlier version anew, on top of a branch; its history stays.

        Nodes, chunks and their ids are those of the earlier version; no data are copied. The
        transaction log of the new version says what the branch loses and gets back. To drop the
        later versions instead, use ``reset_branch``.

        Parameters
        ----------
        branch
            The branch.
        snapshot
            Any version of the repository.
        message
            None says what was restored.
        metadata
            JSON values by name, kept with the version.

        Raises
        ------
        NotFoundError
            There is no such branch or snapshot, or files of it are missing.
        InvalidInputError
            The branch holds just that already.
        ConflictError
            The branch moved meanwhile; nothing was committed. Look at what came in between.
        CommitOutcomeUnknownError, ReadOnlyError, FormatError, StorageError
            As for commits.
        """
        seen = self.resolve(branch=branch)
        place = RestorePlace(
            storage=self.storage,
            tip=self.writable_tip(branch),
            config=self.config,
            spec_version=self.spec_version,
        )
        return restore_snapshot(
            place, seen, self.resolve(snapshot=snapshot), message=message, metadata=metadata
        )

    # -- branches and tags ------------------------------------------------------------------

    def create_branch(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a branch at a snapshot.

        Raises
        ------
        AlreadyExistsError
            There is such a branch.
        NotFoundError
            There is no such snapshot.
        InvalidInputError
            The name or the id is malformed; names of spec version 1 hold no ``/``.
        CommitOutcomeUnknownError, ConflictError, ReadOnlyError, StorageError
            The repository could not be changed.
        """
        self._refs().create_branch(name, self.resolve(snapshot=snapshot))

    def delete_branch(self, name: str) -> None:
        """Delete a branch; its versions stay until they are collected.

        Raises
        ------
        NotFoundError
            There is no such branch.
        InvalidInputError
            It is ``main``.
        CommitOutcomeUnknownError, ConflictError, ReadOnlyError, StorageError
            The repository could not be changed.
        """
        self._refs().delete_branch(name)

    def reset_branch(
        self, name: str, to: SnapshotId | str, from_: SnapshotId | str | None = None
    ) -> None:
        """Move a branch to any snapshot.

        Parameters
        ----------
        from_
            Where the branch has to be; None moves it from anywhere.

        Raises
        ------
        NotFoundError
            There is no such branch or snapshot.
        ConflictError
            The branch is not at ``from_``; or the repository was changed by others all the time.
        CommitOutcomeUnknownError, ReadOnlyError, StorageError
            The repository could not be changed.
        """
        expected = None if from_ is None else self.resolve(snapshot=from_)
        self._refs().reset_branch(name, self.resolve(snapshot=to), expected)

    def fast_forward(self, branch: str, to: str) -> SnapshotId:
        """Move a branch to the tip of another one that stands on it; returns that snapshot.

        Write, audit, publish: commit to an audit branch, look at it, then move ``main`` there.

        Parameters
        ----------
        branch
            The branch to move.
        to
            The branch whose tip it gets.

        Raises
        ------
        ConflictError
            ``to`` does not stand on ``branch``: both have versions that the other has not.
        NotFoundError
            There is no such branch.
        CommitOutcomeUnknownError, ReadOnlyError, StorageError
            The repository could not be changed.
        """
        return self._refs().fast_forward(branch, to)

    def create_tag(self, name: str, snapshot: SnapshotId | str) -> None:
        """Create a tag at a snapshot, for good.

        Raises
        ------
        AlreadyExistsError
            There is or was such a tag.
        NotFoundError
            There is no such snapshot.
        ReadOnlyError
            The repository is read-only, or creating tags is switched off.
        InvalidInputError
            The name or the id is malformed; names of spec version 1 hold no ``/``.
        CommitOutcomeUnknownError, ConflictError, StorageError
            The repository could not be changed.
        """
        self._refs().create_tag(name, self.resolve(snapshot=snapshot))

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its name is never given out again.

        Raises
        ------
        NotFoundError
            There is no such tag.
        ReadOnlyError
            The repository is read-only, or deleting tags is switched off.
        CommitOutcomeUnknownError, ConflictError, StorageError
            The repository could not be changed.
        """
        self._refs().delete_tag(name)

    # -- spec version -----------------------------------------------------------------------

    def upgrade(self, *, dry_run: bool = False) -> UpgradeReport:
        """Upgrade a repository from spec version 1 to 2, or finish an interrupted upgrade.

        History, branches, tags, deleted tags, configuration and ids of snapshots stay. Data are
        neither read nor written: the cost is one small read per snapshot. Let no writer run
        meanwhile; libraries that know version 1 alone cannot open the repository afterwards.

        Parameters
        ----------
        dry_run
            Only say what would be done.

        Raises
        ------
        ConflictError
            An interrupted upgrade cannot be finished, because versions 1 and 2 were both changed
            after it; or writers never stopped.
        FormatError
            A file of version 1 is damaged; nothing was changed.
        NotFoundError
            There is no repository, or a snapshot of its history is missing.
        ReadOnlyError
            The store cannot be written.
        CommitOutcomeUnknownError, StorageError
            The store failed. Until the upgrade is run again, readers find version 1 or 2, each of
            them whole.
        """
        report = upgrade_repository(self.storage, dry_run=dry_run)
        if not dry_run:
            self.spec_version = SPEC_V2
        return report

    # -- upkeep -----------------------------------------------------------------------------

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
    ) -> ExpireResult:
        """Take snapshots that were committed before an instant out of history.

        The root of each history stays, and so do tips of branches and tags unless they are to go.
        The oldest snapshot that is kept stands on the root afterwards. Files stay until
        ``maintenance.collect_garbage`` runs.

        Parameters
        ----------
        older_than
            Snapshots committed strictly before that instant expire; with a time zone.
        delete_expired_branches
            Also delete branches whose tip has expired; never ``main``.
        delete_expired_tags
            Also delete tags whose snapshot has expired. Their names stay taken.
        dry_run
            Only say what would be done.

        Raises
        ------
        InvalidInputError
            The instant has no time zone.
        ReadOnlyError
            The repository is read-only; or a tag would go, and deleting tags is switched off.
        CommitOutcomeUnknownError, ConflictError, FormatError, StorageError
            The repository could not be read or changed.
        """
        run = expire_snapshots_v1 if self.spec_version == SPEC_V1 else expire_snapshots
        return run(
            self.storage,
            older_than,
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
            dry_run=dry_run,
        )

    # -- settings ---------------------------------------------------------------------------

    def set_status(self, availability: Availability, reason: str | None = None) -> None:
        """Open or close the repository for changes, with a reason for people.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.
        CommitOutcomeUnknownError, ConflictError, StorageError
            The repository could not be changed.
        """
        now = now_in_microseconds()
        self._change(
            "a status",
            lambda info: repo_changes.set_status(info, availability, now=now, reason=reason),
            even_if_read_only=True,
        )

    def set_feature_flag(self, flag: int, value: bool | None) -> None:
        """Switch a feature on or off, or back to its default with None; see ``set_status``."""
        self._change("feature flags", lambda info: repo_changes.set_flag(info, flag, value))

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository itself; see ``set_status``."""
        self._change("metadata", lambda info: repo_changes.set_metadata(info, metadata))

    def update_config(self, changes: Mapping[str, Any]) -> RepositoryConfig:
        """Change settings of the stored configuration and keep all others; returns the new one.

        Parameters
        ----------
        changes
            A tree like the configuration itself, such as ``{"manifest": {"splitting":
            [SplittingRule(...)]}, "virtual_chunk_containers": {"s3://bucket/": {"store": {"s3":
            {"region": "eu-central-1"}}}}}``.
            Maps are merged; None gives a setting back to its default, or removes a container.
            Splitting rules and containers are given as values or as their trees.

        Raises
        ------
        InvalidInputError
            A setting is not known, or its value has a wrong type or lies outside of its limits.
        FormatError
            The stored configuration is damaged.
        CommitOutcomeUnknownError, ConflictError, ReadOnlyError, StorageError
            The repository could not be changed.
        """
        return change_config(self.storage, changes, spec_version=self.spec_version)

    def save_config(self, config: RepositoryConfig) -> RepositoryConfig:
        """Store what was replaced in a configuration that ``config`` gave; see ``update_config``.

        Parameters
        ----------
        config
            For instance ``dataclasses.replace(repository.config, inline_chunk_threshold_bytes=0)``.
            Only what was replaced is stored, so that others' changes since the reading stay. A
            ``RepositoryConfig(...)`` of one's own stores what differs from the defaults.
        """
        return self.update_config(changes_in(config))

    def _change(
        self,
        what: str,
        change: Callable[[RepoInfo], Transition],
        *,
        even_if_read_only: bool = False,
    ) -> None:
        if self.spec_version == SPEC_V1:
            raise UnsupportedError(
                f"{self.location} has spec version 1, which knows no {what}; upgrade the "
                "repository to version 2 first",
                spec_version=SPEC_V1,
            )
        update_repo(self.storage, change, even_if_read_only=even_if_read_only)

    def _refs(self) -> refs_changes.RefsChanges:
        if self.spec_version == SPEC_V1:
            return refs_changes.RefFilesChanges(self.storage)
        return refs_changes.RepoInfoChanges(self.storage)
