"""Copies the history of a branch or tag to another repository in any storage.

Order of writing: manifests, a branch that protects their chunks from collections (``publish``),
chunks, snapshots and transaction logs, and last ``repo`` of the target, which makes all visible at
once. Ids stay, so a repeated copy continues an interrupted one, and a later copy adds new commits.

Specification: "Repo Info File".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display.lazily import shown_by
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
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.storage.location import Place
from icechunk_format.storage.measures import Measures


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """Result of a copy.

    Parameters
    ----------
    branch
        The branch of the target.
    snapshots, manifests, chunks
        Files that were stored.
    bytes
        Their size, transaction logs included.
    skipped_chunks
        Chunks that the target already had.
    snapshot_id
        The tip of that branch.
    dry_run
        True if nothing was stored. Manifests and chunks are then those of the new snapshots,
        whether or not the target has them, and the bytes are those of manifests.
    totals
        What Spark's tasks have read and written; None for a call in this process.
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
    """Copy the history of a branch or a tag into another repository.

    Snapshots, manifests and chunks keep their ids. Virtual chunks stay where they are; the
    containers of their locations are copied. A new repository also gets configuration, metadata
    and feature flags of the source, and spec version 2.

    Memory: 64 MiB or four of the largest chunks, 20 bytes for each distinct chunk, and an entry
    for each snapshot.

    Garbage may be collected in the target at the same time, with a cutoff older than the copy.
    Chunks that an interrupted copy into a repository has left are kept for the next one by the
    branch ``copying/TARGET_BRANCH``, which that one deletes.

    Parameters
    ----------
    source
        A repository of either spec version.
    target
        An empty location, or a repository of spec version 2. The same call continues a copy that
        was interrupted.
    branch, tag
        At most one; the default is the branch ``main``.
    target_branch
        The branch to create, or to move forward if its tip is in the copied history. The default
        is the name of the copied branch, and ``main`` for a tag. A new repository whose branch has
        another name gets a ``main`` at the first snapshot.
    history
        Whether to copy all snapshots, or only the newest one, as one snapshot on top of the first.
    dry_run
        Only return what would be stored, at most.
    progress
        Called with the progress; see ``icechunk_format.progress``.

    Returns
    -------
    CopyResult
        The files that were stored, and the tip of the target's branch.

    Raises
    ------
    NotFoundError
        The repository, branch or tag does not exist, or the source lacks an object.
    ConflictError
        The branch of the target has snapshots that the source lacks.
    AlreadyExistsError
        The target contains other objects.
    UnsupportedError
        The target has spec version 1.
    InvalidInputError
        Source and target are the same, or give one name to different virtual chunk containers.
    CommitOutcomeUnknownError, ReadOnlyError, FormatError, StorageError
        The storage failed, or a file is damaged. The target then shows nothing of the copy, unless
        the outcome is unknown.

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
        for piece in plan.manifests:
            copied, packed = copy_manifests(plan.context, piece, advance)
            manifests += copied
            pending.append(np.frombuffer(packed, dtype=CHUNK_ROW))
            if sum(map(len, pending)) > len(found):
                found, pending = distinct_chunks([found, *pending]), []
    hold_copy(plan)
    rows = distinct_chunks([found, *pending])
    chunks = copy_chunks(plan.context, rows, progress=progress)
    return finish_copy(plan, manifests, chunks, progress)


def planned_result(plan: CopyPlan) -> CopyResult:
    """Return the maximum counts of a copy, without storing anything."""
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
