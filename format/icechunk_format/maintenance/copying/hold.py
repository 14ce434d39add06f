"""Creates a branch in the target that protects the chunks of an unfinished copy from collections.

A copy skips chunks that an interrupted one has left. A garbage collection could delete these
chunks after the copy has skipped them. So, before it looks for chunks, a copy creates the branch
``copying/BRANCH``, at a snapshot without nodes that lists the copied manifests: collections of any
library then keep their chunks. Publishing the copy deletes the branch. To give up a copy, delete
the branch. A target that is not yet a repository needs no branch: its garbage is not collected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from icechunk_format.maintenance.copying.plan import CopyPlan
from icechunk_format.maintenance.copying.publish import with_branch
from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.revival import marker_on
from icechunk_format.repository.state.transitions import MAIN, TipMoved, Transition
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.spec.snapshot.manifest_lists import ManifestFiles
from icechunk_format.storage.location import open_storage


def hold_copy(plan: CopyPlan) -> None:
    """Keep the chunks of stored manifests from collections until ``release_copy``."""
    if not plan.target_exists or not plan.manifests:
        return
    target = open_storage(plan.context.target)
    branch = _branch(plan)
    listed = np.concatenate(plan.manifests)
    files = ManifestFiles.of(listed["id"], listed["size"], listed["refs"])
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
        return with_branch(info, branch, held.id, [held])

    update_repo(target, change, landed=lambda info: marker.info.id in info.snapshots)


def release_copy(plan: CopyPlan) -> None:
    """Delete the branch of ``hold_copy`` once the copy is published."""
    branch = _branch(plan)

    def change(info: RepoInfo) -> Transition | TipMoved:
        if branch not in info.branches:
            return TipMoved(branch=branch, tip=None)
        return repo_changes.delete_branch(info, branch)

    if plan.target_exists:
        update_repo(open_storage(plan.context.target), change)


def _branch(plan: CopyPlan) -> str:
    return f"copying/{plan.branch}"
