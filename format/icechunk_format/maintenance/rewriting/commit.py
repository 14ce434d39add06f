"""Commits a rewrite: replaces manifests in the newest snapshot of the branch.

Rules of this file
------------------
1. Manifests never change. If an array still lists every rewritten manifest, the new manifests have
   the same references, independent of commits in between.
2. If an array no longer lists one of them, or a manifest of another commit overlaps a new manifest,
   the array is left unchanged and reported.
3. No node and no chunk changes, so the transaction log is empty and does not conflict with
   sessions.

Specification: "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.splitting import SplittingRule, rules_tree
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.errors import ConflictError
from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.maintenance.rewriting.boxes import RewriteContext, RewriteTask
from icechunk_format.repository import Repository
from icechunk_format.repository.commit import CommitResult, new_snapshot_id
from icechunk_format.repository.commit.assemble import manifest_files_of, with_files
from icechunk_format.repository.commit.commit import Written, commit_metadata, store_snapshot
from icechunk_format.repository.files import (
    ManifestReceipt,
    load_snapshot,
    load_transaction_log,
    manifest_keys,
)
from icechunk_format.repository.state import RaceLost, conflict_errors, until_won
from icechunk_format.storage.measures import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReplacement:
    """Manifests of one array to remove, and the stored manifests that replace them."""

    node_id: NodeId
    path: str
    removed: ManifestRefs
    files: tuple[ManifestReceipt, ...] = ()


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """A planned rewrite; ``replaced`` has the manifests to remove, without new files."""

    repository: Repository
    branch: str
    base: Snapshot
    rules: tuple[SplittingRule, ...]
    replaced: tuple[ArrayReplacement, ...]
    context: RewriteContext
    tasks: tuple[RewriteTask, ...]

    @property
    def references(self) -> int:
        """Number of references in the manifests to remove."""
        listed = self.base.manifest_files
        return sum(int(listed.counts_of(item.removed.ids).sum()) for item in self.replaced)


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The result of a rewrite or of its dry run.

    Attributes
    ----------
    commit
        The new snapshot; None if all manifests follow the rules, and for a dry run.
    manifests_before, manifests_after
        Number of manifest files of the snapshot before and after; estimated for a dry run.
    references
        Number of references in the new files; for a dry run, in the files to replace.
    bytes_before, bytes_after
        Bytes of the manifest files before and after; None if unknown.
    left_out
        Paths of arrays that keep their old manifests, because other commits changed them; rewrite
        these arrays again.
    dry_run
        True if nothing was written.
    totals
        Requests and bytes of Spark's tasks; None for a call in this process.
    """

    commit: CommitResult | None
    manifests_before: int
    manifests_after: int
    references: int
    bytes_before: int
    bytes_after: int | None
    left_out: tuple[str, ...] = ()
    dry_run: bool = False
    totals: Measures | None = field(default=None, compare=False)


def commit_rewrite(
    plan: RewritePlan,
    replacements: Sequence[ArrayReplacement],
    *,
    message: str,
    metadata: Mapping[str, Any] | None,
    amend: bool,
) -> RewriteResult:
    """Commit new manifests to a branch, with the rules of the plan in the snapshot's metadata.

    Raises
    ------
    ConflictError
        Other commits changed every rewritten array, or with ``amend`` the branch moved.
    """
    storage, branch, format = plan.repository.storage, plan.branch, plan.context.format
    tip = plan.repository.writable_tip(branch)
    written = Written()
    current = plan.base

    def attempt(lost: int) -> RewriteResult | RaceLost:
        nonlocal current
        changed, files, left_out = _applied(current, replacements, is_base=current is plan.base)
        if not changed:
            raise ConflictError(
                f"other commits changed the chunks of {', '.join(left_out[:8])} in branch "
                f"{branch!r} of {plan.repository.location} while their manifests were rewritten; "
                "nothing was committed. Rewrite again when fewer writers are active",
                branch=branch,
                paths=left_out,
            )
        nodes = current.nodes.changed([node.path for node in changed], changed)
        replaced = tip.amendable(current.id) if amend else None
        log = TransactionLog(id=new_snapshot_id())
        if amend:
            log = replace(load_transaction_log(storage, current.id), id=log.id)
        stored = store_snapshot(
            storage,
            format,
            base=current,
            nodes=nodes,
            files=manifest_files_of(nodes, current, files),
            log=log,
            replaced=replaced,
            message=message,
            metadata=commit_metadata(
                metadata,
                spec_version=format.spec_version,
                rebased=lost,
                splitting_config=rules_tree(plan.rules),
            ),
            written=written,
        )
        moved = tip.amend(current.id, stored.info) if amend else tip.advance(stored.info)
        if moved is None:
            after = stored.snapshot.manifest_files
            written.add("manifests", len(files), sum(file.size_bytes for file in files))
            return RewriteResult(
                commit=stored.result(branch, rebased=lost),
                manifests_before=len(current.manifest_files),
                manifests_after=len(after),
                references=sum(file.num_chunk_refs for file in files),
                bytes_before=int(current.manifest_files.size_bytes.sum()),
                bytes_after=int(after.size_bytes.sum()),
                left_out=left_out,
            )
        if moved.tip is None or amend:
            raise conflict_errors.tip_moved(storage, moved, current.id)
        current = load_snapshot(storage, moved.tip)
        return RaceLost(why=f"another writer committed {moved.tip} first")

    return until_won(attempt, storage.root_url, branch=branch)


def _applied(
    current: Snapshot, replacements: Sequence[ArrayReplacement], *, is_base: bool
) -> tuple[list[NodeSnapshot], list[ManifestReceipt], tuple[str, ...]]:
    """Return changed arrays, their new files, and the paths of arrays left unchanged."""
    changed: list[NodeSnapshot] = []
    files: list[ManifestReceipt] = []
    left_out: list[str] = []
    for item in replacements:
        node = current.nodes.with_id(item.node_id)
        if node is None or node.array is None:
            continue  # The array was deleted.
        found = _replaced(node.array.manifests, item, is_base=is_base)
        if found is None:
            left_out.append(item.path)
            continue
        changed.append(replace(node, array=replace(node.array, manifests=found)))
        files += item.files
    return changed, files, tuple(left_out)


def _replaced(
    listed: ManifestRefs, item: ArrayReplacement, *, is_base: bool
) -> ManifestRefs | None:
    """Return the manifest list of an array with the new manifests; None on a conflict."""
    if listed.ndim != item.removed.ndim:
        return None
    have, gone = manifest_keys(listed), manifest_keys(item.removed)
    if not is_base and not np.isin(gone, have).all():
        return None
    stays = np.flatnonzero(~np.isin(have, gone))
    found = with_files(listed, stays, item.files)
    if not is_base:
        for pairs in overlapping_pairs(found.extents):
            if (pairs >= len(stays)).any():
                return None
    return found
