"""Moves a branch to a snapshot that uses files of another snapshot, which may become garbage.

In version 2 the other snapshot must be listed when the commit lands. If no ref reaches it, the
update adds a marker to it (``revival``): a concurrent garbage collection either removed it before,
or starts over. In version 1 its file must exist after the commit, or the branch is moved back. This
library's garbage collection reads the refs after it deleted such files, so that either it or the
commit detects the other; those of other libraries do not.

Specification: "Repo Info File".
"""

from __future__ import annotations

from icechunk_format.repository.history.history import ref_key
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip, RefBranchTip, RepoBranchTip
from icechunk_format.repository.state.branches_and_tags import is_reached
from icechunk_format.repository.state.publish import exists_after, update_branch_ref
from icechunk_format.repository.state.repo_file import RepoState
from icechunk_format.repository.state.revival import marker_on
from icechunk_format.repository.state.transitions import TipMoved, Transition, add_commit
from icechunk_format.spec.object_keys import snapshot_key
from icechunk_format.spec.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.protocol import Storage


class _RepoTip(RepoBranchTip):
    def __init__(
        self, storage: Storage, branch: str, state: RepoState | None, used: Snapshot
    ) -> None:
        super().__init__(storage, branch, state)
        self._used = used
        self._marker = marker_on(used.id, used.flushed_at)

    def copy_to_store(self) -> tuple[tuple[str, bytes], ...]:
        return (*super().copy_to_store(), *self._marker.files)

    def advance(self, snapshot: SnapshotInfo) -> TipMoved | None:
        used = self._used.id

        def change(info: RepoInfo) -> Transition | TipMoved:
            if used not in info.snapshots:
                raise conflict_errors.snapshot_removed(self._storage, used)
            answer = add_commit(info, self.branch, snapshot)
            if isinstance(answer, TipMoved) or is_reached(info, used):
                return answer
            return self._marker.added_to(answer)

        seen, self._seen = self._seen, None
        return self._update(snapshot, change, seen=seen)


class _RefTip(RefBranchTip):
    def __init__(self, storage: Storage, branch: str, used: Snapshot) -> None:
        super().__init__(storage, branch)
        self._used = used

    def advance(self, snapshot: SnapshotInfo) -> TipMoved | None:
        moved = super().advance(snapshot)
        if moved is not None or snapshot.parent_id is None:
            return moved
        used, key = self._used.id, ref_key(self._storage, "branch", self.branch)
        if not exists_after(self._storage, snapshot_key(used), written=key):
            before = snapshot.parent_id
            answer = update_branch_ref(
                self._storage, self.branch, before, expected=snapshot.id, key=key
            )
            if answer.tip == before:
                raise conflict_errors.snapshot_removed(self._storage, used)
            outcome = f"it was committed as {snapshot.id}, which later ones build on"
            raise conflict_errors.snapshot_removed(self._storage, used, outcome)
        return moved


def tip_using(
    tip: BranchTip, storage: Storage, used: Snapshot, *, state: RepoState | None = None
) -> BranchTip:
    """Return the same branch for a next commit that uses files of a snapshot."""
    if isinstance(tip, RefBranchTip):
        return _RefTip(storage, tip.branch, used)
    return _RepoTip(storage, tip.branch, state, used)
