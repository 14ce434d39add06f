"""Copies the history of a branch or tag to another repository in any storage.

Order of writing: manifests, a branch that protects their chunks from garbage collection
(``publish``), chunks, snapshots and transaction logs, and finally ``repo`` of the target, which
makes the copy visible. Ids do not change, so a repeated copy continues an interrupted one, and a
later copy adds new commits.

Specification: "Repo Info File".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.maintenance.copying.objects import (
    CHUNK_ROW,
    Copied,
    copy_chunks,
    copy_manifests,
    distinct_chunks,
)
from icechunk_format.maintenance.copying.plan import CopyPlan, plan_copy
from icechunk_format.maintenance.copying.publish import hold_copy, publish_copy, release_copy
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.storage.location import Place
from icechunk_format.storage.measures import Measures


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of a copy.

    Attributes
    ----------
    branch
        The branch of the target.
    snapshots, manifests, chunks
        Number of stored files.
    bytes
        Size of the stored files, including transaction logs.
    skipped_chunks
        Number of chunks that existed in the target.
    snapshot_id
        The tip of the branch after the copy.
    dry_run
        True if nothing was stored. Manifests and chunks are then all those of the new snapshots,
        existing in the target or not, a chunk counts once for each manifest that references it, and
        bytes are those of manifests only.
    totals
        Requests and bytes of Spark's tasks; None for a call in this process.
    """

    branch: str
    snapshots: int
    manifests: int
    chunks: int
    bytes: int
    skipped_chunks: int
    snapshot_id: SnapshotId
    dry_run: bool = False
    totals: Measures | None = field(default=None, compare=False)


def copy(
    source: Place,
    target: Place,
    *,
    branch: str | None = None,
    tag: str | None = None,
    target_branch: str | None = None,
    history: bool = True,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> CopyResult:
    """Copy the history of a branch or a tag to another repository.

    Snapshots, manifests and chunks keep their ids. Virtual chunks are not copied, but their virtual
    chunk containers are. A new repository has spec version 2, and the configuration, metadata and
    feature flags of the source.

    Memory: the larger of 64 MiB and four of the largest chunks, 20 bytes for each distinct chunk,
    and an entry for each snapshot.

    Garbage may be collected in the target at the same time, with a cutoff before the start of the
    copy. The branch ``copying/TARGET_BRANCH`` protects the chunks of an interrupted copy for the
    next copy, which deletes the branch.

    Parameters
    ----------
    source
        A repository of either spec version.
    target
        An empty location, or a repository of spec version 2. Repeat the call to continue an
        interrupted copy.
    branch, tag
        At most one of them; default ``branch="main"``.
    target_branch
        The branch to create, or to move forward if its tip is in the copied history. Default: the
        name of the copied branch, ``main`` for a tag. A new repository always has a branch
        ``main``, if necessary at the first snapshot.
    history
        True copies all snapshots; False copies the newest, as one snapshot on top of the first.
    dry_run
        Return the maximum of what would be stored, and store nothing.
    progress
        Called with the progress; see ``icechunk_format.progress``.

    Returns
    -------
    CopyResult
        Counts of stored files, and the tip of the target's branch.

    Raises
    ------
    NotFoundError
        The source, the branch or the tag does not exist, or an object of the source is missing.
    ConflictError
        The branch of the target has snapshots that are not in the copied history.
    AlreadyExistsError
        The target contains other objects.
    UnsupportedError
        The target has spec version 1.
    InvalidInputError
        Source and target are the same, or have different virtual chunk containers of one name.
    CommitOutcomeUnknownError, ReadOnlyError, FormatError, StorageError
        The storage failed, or a file is damaged. The copy is not visible in the target, unless the
        outcome is unknown.

    Examples
    --------
    >>> copy("weather", "s3://bucket/weather", branch="main").chunks  # doctest: +SKIP
    """
    plan = plan_copy(
        source,
        target,
        branch=branch,
        tag=tag,
        target_branch=target_branch,
        history=history,
        progress=progress,
    )
    if dry_run:
        return planned_result(plan)
    manifests = Copied()
    found = np.empty(0, dtype=CHUNK_ROW)
    pending: list[NDArray[np.void]] = []
    with phase(progress, "Copying manifests", sum(map(len, plan.manifests))) as advance:
        for listed in plan.manifests:
            copied, rows = copy_manifests(plan.context, listed, advance)
            manifests += copied
            pending.append(rows)
            if sum(map(len, pending)) > len(found):
                found, pending = distinct_chunks([found, *pending]), []
    hold_copy(plan)
    rows = distinct_chunks([found, *pending])
    chunks = copy_chunks(plan.context, rows, progress=progress)
    return finish_copy(plan, manifests, chunks, progress)


def planned_result(plan: CopyPlan) -> CopyResult:
    """Return the maximum counts of a planned copy."""
    return CopyResult(
        branch=plan.branch,
        snapshots=len(plan.new),
        manifests=sum(map(len, plan.manifests)),
        chunks=plan.references,
        bytes=sum(int(listed["size"].sum()) for listed in plan.manifests),
        skipped_chunks=0,
        snapshot_id=plan.tip,
        dry_run=True,
    )


def finish_copy(
    plan: CopyPlan, manifests: Copied, chunks: Copied, progress: ProgressOption = None
) -> CopyResult:
    """Publish a copy whose manifests and chunks are stored."""
    stored = publish_copy(plan, progress)
    release_copy(plan)
    return CopyResult(
        branch=plan.branch,
        snapshots=len(plan.new),
        manifests=manifests.objects,
        chunks=chunks.objects,
        bytes=manifests.bytes + chunks.bytes + stored,
        skipped_chunks=chunks.skipped,
        snapshot_id=plan.tip,
    )
