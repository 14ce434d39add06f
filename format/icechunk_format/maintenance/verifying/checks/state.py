"""Checks the ``repo`` object, and lists the snapshots and backups to verify.

Runs on the driver; the listed files are then checked in tasks.

Rules of this file
------------------
1. An unreadable ``repo`` is a finding; the newest readable backup is used instead.
2. Snapshots are ranked, newest first. A problem of many snapshots is reported for the newest.
3. ``repo`` is read before any listing, since its objects were written before it.

Specification: "Repo info file", "Updates to the repo info file".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    decode_flexbuffer_config,
)
from icechunk_format.encoding.envelope import FileType
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import (
    CHUNKS,
    CONFIG_YAML,
    MANIFESTS,
    OVERWRITTEN,
    REFS,
    REPO,
    SNAPSHOTS,
    TRANSACTIONS,
    overwritten_key,
    snapshot_key,
)
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.v1_branches_and_tags import MAIN
from icechunk_format.encoding.snapshot.stored_order import unsorted_in_repo
from icechunk_format.errors import FormatError, NotFoundError, UnsupportedError
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.verifying.checks.readable import check_order, reporting
from icechunk_format.maintenance.verifying.checks.uses import SnapshotMark
from icechunk_format.maintenance.verifying.findings import Report, Spot
from icechunk_format.repository.history.history import RepoInfoHistory
from icechunk_format.repository.history.resolve import SnapshotArguments, resolve
from icechunk_format.repository.state.repo_file import logged_states
from icechunk_format.storage.protocol import Storage

ID_PREFIXES: Final = (SNAPSHOTS, TRANSACTIONS, MANIFESTS, CHUNKS)

# Maximum number of backups to try if newer ones are unreadable, too.
_MOST_BACKUPS_TRIED: Final = 20
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSnapshot:
    """A snapshot to verify.

    Parameters
    ----------
    rank
        0 for the newest snapshot.
    flushed_at
        The time in ``repo``, in microseconds since 1970; None if only the file has it.
    has_log
        True if a transaction log must exist. The first snapshot may not have one.
    pruned_logs
        Logs of expired ancestors in its history.
    """

    rank: int
    snapshot_id: SnapshotId
    flushed_at: int | None
    has_log: bool
    pruned_logs: Sequence[SnapshotId] = ()

    @property
    def mark(self) -> SnapshotMark:
        """The fields of findings about the snapshot."""
        return SnapshotMark(str(self.snapshot_id), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyState:
    """The snapshots and backups to verify.

    Parameters
    ----------
    snapshots
        The snapshots, newest first.
    backups
        Keys of backups of ``repo`` that the operations log reaches.
    containers
        Virtual chunk containers of the configuration; None if it cannot be read.
    is_whole
        True if ``snapshots`` are all snapshots of the repository, so that other objects are
        unreferenced.
    """

    snapshots: tuple[RankedSnapshot, ...] = ()
    backups: tuple[str, ...] = ()
    containers: tuple[VirtualChunkContainer, ...] | None = ()
    is_whole: bool


def is_all(wanted: SnapshotArguments) -> bool:
    """Return True if no snapshot is named, so that all are verified."""
    return all(name is None for name in wanted.values())


def read_repo_state(
    storage: Storage, data: bytes, report: Report, wanted: SnapshotArguments
) -> VerifyState:
    """Check ``repo`` of spec version 2; return the objects to check next."""
    info = _decode_repo(storage, data, report)
    if info is None:
        return VerifyState(is_whole=False)
    containers = _check_contents(info, report)
    if not is_all(wanted):
        chosen = resolve(RepoInfoHistory(info), repository_url=storage.root_url, **wanted)
        snapshots = ranked([info.snapshots[chosen]])
        return VerifyState(snapshots=snapshots, containers=containers, is_whole=False)
    check_history(info.snapshots, report)
    snapshots = ranked(info.snapshots.values())
    backups = _check_operations_log(storage, info, report)
    logs = {log.raw for log in info.transaction_logs()}
    count_unreferenced(storage, SNAPSHOTS, {one.snapshot_id.raw for one in snapshots}, report)
    count_unreferenced(storage, TRANSACTIONS, logs, report)
    leftovers = sum(1 for _ in storage.list(REFS)) + (storage.head(CONFIG_YAML) is not None)
    if leftovers:
        problem = f"{leftovers} objects of spec version 1 exist beside 'repo'; readers ignore them"
        report.add("v1-leftovers", problem, object_key=REFS)
    return VerifyState(snapshots=snapshots, backups=backups, containers=containers, is_whole=True)


def ranked(
    infos: Iterable[SnapshotInfo], *, from_files: bool = False
) -> tuple[RankedSnapshot, ...]:
    """Return the snapshots to check, newest first.

    ``from_files`` is True if the summaries were read from snapshot files, which are then not
    compared with them.
    """
    ordered = sorted(infos, key=lambda info: (-info.flushed_at, info.id.raw))
    return tuple(
        RankedSnapshot(
            rank=rank,
            snapshot_id=info.id,
            flushed_at=None if from_files else info.flushed_at,
            has_log=info.parent_id is not None,
            pruned_logs=info.pruned_ancestor_tx_logs,
        )
        for rank, info in enumerate(ordered)
    )


def _decode_repo(storage: Storage, data: bytes, report: Report) -> RepoInfo | None:
    """Return the decoded ``repo``, or else its newest readable backup."""
    here = report.at(object_key=REPO)
    try:
        info = repo_info.decode(data)
    except (FormatError, UnsupportedError) as error:
        problem = error.message.splitlines()[0]
    else:
        check_order(data, FileType.REPO_INFO, unsorted_in_repo, "repo-unsorted", here)
        return info
    names = sorted(info.key for info in storage.list(f"{OVERWRITTEN}{REPO}."))
    for object_key in names[:_MOST_BACKUPS_TRIED]:
        try:
            backup = repo_info.decode(storage.get(object_key).data, object_key=object_key)
        except (FormatError, UnsupportedError, NotFoundError):
            continue
        here.add(
            "repo-damaged",
            f"{problem}; the rest was checked with its newest readable backup, {object_key}",
        )
        return backup
    here.add(
        "repo-damaged",
        f"{problem}; none of its {len(names)} backups could be read either, so nothing else was "
        "checked",
    )
    return None


def _check_contents(info: RepoInfo, report: Report) -> tuple[VirtualChunkContainer, ...] | None:
    """Check the contents of ``repo``; return the containers of the configuration."""
    here = report.at(object_key=REPO)
    if MAIN not in info.branches:
        here.add("main-missing", "branch 'main' does not exist")
    for name in sorted(set(info.tags) & set(info.deleted_tags)):
        problem = f"tag {name!r} exists, although it is listed as deleted"
        here.add("tag-deleted-but-present", problem)
    with reporting(here, "metadata-damaged"):
        dict(info.metadata)
    updates = info.latest_updates
    if updates and updates[0].backup_path is not None:
        here.add(
            "operations-log-invalid",
            f"the newest entry of the operations log has the backup {updates[0].backup_path!r}; "
            "only older entries may, and other clients refuse to change the repository",
        )
    if any(newer.updated_at < older.updated_at for newer, older in pairwise(updates)):
        here.add("operations-log-invalid", "the operations log is not in the order of time")
    return () if info.config is None else check_config(decode_flexbuffer_config, info.config, here)


def check_config(
    decode: Callable[[bytes], RepositoryConfig], data: bytes, here: Spot
) -> tuple[VirtualChunkContainer, ...] | None:
    """Report containers that readers ignore; return all; None if unreadable."""
    try:
        config = decode(data)
    except (FormatError, UnsupportedError) as error:
        here.add("config-damaged", error.message.splitlines()[0])
        return None
    for key, container in (config.raw.get("virtual_chunk_containers") or {}).items():
        prefix = container.get("url_prefix") or key
        if not prefix.endswith("/"):
            here.add(
                "container-ignored",
                f"the virtual chunk container {container.get('name') or prefix!r} is ignored by "
                "every reader: its URL prefix does not end with '/'",
            )
    return tuple(config.virtual_chunk_containers)


def check_history(snapshots: Mapping[SnapshotId, SnapshotInfo], report: Report) -> None:
    """Report cycles of parents, and snapshots older than their parents."""
    settled: set[SnapshotId] = set()
    for start in snapshots:
        walked: dict[SnapshotId, None] = {}
        following: SnapshotId | None = start
        while following is not None and following not in settled and following in snapshots:
            if following in walked:
                here = report.at(object_key=snapshot_key(following), snapshot_id=str(following))
                here.add("history-cycle", f"snapshot {following} is its own ancestor")
                break
            walked[following] = None
            following = snapshots[following].parent_id
        settled.update(walked)
    for info in snapshots.values():
        parent = None if info.parent_id is None else snapshots.get(info.parent_id)
        if parent is not None and parent.flushed_at > info.flushed_at:
            here = report.at(object_key=snapshot_key(info.id), snapshot_id=str(info.id))
            problem = f"snapshot {info.id} is older than its parent {parent.id}"
            here.add("snapshot-time-reversed", problem)


def _check_operations_log(storage: Storage, info: RepoInfo, report: Report) -> tuple[str, ...]:
    """Follow the operations log through backups; return the keys of existing backups."""
    named: dict[str, None] = {}
    try:
        for _, part in logged_states(storage, info):
            named.update((u.backup_path, None) for u in part.latest_updates if u.backup_path)
            if part.repo_before_updates is not None:
                named[part.repo_before_updates] = None
    except (FormatError, UnsupportedError) as error:
        # Damaged backups are reported by ``check_backups``.
        if error.facts.get("object_key") == REPO:
            report.add("operations-log-invalid", error.facts["problem"], object_key=REPO)
    present: set[str] = set()
    for listed in storage.list(OVERWRITTEN):
        backup = listed.key[len(OVERWRITTEN) :]
        if backup in named:
            present.add(backup)
        else:
            report.count("unreferenced overwritten/", 1, listed.size)
    missing = [name for name in named if name not in present]
    if missing:
        shown = ", ".join(missing[:_MOST_NAMED])
        report.add(
            "backup-missing",
            f"{len(missing)} of the {len(named)} backups that the operations log names do not "
            f"exist: {shown}{', ...' if len(missing) > _MOST_NAMED else ''}",
            object_key=OVERWRITTEN,
        )
    return tuple(overwritten_key(name) for name in named if name in present)


def count_unreferenced(storage: Storage, prefix: str, known: set[bytes], report: Report) -> None:
    """Count the objects of a prefix that are not ``known``."""
    for page in list_ids(storage, prefix):
        report.count(f"foreign {prefix}", page.foreign)
        for raw, size in zip(page.ids, page.sizes.tolist(), strict=True):
            if raw.tobytes() not in known:
                report.count(f"unreferenced {prefix}", 1, size)
