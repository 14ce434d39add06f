"""Rewrites the manifests of a branch according to the splitting rules.

Appends leave many small manifests, and changed rules leave manifests of the old rules. A rewrite
makes one commit with the same nodes and chunks in new manifests. No chunk is read.

Steps
-----
1. Plan: compare the extents of all manifests with the rules; only the snapshot is read.
2. Tasks read the manifests that do not fit, and store new manifests (``boxes``).
3. Commit. After commits of other writers, the new manifests still replace the old ones in each
   array that lists all old manifests and none that overlaps the new ones: manifests never change,
   so the rewritten references are current. Other arrays are left unchanged.

``icechunk_spark.maintenance`` runs the same steps on executors.

Specification: "Chunk Manifest Files"; the reference library has ``rewrite_manifests``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import is_below, parse_node_path
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.splitting import SplittingRule, parse_rules, split_cells
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.maintenance.rewriting.boxes import (
    RewriteBox,
    RewriteContext,
    RewriteReceipt,
    RewriteTask,
    plan_rewrite_of,
    run_rewrite,
)
from icechunk_format.maintenance.rewriting.commit import (
    ArrayReplacement,
    RewritePlan,
    RewriteResult,
    commit_rewrite,
)
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.repository import Repository
from icechunk_format.repository.files import (
    MAX_REFS_PER_MANIFEST,
    ListedManifests,
    ManifestFormat,
    ManifestReceipt,
)
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import Place

DEFAULT_MESSAGE: Final = "Rewrite manifests"
Splitting = Sequence[SplittingRule] | Sequence[Any] | dict[str, Any]

# Files of a task: many small arrays share a task.
_FILES_PER_TASK: Final = 4_096


def rewrite_manifests(
    location: Place,
    *,
    branch: str = "main",
    splitting: Splitting | None = None,
    paths: Sequence[str] | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    amend: bool = False,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> RewriteResult:
    """Rewrite the manifests that do not follow the splitting rules, in one commit.

    Memory is bounded by two million references: of one new manifest and of its sources.

    Parameters
    ----------
    location
        The repository.
    branch
        The branch to rewrite.
    splitting
        The rules, as in the configuration: ``[["any_array", [{"condition": "Any", "num_chunks":
        1000}]]]``, a map with these as ``split_sizes``, or ``SplittingRule`` values. None uses the
        configuration. Later commits always follow the configuration, so permanent rules belong
        there.
    paths
        Paths of arrays, or of groups for all arrays in them; None is all arrays.
    message
        Message of the commit.
    metadata
        JSON values by name, for the snapshot; the rules are added, as in the reference library.
    amend
        Replace the newest snapshot. Needs spec version 2.
    dry_run
        Only plan. The number of manifests afterwards is then an estimate.
    progress
        Called with the number of rewritten references; see ``icechunk_format.progress``.

    Returns
    -------
    RewriteResult
        Counts, and the commit; None if every manifest follows the rules.

    Raises
    ------
    NotFoundError
        The repository, branch or path does not exist, or a manifest is missing.
    InvalidInputError
        ``splitting`` or ``metadata`` is invalid.
    ConflictError
        Other commits changed every rewritten array, or moved the branch with ``amend``.
    UnsupportedError
        ``amend`` is used in spec version 1, or the configuration has an unknown condition.
    CommitOutcomeUnknownError, ReadOnlyError, FormatError, StorageError
        As for commits. Nothing was committed, unless the outcome is unknown.

    Examples
    --------
    >>> rewrite_manifests("weather", dry_run=True).manifests_after  # doctest: +SKIP
    """
    plan = plan_rewrite(location, branch=branch, splitting=splitting, paths=paths)
    if dry_run:
        return expected_result(plan)
    check_commit(plan, metadata)
    total = sum(box.references for task in plan.tasks for box in task)
    receipts: list[RewriteReceipt] = []
    with phase(progress, "Rewriting references", total) as advance:
        for task in plan.tasks:
            receipts.append(run_rewrite(plan.context, task))
            advance(sum(box.references for box in task))
    return finish_rewrite(plan, receipts, message=message, metadata=metadata, amend=amend)


def check_commit(plan: RewritePlan, metadata: Mapping[str, Any] | None) -> None:
    """Raise the errors of the commit before any work."""
    plan.repository.writable_tip(plan.branch)
    MetadataItems.of(metadata)


def plan_rewrite(
    location: Place,
    *,
    branch: str = "main",
    splitting: Splitting | None = None,
    paths: Sequence[str] | None = None,
    refs_per_task: int = MAX_REFS_PER_MANIFEST,
    max_refs: int = MAX_REFS_PER_MANIFEST,
) -> RewritePlan:
    """Plan a rewrite, with the arguments and errors of ``rewrite_manifests``.

    A task reads about ``refs_per_task`` references, and a new file has at most ``max_refs``.
    """
    repository = Repository.open(location)
    base = repository.snapshot(repository.resolve(branch=branch))
    config = repository.config
    rules = config.splitting if splitting is None else _rules_of(splitting)
    chosen = _chosen(base, paths, repository)
    replaced: list[ArrayReplacement] = []
    work: list[RewriteBox] = []
    for node in chosen:
        array = node.array
        if array is None or not len(array.manifests):
            continue
        listed = ListedManifests.of(array.manifests, base.manifest_files)
        cells = split_cells(rules, node.path, array.dimension_names, array.num_chunks)
        plan = plan_rewrite_of(listed.extents, listed.counts, cells, max_refs)
        rows, refs = plan.replaced_rows, array.manifests
        if not len(rows):
            continue
        removed = ManifestRefs(ids=refs.ids[rows], extents=refs.extents[rows])
        replaced.append(ArrayReplacement(node_id=node.id, path=node.path, removed=removed))
        work += [
            RewriteBox(
                node_id=node.id,
                path=node.path,
                cells=cells,
                box=box.box,
                manifests=listed.take(box.rows),
                references=box.references,
            )
            for box in plan.boxes
        ]
    return RewritePlan(
        repository=repository,
        branch=branch,
        base=base,
        rules=tuple(rules),
        replaced=tuple(replaced),
        context=RewriteContext(
            location=repository.location,
            format=ManifestFormat(
                spec_version=repository.spec_version,
                # Tasks need only a few numbers of the configuration.
                config=replace(config, raw={}, virtual_chunk_containers=()),
                max_refs=max_refs,
            ),
        ),
        tasks=_tasks(work, refs_per_task),
    )


def regrouped(plan: RewritePlan, refs_per_task: int) -> RewritePlan:
    """Regroup a plan to tasks of about ``refs_per_task`` references."""
    work = [box for task in plan.tasks for box in task]
    return replace(plan, tasks=_tasks(work, refs_per_task))


def finish_rewrite(
    plan: RewritePlan,
    receipts: Iterable[RewriteReceipt],
    *,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    amend: bool = False,
) -> RewriteResult:
    """Commit the receipts of a plan's tasks, with arguments of ``rewrite_manifests``."""
    if not plan.replaced:
        unchanged = expected_result(plan)
        return replace(unchanged, bytes_after=unchanged.bytes_before, dry_run=False)
    files: dict[NodeId, list[ManifestReceipt]] = {item.node_id: [] for item in plan.replaced}
    for node_id, stored in chain.from_iterable(receipts):
        files[node_id] += stored
    return commit_rewrite(
        plan,
        [replace(item, files=tuple(files[item.node_id])) for item in plan.replaced],
        message=DEFAULT_MESSAGE if message is None else message,
        metadata=metadata,
        amend=amend,
    )


