"""Errors of commits that conflict with commits of other writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import ConflictError, NotFoundError
from icechunk_format.repository.changes.conflicts import RESOLVABLE, Conflict
from icechunk_format.storage.protocol import Storage

if TYPE_CHECKING:
    from icechunk_format.repository.state.transitions import TipMoved

_SHOWN_CONFLICTS: Final = 8


def tip_moved(storage: Storage, moved: TipMoved, expected: SnapshotId) -> ConflictError:
    """Return the error for a branch that is at another snapshot than expected."""
    where = "was deleted" if moved.tip is None else f"is at snapshot {moved.tip} now"
    return ConflictError(
        f"branch {moved.branch!r} of {storage.root_url} {where}, but snapshot {expected} was "
        "expected; nothing was changed. Rebase the session, or check the branch and try again",
        branch=moved.branch,
        expected=str(expected),
        found=None if moved.tip is None else str(moved.tip),
    )


def snapshot_removed(
    storage: Storage, snapshot_id: SnapshotId, outcome: str = "nothing was changed"
) -> NotFoundError:
    """Return the error for a snapshot that garbage collection removed during its use."""
    return NotFoundError(
        f"snapshot {snapshot_id} of {storage.root_url} was removed by garbage collection; "
        f"{outcome}, and its data may be gone",
        kind="snapshot",
        name=str(snapshot_id),
    )


def history_left(
    storage: Storage, branch: str, expected: SnapshotId, tip: SnapshotId
) -> ConflictError:
    """Return the error for a session whose base is no longer an ancestor of its branch."""
    return ConflictError(
        f"snapshot {expected}, at which this session began, is not in the history of branch "
        f"{branch!r} of {storage.root_url} any more: the branch was reset or amended, or, in spec "
        f"version 1, its history expired, and is at {tip} now. Nothing was committed; open a "
        "new session and make the changes again",
        branch=branch,
        expected=str(expected),
        found=str(tip),
        is_ancestor=False,
    )


def log_missing(
    storage: Storage, branch: str, log_id: SnapshotId, snapshot_id: SnapshotId
) -> ConflictError:
    """Return the error for a commit of another writer whose transaction log is missing."""
    return ConflictError(
        f"branch {branch!r} of {storage.root_url} has moved, and the transaction log {log_id} of "
        f"snapshot {snapshot_id} is missing, so conflicts cannot be detected; nothing "
        "was committed. Open a new session and make the changes again",
        branch=branch,
        snapshot=str(snapshot_id),
    )


def merge_conflicts(
    storage: Storage, source: str, into: str, found: Sequence[Conflict]
) -> ConflictError:
    """Return the error for a merge with conflicting changes."""
    can_resolve = all(c.kind in RESOLVABLE for c in found)
    advice = (
        f"decide with resolve='ours' (what {source} has) or 'theirs' (what branch {into!r} has)"
        if can_resolve
        else "change one side so that they agree, and merge again; resolve settles only "
        "chunks and cells that both wrote"
    )
    return ConflictError(
        f"{source} cannot be merged into branch {into!r} of {storage.root_url} ('here' is the "
        f"source, 'there' is the branch):\n{_shown(found)}\nnothing was committed; {advice}",
        branch=into,
        source=source,
        **_facts(found),
    )


def conflicting(storage: Storage, branch: str, found: Sequence[Conflict]) -> ConflictError:
    """Return the error for changes that conflict with those of other writers."""
    can_resolve = all(c.kind in RESOLVABLE for c in found)
    advice = (
        "decide with resolve='ours' or resolve='theirs', or open a new session"
        if can_resolve
        else "open a new session and make the changes again"
    )
    facts = _facts(found)
    return ConflictError(
        f"other writers have changed what this commit changes:\n{_shown(found)}\n"
        f"nothing was committed to branch {branch!r} of {storage.root_url}, since other writers "
        f"have changed {', '.join(facts['paths'][:_SHOWN_CONFLICTS])}; {advice}",
        branch=branch,
        **facts,
    )


def _shown(found: Sequence[Conflict]) -> str:
    more = len(found) - _SHOWN_CONFLICTS
    lines = [f"  {conflict}" for conflict in found[:_SHOWN_CONFLICTS]]
    return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)


def _facts(found: Sequence[Conflict]) -> dict[str, tuple[str, ...]]:
    return {
        "conflicts": tuple(str(conflict) for conflict in found),
        "kinds": tuple(conflict.kind.name for conflict in found),
        "paths": tuple(sorted({str(conflict.path) for conflict in found})),
        "snapshots": tuple(sorted({str(c.snapshot_id) for c in found if c.snapshot_id})),
    }
