"""Plans a copy: finds snapshots and manifests missing in the target, and checks the target.

Rules of this file
------------------
1. Snapshots keep their ids. History is copied back to the newest snapshot that exists in the
   target.
2. A branch of the target only moves forward: its tip must be an ancestor of the copied tip,
   possibly an expired one.
3. A target that is not a repository may contain only objects of an earlier copy.
4. Memory: one entry for each snapshot of the history, 24 bytes for each manifest, and one snapshot
   file at a time.

Specification: "Repo Info File", "Snapshot Files".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.config.config import RepositoryConfig
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsupportedError,
)
from icechunk_format.maintenance.copying.objects import CopyContext
from icechunk_format.maintenance.garbage.marks import distinct_manifests
from icechunk_format.progress import ProgressOption
from icechunk_format.repository import Repository
from icechunk_format.repository.history import snapshots_after
from icechunk_format.repository.lifecycle.discovery import MAIN_REF
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.repo_file import RepoFile
from icechunk_format.repository.state.transitions import MAIN, check_status
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import Storage, check_writable

_TASK_REFS: Final = 1_000_000
_TASK_FILES: Final = 256
_LOOKED_AT: Final = 1_000


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """A planned copy.

    Parameters
    ----------
    tip
        The snapshot that the branch of the target will point to.
    new
        The snapshots missing in the target, newest first.
    squashed
        The snapshot of the source that becomes the tip, if history is not copied.
    manifests
        The manifests to read and copy (``LISTED``): one array for each task.
    """

    source: Repository
    context: CopyContext
    branch: str
    tip: SnapshotId
    new: tuple[SnapshotInfo, ...]
    squashed: SnapshotInfo | None
    target_exists: bool
    manifests: tuple[NDArray[np.void], ...]
    references: int


def plan_copy(
    source: Place,
    target: Place,
    *,
    branch: str | None = None,
    tag: str | None = None,
    target_branch: str | None = None,
    history: bool = True,
    progress: ProgressOption = None,
) -> CopyPlan:
    """Plan a copy, with the arguments and errors of ``copy``."""
    repository = Repository.open(source)
    place = Location.of(target)
    storage = open_storage(place)
    if str(place) == str(repository.location) and place.options == repository.location.options:
        raise InvalidInputError(
            f"source and target are both {place}; to duplicate the history, create a branch",
            target=str(place),
        )
    check_writable(storage)
    if target_branch == "":
        raise InvalidInputError("the branch of the target has no name; give one")
    if target_branch is None:
        target_branch = branch or MAIN
    existing = _target_state(storage, place)
    line = list(repository.ancestry(branch=branch, tag=tag))
    squashed = None
    if not history and len(line) > 1:
        squashed = line[0]
        line = [_squashed(line[0], line[-1]), line[-1]]
    tip = line[0].id
    known: Mapping[SnapshotId, SnapshotInfo] = {} if existing is None else existing.snapshots
    if existing is not None:
        check_status(existing.status)
        check_branch(existing, target_branch, line, place)
        _check_containers(repository.config, Repository.open(place).config, place)
    new = tuple(takewhile(lambda info: info.id not in known, line))
    to_read = [squashed.id if squashed is not None and info.id == tip else info.id for info in new]
    listed = distinct_manifests(repository.storage, to_read, progress=progress)
    return CopyPlan(
        source=repository,
        context=CopyContext(source=repository.location, target=place),
        branch=target_branch,
        tip=tip,
        new=new,
        squashed=squashed,
        target_exists=existing is not None,
        manifests=tuple(
            listed[rows]
            for rows in sized_batches(enumerate(listed["refs"].tolist()), _TASK_FILES, _TASK_REFS)
        ),
        references=int(listed["refs"].sum(dtype=np.uint64)),
    )


def _target_state(storage: Storage, place: Location) -> RepoInfo | None:
    state = RepoFile(storage).fetch()
    if state is not None:
        return state.info
    if storage.head(MAIN_REF) is not None:
        raise UnsupportedError(
            f"the repository at {place} has spec version 1, and a copy needs version 2; "
            "upgrade it first, or choose another location",
            spec_version=1,
        )
    copied = (CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS)
    for found in islice(storage.list(""), _LOOKED_AT):
        if not found.key.startswith(copied):
            raise AlreadyExistsError(
                f"{place} contains {found.key!r} and is not a repository; choose an empty one, "
                "or one with only objects of an unfinished copy",
                found=(found.key,),
            )
    return None


def check_branch(info: RepoInfo, branch: str, line: list[SnapshotInfo], place: object) -> None:
    """Raise ConflictError if the tip of a branch of the target is not in the copied history."""
    tip = info.branches.get(branch)
    if tip is None or snapshots_after(tip, line) is not None:
        return
    raise ConflictError(
        f"branch {branch!r} of {place} is at snapshot {tip}, which is not in the copied history, "
        "so its snapshots would be lost; copy to another branch, with target_branch, "
        "or reset this one if they are not needed",
        branch=branch,
        found=str(tip),
    )


def _squashed(tip: SnapshotInfo, root: SnapshotInfo) -> SnapshotInfo:
    """Return the snapshot that replaces the history, with a reproducible id."""
    digest = hashlib.blake2b(tip.id.raw + b" without " + root.id.raw, digest_size=SnapshotId.SIZE)
    return replace(
        tip,
        id=SnapshotId(digest.digest()),
        parent_id=root.id,
        flushed_at=max(now_in_microseconds(), root.flushed_at + 1),
        pruned_ancestor_tx_logs=(),
    )


# -- containers ------------------------------------------------------------------------------


def _check_containers(source: RepositoryConfig, target: RepositoryConfig, place: Location) -> None:
    """Raise InvalidInputError if a container name has different URLs in source and target."""
    names = {c.name: c.url_prefix for c in target.virtual_chunk_containers if c.name is not None}
    for container in source.virtual_chunk_containers:
        there = names.get(container.name or "")
        if there is not None and there != container.url_prefix:
            raise InvalidInputError(
                f"the virtual chunk container {container.name!r} is {container.url_prefix} in the "
                f"source and {there} in {place}, so virtual chunks would be looked for in the "
                "wrong place; rename one of the containers",
                name=container.name,
            )


def missing_containers(source: RepositoryConfig, target: RepositoryConfig) -> dict[str, Any]:
    """Return the stored containers of the source that are missing in the target, by prefix."""
    have = {container.url_prefix for container in target.virtual_chunk_containers}
    wanted = {c.url_prefix for c in source.virtual_chunk_containers} - have
    stored = source.raw.get("virtual_chunk_containers") or {}
    return {key: tree for key, tree in stored.items() if tree.get("url_prefix", key) in wanted}