def expected_result(plan: RewritePlan) -> RewriteResult:
    """Return the result of a dry run."""
    before = plan.base.manifest_files
    replaced = sum(len(item.removed) for item in plan.replaced)
    boxes = [box for task in plan.tasks for box in task]
    return RewriteResult(
        commit=None,
        manifests_before=len(before),
        manifests_after=len(before) - replaced + sum(_cells_of(box) for box in boxes),
        references=plan.references,
        bytes_before=int(before.size_bytes.sum()),
        bytes_after=None,
        dry_run=True,
    )


def _cells_of(box: RewriteBox) -> int:
    """Estimate the number of cells of a box that have references."""
    cells = np.array(box.cells, dtype=np.int64)
    low = np.maximum(box.manifests.extents[:, :, 0], box.box[:, 0]).min(axis=0) // cells
    high = (np.minimum(box.manifests.extents[:, :, 1], box.box[:, 1]).max(axis=0) - 1) // cells
    return int(
        min(float(np.prod((high - low + 1).astype(np.float64))), int(box.manifests.counts.sum()))
    )


def _tasks(work: Sequence[RewriteBox], refs_per_task: int) -> tuple[RewriteTask, ...]:
    # A file counts like some references, so that the number of files of a task is also bounded.
    file = refs_per_task // _FILES_PER_TASK
    sized = ((box, box.references + file * len(box.manifests)) for box in work)
    return tuple(map(tuple, sized_batches(sized, _FILES_PER_TASK, refs_per_task)))


def _rules_of(splitting: Splitting) -> tuple[SplittingRule, ...]:
    tree: Any = splitting.get("split_sizes") if isinstance(splitting, dict) else splitting
    if isinstance(tree, Sequence) and all(isinstance(rule, SplittingRule) for rule in tree):
        return tuple(tree)
    try:
        # JSON converts tuples to lists.
        return parse_rules(json.loads(json.dumps(tree, default=str)), "splitting")
    except FormatError as error:
        raise InvalidInputError(
            f"splitting cannot be used: {error.facts['problem'].partition(';')[0]}. Write it as in "
            'the configuration: [["any_array", [{"condition": "Any", "num_chunks": 1000}]]]',
            found=splitting,
        ) from error


def _chosen(
    base: Snapshot, paths: Sequence[str] | None, repository: Repository
) -> list[NodeSnapshot]:
    if paths is None:
        return list(base.nodes)
    wanted = [parse_node_path(path) for path in ([paths] if isinstance(paths, str) else paths)]
    for path in wanted:
        if base.node(path) is None:
            raise NotFoundError(
                f"node {path!r} does not exist in snapshot {base.id} of {repository.location}; "
                "give paths of arrays or groups",
                kind="node",
                name=path,
            )
    return [
        node
        for node in base.nodes
        if any(node.path == path or is_below(node.path, path) for path in wanted)
    ]
