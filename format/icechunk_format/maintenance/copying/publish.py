"""Publishes a copy: stores snapshots and transaction logs, then ``repo`` of the target.

A copy skips chunks left by an interrupted copy, and a garbage collection could delete such chunks
afterwards. Before it lists chunks, a copy therefore creates the branch ``copying/BRANCH`` at a
snapshot without nodes that lists the copied manifests: garbage collections of any library then keep
their chunks. Publishing the copy deletes the branch; to abandon a copy, delete the branch. A target
that is not yet a repository needs no branch, since its garbage is not collected.

The copy becomes visible in the target when ``repo`` is written. The next copy reuses the objects of
an interrupted copy.

Specification: "Repo Info File", "Initialize New Repository".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from icechunk_format.encoding.envelope import SPEC_V2
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REPO, snapshot_key, transaction_log_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import (
    BranchCreatedUpdate,
    BranchResetUpdate,
    RepoInitializedUpdate,
    RepoStatus,
    Update,
)
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import AlreadyExistsError, ConflictError
from icechunk_format.maintenance.copying.plan import CopyPlan, check_branch, missing_containers
from icechunk_format.maintenance.fetching import fetched_present
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.repository import Repository
from icechunk_format.repository.files import load_snapshot
from icechunk_format.repository.files.metadata_files import snapshot_objects
from icechunk_format.repository.lifecycle.create import create_object
from icechunk_format.repository.lifecycle.difference import difference
from icechunk_format.repository.state.publish import now_in_microseconds, update_repo
from icechunk_format.repository.state.repo_file import RepoFile
from icechunk_format.repository.state.revival import marker_on
from icechunk_format.repository.state.transitions import MAIN, Transition, delete_branch
from icechunk_format.storage.batches import batches
from icechunk_format.storage.location import open_storage
from icechunk_format.storage.protocol import ReadRequest, Storage

_FILES_AT_ONCE: Final = 64


def hold_copy(plan: CopyPlan) -> None:
    """Protect the chunks of stored manifests from garbage collection until ``release_copy``."""
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
        # On top of the branch of an interrupted copy, whose chunks are also kept.
        previous = info.branches.get(branch)
        parent = info.ancestry(info.branches[MAIN])[-1].id if previous is None else previous
        held = replace(marker.info, parent_id=parent)
        return with_branch(info, branch, held.id, [held])

    update_repo(target, change, landed=lambda info: marker.info.id in info.snapshots)


def release_copy(plan: CopyPlan) -> None:
    """Delete the branch of ``hold_copy`` after the copy is published."""
    branch = _branch(plan)

    def change(info: RepoInfo) -> Transition | None:
        return delete_branch(info, branch) if branch in info.branches else None

    if plan.target_exists:
        update_repo(open_storage(plan.context.target), change)


def _branch(plan: CopyPlan) -> str:
    return f"copying/{plan.branch}"


# -- publishing ------------------------------------------------------------------------------


def publish_copy(plan: CopyPlan, progress: ProgressOption = None) -> int:
    """Store and publish the snapshots of a copy; return the number of stored bytes."""
    source, target = plan.source.storage, open_storage(plan.context.target)
    stored = 0
    plain = [info for info in plan.new if plan.squashed is None or info.id != plan.tip]
    keys = [snapshot_key(info.id) for info in plain]
    logs = dict.fromkeys(
        log_id for info in plain for log_id in (*info.pruned_ancestor_tx_logs, info.id)
    )
    with phase(progress, "Copying snapshots", len(keys) + len(logs)) as advance:
        stored += _copy_files(source, target, keys, advance)
        keys = [transaction_log_key(log_id) for log_id in logs]
        stored += _copy_files(source, target, keys, advance, may_miss=True)
    if plan.squashed is not None and plan.new:
        stored += _store_squashed(plan, plan.squashed, target)
    if plan.target_exists:
        _add_to(plan, target)
    else:
        _create(plan, target)
    return stored


def _copy_files(
    source: Storage,
    target: Storage,
    keys: Sequence[str],
    advance: Callable[[int], None],
    *,
    may_miss: bool = False,
) -> int:
    """Copy small files. Logs may be missing, as for the first snapshot in spec version 1."""
    stored = 0
    for batch in batches(keys, _FILES_AT_ONCE):
        contents: list[bytes | None]
        if may_miss:
            contents = fetched_present(source, batch)
        else:
            contents = [*source.get_many([ReadRequest(key=key) for key in batch])]
        found = [(key, data) for key, data in zip(batch, contents, strict=True) if data is not None]
        target.put_many(found)
        stored += sum(len(data) for _, data in found)
        advance(len(batch))
    return stored


def _store_squashed(plan: CopyPlan, tip: SnapshotInfo, target: Storage) -> int:
    """Store the snapshot that replaces a history, with a log of all its nodes as new."""
    made, root = plan.new[0], plan.new[0].parent_id
    assert root is not None, "a squashed snapshot has the root of its line as parent"
    storage = plan.source.storage
    whole = load_snapshot(storage, tip.id)
    log = difference(storage, load_snapshot(storage, root), whole, snapshot_id=made.id)
    snapshot = replace(
        whole, id=made.id, parent_id=root, spec_version=SPEC_V2, flushed_at=made.flushed_at
    )
    files = snapshot_objects(snapshot, log)
    target.put_many(files)
    return sum(len(data) for _, data in files)


# -- an existing repository ------------------------------------------------------------------


def _add_to(plan: CopyPlan, target: Storage) -> None:
    containers = missing_containers(plan.source.config, Repository.open(plan.context.target).config)
    if containers:
        Repository.open(plan.context.target).update_config({"virtual_chunk_containers": containers})
    place = plan.context.target

    def change(info: RepoInfo) -> Transition | None:
        if info.branches.get(plan.branch) == plan.tip:
            return None
        check_branch(info, plan.branch, _whole_line(plan, info), place)
        base = plan.new[-1].parent_id if plan.new else plan.tip
        if base is not None and base not in info.snapshots:
            raise ConflictError(
                f"snapshot {base} of {place}, the parent of the copied snapshots, was removed "
                "while they were copied; copy again",
                snapshot=str(base),
            )
        return with_branch(info, plan.branch, plan.tip, plan.new)

    update_repo(target, change, landed=lambda info: info.branches.get(plan.branch) == plan.tip)


def with_branch(
    info: RepoInfo, branch: str, tip: SnapshotId, new: Iterable[SnapshotInfo]
) -> Transition:
    """Return a state with new snapshots, and with a branch created at or moved to one of them."""
    previous = info.branches.get(branch)
    return Transition(
        info=replace(
            info,
            snapshots={**{one.id: one for one in new}, **info.snapshots},
            branches={**info.branches, branch: tip},
        ),
        details=(
            BranchCreatedUpdate(name=branch)
            if previous is None
            else BranchResetUpdate(name=branch, previous_snap_id=previous)
        ),
    )


def _whole_line(plan: CopyPlan, info: RepoInfo) -> list[SnapshotInfo]:
    """Return the complete history of the target, newest first."""
    line = list(plan.new)
    rest = line[-1].parent_id if line else plan.tip
    return line if rest is None or rest not in info.snapshots else [*line, *info.ancestry(rest)]


# -- a new repository ------------------------------------------------------------------------


def _create(plan: CopyPlan, target: Storage) -> None:
    now = now_in_microseconds()
    root = plan.new[-1]
    found_state = RepoFile(plan.source.storage).fetch()
    state = None if found_state is None else found_state.info
    branches = {MAIN: root.id, plan.branch: plan.tip}
    info = RepoInfo(
        branches=branches,
        snapshots={one.id: one for one in plan.new},
        status=RepoStatus(set_at=now),
        config=_config(plan, state),
        latest_updates=(Update(details=RepoInitializedUpdate(), updated_at=now),),
    )
    if state is not None:
        info = replace(
            info,
            metadata_items=state.metadata_items,
            enabled_feature_flags=state.enabled_feature_flags,
            disabled_feature_flags=state.disabled_feature_flags,
        )
    try:
        create_object(target, REPO, repo_info.encode(info))
    except AlreadyExistsError as error:
        found = RepoFile(target).fetch()
        if found is None or found.info.branches.get(plan.branch) != plan.tip:
            place = str(plan.context.target)
            raise AlreadyExistsError(
                f"another writer created a repository at {place} during the copy; copy again to "
                "add the branch to it, or choose another location",
                location=place,
            ) from error


def _config(plan: CopyPlan, state: RepoInfo | None) -> bytes | None:
    """Return the configuration for the new repository.

    Storage settings are dropped if the kinds of storage differ: those of a local folder disable
    conditional updates, which would lose commits in a bucket.
    """
    tree: dict[str, Any] = dict(plan.source.config.raw)
    same_kind = plan.context.source.address.kind == plan.context.target.address.kind
    if state is not None and (same_kind or "storage" not in tree):
        return state.config
    if not same_kind:
        tree.pop("storage", None)
    return encode_flexbuffer(tree) if tree else None
