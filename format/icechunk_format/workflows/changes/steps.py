"""Finds the commits between two snapshots, and joins their transaction logs.

A stream reads the commits of a branch in batches. Its offset is readable JSON: ``{"snapshot": "…",
"position": 12}``. The stream has yielded all rows up to and including this snapshot; the position
is its number in the history, from 1. Before the first batch of a stream from the beginning, the
snapshot is null and the position 0.

Rules of this file
------------------
1. A step leads from an older snapshot to a newer one. It has all transaction logs in between, also
   those of expired ancestors; a missing log is an error, since changes would be missed.
2. If neither snapshot is an ancestor of the other (a branch was reset, a commit amended), they
   differ at most by the changes on both sides since their last common ancestor.
3. Chunk coordinates are columns, deduplicated before they become too many.
4. No state of a stream is kept between calls: everything is in an offset and the repository.
   Without new snapshots the same offset is returned, since Spark compares offsets as strings.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository.files import load_snapshot, load_transaction_log
from icechunk_format.repository.history import snapshots_after

if TYPE_CHECKING:
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.repository import RepositoryReader

_MOST_COORDS_HELD: Final = 1 << 21
_READ_AT_ONCE: Final = 64
_THREADS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A range of history, with the ids of its transaction logs in any order.

    ``older`` is None for a table without rows.
    """

    older: SnapshotId | None
    newer: SnapshotInfo
    logs: tuple[SnapshotId, ...] = ()


def steps_to(
    repository: RepositoryReader,
    newer: SnapshotInfo,
    older: SnapshotId | None,
    *,
    by_snapshot: bool = False,
    any_history: bool = False,
) -> list[Step]:
    """Return the steps from one snapshot (None: a table without rows) to another, oldest first.

    Parameters
    ----------
    by_snapshot
        True for a step of each commit, False for one step.
    any_history
        True to allow an older snapshot that is not an ancestor of the newer one.
    """
    if older is None:
        return [Step(older=None, newer=newer)]
    if older == newer.id:
        return []
    between = snapshots_after(older, repository.ancestry(snapshot=newer.id))
    if between is None:
        if not any_history:
            raise InvalidInputError(
                f"snapshot {older} is not an ancestor of {newer.id} in {repository.location}: the "
                "branch was reset, the commit was amended, or the two are on different branches; "
                "set onHistoryChange=restart to compare the two snapshots nevertheless",
                older=str(older),
                newer=str(newer.id),
            )
        return [_across(repository, newer, older)]
    if not by_snapshot:
        return [Step(older=older, newer=newer, logs=logs_of(between))]
    befores = [*(info.id for info in between[1:]), older]
    steps = [
        Step(older=before, newer=info, logs=logs_of([info]))
        for before, info in zip(befores, between, strict=True)
    ]
    return steps[::-1]


def _across(repository: RepositoryReader, newer: SnapshotInfo, older: SnapshotId) -> Step:
    """Return the step between two snapshots via their last common ancestor."""
    newer_ids = {info.id for info in repository.ancestry(snapshot=newer.id)}
    left: list[SnapshotInfo] = []
    for info in repository.ancestry(snapshot=older):
        if info.id in newer_ids:
            break
        left.append(info)
    else:
        raise InvalidInputError(
            f"snapshots {older} and {newer.id} of {repository.location} have no common ancestor; "
            "read the newer one whole, without changesSince",
            older=str(older),
            newer=str(newer.id),
        )
    joined = snapshots_after(info.id, repository.ancestry(snapshot=newer.id)) or []
    return Step(older=older, newer=newer, logs=logs_of([*left, *joined]))


def logs_of(infos: Iterable[SnapshotInfo]) -> tuple[SnapshotId, ...]:
    """Return the ids of the logs of snapshots and of the expired ancestors before each."""
    return tuple(i for info in infos for i in (*info.pruned_ancestor_tx_logs, info.id))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TouchedNodes:
    """The changes of the given arrays in the logs of a step."""

    chunks: Mapping[NodeId, NDArray[np.uint32]]
    """Chunk coordinates by node id: ``uint32 (n, ndim)``, in any order."""
    smallest: Mapping[NodeId, tuple[int, ...]]
    """The smallest shape after any of the commits, for nodes whose metadata changed. An empty tuple
    if a snapshot in between no longer exists."""

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self.chunks or node_id in self.smallest


def touched_nodes(
    repository: RepositoryReader, logs: Sequence[SnapshotId], nodes: Container[NodeId]
) -> TouchedNodes:
    """Join the transaction logs of snapshots for the given arrays.

    Raises
    ------
    NotFoundError
        A transaction log does not exist.
    """
    parts: dict[NodeId, list[NDArray[np.uint32]]] = {}
    held = 0
    resized: dict[SnapshotId, list[NodeId]] = {}
    for log in read_logs(repository, logs):
        for node_id, coords in log.updated_chunks.items():
            if node_id in nodes and len(coords):
                parts.setdefault(node_id, []).append(coords)
                held += len(coords)
        found = [node_id for node_id in log.updated_arrays if node_id in nodes]
        if found:
            resized[log.id] = found
        if held > _MOST_COORDS_HELD:
            parts = {node_id: [_distinct(found)] for node_id, found in parts.items()}
            held = 0  # distinct coordinates are not counted again
    return TouchedNodes(
        chunks={node_id: _distinct(found) for node_id, found in parts.items()},
        smallest=_smallest_shapes(repository, resized),
    )


