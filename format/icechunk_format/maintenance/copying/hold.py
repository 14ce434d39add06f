"""What an unfinished copy has stored is kept from collections in the target: by a branch.

An interrupted copy leaves chunks that nothing refers to, which the next one skips. A collection in
between, or beside the next one, would delete them as old garbage, when they are skipped already. So
a copy into a repository creates the branch ``copying/BRANCH`` once its manifests are stored, and
before it looks at chunks: on a snapshot without nodes that lists these manifests. A collection of
any library keeps their chunks then, and finds each of those that the copy skips. The branch goes
when the copy is published; a copy that never gets there can be given up by deleting the branch.

Where there is no repository yet, nobody collects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.revival import marker_on
from icechunk_format.repository.state.transitions import MAIN, TipMoved, Transition
from icechunk_format.spec.ids import ManifestId
from icechunk_format.spec.repo_info.updates import BranchCreatedUpdate, BranchResetUpdate
from icechunk_format.spec.snapshot.manifest_lists import ManifestFiles
from icechunk_format.storage.location import open_storage

if TYPE_CHECKING:
    from icechunk_format.maintenance.copying.plan import CopyPlan
    from icechunk_format.spec.repo_info.file import RepoInfo


def hold_copy(plan: CopyPlan) -> None:
    """Keep the chunks of stored manifests from collections until ``release_copy``.

    Raises
    ------
    CommitOutcomeUnknownError, ConflictError, ReadOnlyError, StorageError
        The target could not be changed.
    """
    if not plan.target_exists or not plan.manifests:
        return
    target = open_storage(plan.context.target)
    branch = _branch(plan)
    ids = b"".join(piece.ids for piece in plan.manifests)
    files = ManifestFiles.of(
        np.frombuffer(ids, dtype=np.uint8).reshape(-1, ManifestId.SIZE),
        np.frombuffer(b"".join(piece.sizes for piece in plan.manifests), dtype="<u8"),
        np.frombuffer(b"".join(piece.refs for piece in plan.manifests), dtype="<u4"),
    )
    newest = plan.new[0]
    marker = marker_on(
        newest.id,
        newest.flushed_at,
        manifest_files=files,
        message=f"Keeps what is copied to branch {plan.branch}, up to snapshot {plan.tip}",
    )
    target.put_many(marker.files)

    def change(info: RepoInfo) -> Transition:
        # On that of an interrupted copy, whose chunks stay as well.
        previous = info.branches.get(branch)
        parent = info.ancestry(info.branches[MAIN])[-1].id if previous is None else previous
        held = replace(marker.info, parent_id=parent)
        return Transition(
            info=replace(
                info,
                snapshots={**info.snapshots, held.id: held},
                branches={**info.branches, branch: held.id},
            ),
            details=(
                BranchCreatedUpdate(name=branch)
                if previous is None
                else BranchResetUpdate(name=branch, previous_snap_id=previous)
            ),
        )

    update_repo(target, change, landed=lambda info: marker.info.id in info.snapshots)


def release_copy(plan: CopyPlan) -> None:
    """Delete the branch of ``hold_copy``, as the copy is published; errors are the same."""
    branch = _branch(plan)

    def change(info: RepoInfo) -> Transition | TipMoved:
        if branch not in info.branches:
            return TipMoved(branch=branch, tip=None)
        return repo_changes.delete_branch(info, branch)

    if plan.target_exists:
        update_repo(open_storage(plan.context.target), change)


def _branch(plan: CopyPlan) -> str:
    return f"copying/{plan.branch}"