def _distinct(found: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return found[0] if len(found) == 1 else np.unique(np.concatenate(found), axis=0)


def read_logs(repository: RepositoryReader, ids: Sequence[SnapshotId]) -> Iterator[TransactionLog]:
    """Yield the transaction logs of snapshots, in order."""

    def load(log_id: SnapshotId) -> TransactionLog:
        try:
            return load_transaction_log(repository.storage, log_id)
        except NotFoundError as error:
            raise NotFoundError(
                f"the transaction log of snapshot {log_id} of {repository.location} does "
                "not exist, so its changes are unknown; choose a newer snapshot for changesSince, "
                "or read the whole table",
                kind="transaction log",
                snapshot_id=str(log_id),
            ) from error

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="icechunk-logs") as threads:
        for first in range(0, len(ids), _READ_AT_ONCE):
            yield from threads.map(load, ids[first : first + _READ_AT_ONCE])


def _smallest_shapes(
    repository: RepositoryReader, resized: Mapping[SnapshotId, Sequence[NodeId]]
) -> dict[NodeId, tuple[int, ...]]:
    """Return the smallest shapes of arrays after the commits that changed their metadata.

    Cells outside of this shape may have lost their chunks, which logs do not record.
    """

    def shapes(item: tuple[SnapshotId, Sequence[NodeId]]) -> dict[NodeId, tuple[int, ...]]:
        snapshot_id, node_ids = item
        try:
            snapshot = load_snapshot(repository.storage, snapshot_id)
        except NotFoundError:
            return dict.fromkeys(node_ids, ())
        wanted = set(node_ids)
        return {
            node.id: tuple(node.array.shape)
            for node in snapshot.nodes
            if node.array is not None and node.id in wanted
        }

    smallest: dict[NodeId, tuple[int, ...]] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="icechunk-shapes") as threads:
        for found in threads.map(shapes, resized.items()):
            for node_id, shape in found.items():
                known = smallest.get(node_id, shape)
                alike = len(known) == len(shape) and known != ()
                smallest[node_id] = tuple(map(min, known, shape)) if alike else ()
    return smallest


# -- offsets of streams ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The last snapshot whose rows a stream has yielded."""

    snapshot: SnapshotId | None
    position: int

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> Self:
        """Parse an offset from a checkpoint of Spark."""
        snapshot, position = json.get("snapshot"), json.get("position")
        if not isinstance(position, int) or not isinstance(snapshot, str | None):
            raise InvalidInputError(
                f"the checkpoint holds the offset {dict(json)!r}, which is not icechunk's:"
                " give the stream a separate checkpointLocation",
                offset=dict(json),
            )
        parsed = None if snapshot is None else SnapshotId.parse(snapshot)
        return cls(snapshot=parsed, position=position)

    def as_json(self) -> dict[str, Any]:
        """Return the offset as JSON for a checkpoint."""
        snapshot = None if self.snapshot is None else str(self.snapshot)
        return {"snapshot": snapshot, "position": self.position}


BEGINNING = Offset(snapshot=None, position=0)


def offset_of(repository: RepositoryReader, snapshot_id: SnapshotId) -> Offset:
    """Return the offset of a snapshot from its history, many files in spec version 1."""
    count = sum(1 for _ in repository.ancestry(snapshot=snapshot_id))
    return Offset(snapshot=snapshot_id, position=count)


def next_offset(
    repository: RepositoryReader,
    start: Offset,
    tip: SnapshotId,
    options: ReadRequest,
    *,
    is_limited: bool = False,
) -> Offset:
    """Return the end of the batch after ``start``: at least one snapshot, within limits if set.

    With ``onHistoryChange=restart``, ``start`` may be missing in the history of ``tip``; the batch
    then ends at ``tip``.
    """
    if start.snapshot == tip:
        return start
    ancestry = repository.ancestry(snapshot=tip)
    if start.snapshot is None:
        newer: list[SnapshotInfo] | None = list(ancestry)
    else:
        newer = snapshots_after(start.snapshot, ancestry)
    if newer is None:
        if options.on_history_change == "restart":
            return offset_of(repository, tip)
        raise InvalidInputError(
            f"snapshot {start.snapshot}, the last one that the stream has read, is no longer in the"
            f" history of {tip}, in {repository.location}: {_why(repository, start.snapshot)}."
            " Set onHistoryChange=restart to continue with the differences of the two snapshots",
            snapshot_id=str(start.snapshot),
        )
    taken = newer[::-1]
    if is_limited:
        taken = taken[: options.max_snapshots_per_trigger]
        taken = taken[: _within(repository, taken, options.max_chunks_per_trigger)]
    return Offset(snapshot=taken[-1].id, position=start.position + len(taken))


def _why(repository: RepositoryReader, snapshot_id: SnapshotId | None) -> str:
    try:
        repository.resolve(snapshot=snapshot_id)
    except NotFoundError:
        return "it has expired, or its branch was deleted"
    return "the branch was reset, or the commit was amended"


def _within(
    repository: RepositoryReader, infos: Sequence[SnapshotInfo], max_chunks: int | None
) -> int:
    """Return the number of snapshots within a limit of changed chunks; at least one."""
    if max_chunks is None:
        return len(infos)
    total = 0
    for number, info in enumerate(infos):
        for log_id in logs_of([info]):
            try:
                log = load_transaction_log(repository.storage, log_id)
            except NotFoundError:  # first snapshots of version 1; planning raises for others
                continue
            total += sum(map(len, log.updated_chunks.values()))
        if total > max_chunks:
            return max(1, number)
    return len(infos)
