"""Upgrades a repository from spec version 1 to 2, in steps that a crash can interrupt anywhere.

Steps
-----
1. Read branches, tags, ``config.yaml`` and every snapshot that they reach.
2. Create ``repo`` if absent. From then on the repository has version 2, even if files of version 1
   exist; until then all readers use version 1.
3. Read the files of version 1 again. Changes by writers of version 1 between steps 1 and 2, or
   after a crash, are merged into ``repo``, on the condition that it has not changed.
4. Delete the file of branch ``main``, so that libraries of version 1 fail instead of committing to
   unused refs; then all other ref files, then ``config.yaml``.

If ``repo`` exists, the upgrade begins with step 3. So running it again completes an interrupted
upgrade, also of another library, and otherwise has no effect.

Rules of this file
------------------
1. Snapshots, manifests, transaction logs and chunks are not changed; readers of version 2 read
   those of both versions.
2. A file of version 1 is deleted only if ``repo`` lists its snapshot.
3. Memory: one entry per snapshot, and 64 snapshot files or 64 MB of them at a time.

Specification: version 1 "Refs"; "Repo Info File".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from icechunk_format.display import shown_by
from icechunk_format.encoding.config.config import decode_flexbuffer_config, decode_yaml_config
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import CONFIG_YAML, REPO, SNAPSHOTS, snapshot_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import TagDeletedUpdate, UpdateKind
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import ConflictError, FormatError, NotFoundError, StorageError
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.repository.files.optional_objects import fetch_if_there
from icechunk_format.repository.history.history import (
    RefFilesHistory,
    reached_from,
    snapshot_summary,
)
from icechunk_format.repository.lifecycle.upgraded_state import MAIN, RefsOfVersion1, upgraded_state
from icechunk_format.repository.state.publish import (
    create_once,
    now_in_microseconds,
    put_if,
)
from icechunk_format.repository.state.races import RaceLost, until_won
from icechunk_format.repository.state.repo_file import RepoFile, RepoState
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import (
    ReadRequest,
    ReplaceIfUnchanged,
    Storage,
    check_writable,
)

_BATCH_FILES: Final = 64
_BATCH_BYTES: Final = 64 * 1024 * 1024


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    """Result of an upgrade, or of its dry run.

    Attributes
    ----------
    dry_run
        True if nothing was written.
    was_needed
        False for a repository of version 2 without files of version 1.
    was_half_done
        True if this upgrade completed an interrupted one.
    snapshots, branches, tags, deleted_tags
        Their numbers in version 2.
    files_deleted
        Keys of the files of version 1 that were deleted, or would be.
    """

    dry_run: bool
    was_needed: bool
    was_half_done: bool
    snapshots: int
    branches: int
    tags: int
    deleted_tags: int
    files_deleted: tuple[str, ...]


def upgrade_repository(
    storage: Storage, *, dry_run: bool = False, progress: ProgressOption = None
) -> UpgradeReport:
    """Upgrade a repository from spec version 1 to 2, or finish an interrupted upgrade.

    Arguments and errors are those of ``Repository.upgrade``. If the storage fails, readers find
    version 1 or 2, each complete, until the upgrade is run again.
    """
    if not dry_run:
        check_writable(storage)
    repo_file = RepoFile(storage)
    state = repo_file.fetch()
    was_half_done = state is not None
    if state is None:
        files = _read_files(storage)
        if MAIN not in files.branches:
            raise NotFoundError(
                f"there is no repository at {storage.root_url}, so nothing can be upgraded",
                kind="repository",
                location=storage.root_url,
            )
        info = _upgraded(storage, files, progress)
        if dry_run:
            return _report(info, files, dry_run=True, was_half_done=False)
        # If another upgrade created the object first, that object is used.
        create_once(storage, REPO, repo_info.encode(info))
        # The stored state determines the files to delete, not the state that was sent.
        state = _current(storage, repo_file)

    def attempt(_: int) -> tuple[RefsOfVersion1, RepoInfo] | RaceLost:
        nonlocal state
        assert state is not None
        files = _read_files(storage)
        merged = _merged(storage, state, files)
        if merged is None or dry_run:
            return files, merged or state.info
        # The next attempt re-reads ``repo``, whether this write succeeded or not.
        put_if(storage, REPO, repo_info.encode(merged), ReplaceIfUnchanged(version=state.version))
        state = _current(storage, repo_file)
        return RaceLost(why="files of version 1 were merged into the state")

    outcome = "stop all writers, then run the upgrade again to finish it"
    files, info = until_won(attempt, storage.root_url, "a branch", outcome=outcome)
    if not dry_run:
        _delete(storage, files.keys)
    return _report(info, files, dry_run=dry_run, was_half_done=was_half_done)


def _report(
    info: RepoInfo, files: RefsOfVersion1, *, dry_run: bool, was_half_done: bool
) -> UpgradeReport:
    was_needed = not was_half_done or bool(files.keys)
    return UpgradeReport(
        dry_run=dry_run,
        was_needed=was_needed,
        was_half_done=was_half_done and was_needed,
        snapshots=len(info.snapshots),
        branches=len(info.branches),
        tags=len(info.tags),
        deleted_tags=len(info.deleted_tags),
        files_deleted=files.keys,
    )


# -- files of version 1 ---------------------------------------------------------------------


def _read_files(storage: Storage) -> RefsOfVersion1:
    keys, tombstones = RefFilesHistory(storage).ref_files()
    contents = storage.get_many([ReadRequest(key=key) for key in keys.values()])
    found = {
        ref: v1_refs.decode_ref_json(data, object_key=key)
        for (ref, key), data in zip(keys.items(), contents, strict=True)
    }
    fetched = fetch_if_there(storage, CONFIG_YAML)
    config = None
    if fetched is not None:
        config = encode_flexbuffer(dict(decode_yaml_config(fetched.data).raw))
    main = keys.get(("branch", MAIN))
    ordered = sorted(keys.values(), key=lambda key: key != main) + sorted(tombstones.values())
    return RefsOfVersion1(
        branches={name: tip for (kind, name), tip in found.items() if kind == "branch"},
        tags={
            name: snapshot_id
            for (kind, name), snapshot_id in found.items()
            if kind == "tag" and name not in tombstones
        },
        deleted_tags={name: found.get(("tag", name)) for name in tombstones},
        config=config,
        keys=tuple(ordered) if config is None else (*ordered, CONFIG_YAML),
    )


class _PrefetchedHistory(RefFilesHistory):
    """History of version 1 that reads snapshot files in batches instead of one by one."""

    def __init__(self, storage: Storage, progress: ProgressOption) -> None:
        super().__init__(storage)
        self._found: dict[SnapshotId, SnapshotInfo] = {}
        listed = (
            (found.key, found.size)
            for found in storage.list(SNAPSHOTS)
            if SnapshotId.parse_exact(found.key.removeprefix(SNAPSHOTS)) is not None
        )
        with phase(progress, "Reading snapshots") as advance:
            for batch in sized_batches(listed, _BATCH_FILES, _BATCH_BYTES):
                contents = storage.get_many([ReadRequest(key=key) for key in batch])
                for key, data in zip(batch, contents, strict=True):
                    self._add(key, data)
                advance(len(batch))

    def _add(self, key: str, data: bytes) -> None:
        try:
            info = snapshot_summary(snapshot.decode(data, object_key=key))
        except FormatError:
            # A damaged file raises only if a branch or tag reaches it, when it is read again.
            return
        if snapshot_key(info.id) == key:
            self._found[info.id] = info

    def snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return the entry of one snapshot, None if it does not exist."""
        return self._found.get(snapshot_id) or super().snapshot_info(snapshot_id)


def _upgraded(storage: Storage, refs: RefsOfVersion1, progress: ProgressOption = None) -> RepoInfo:
    history = _PrefetchedHistory(storage, progress)
    snapshots = reached_from(history, (*refs.branches.values(), *refs.tags.values()))
    return upgraded_state(refs, snapshots, now=now_in_microseconds())


# -- merging ----------------------------------------------------------------------------------


def _merged(storage: Storage, state: RepoState, files: RefsOfVersion1) -> RepoInfo | None:
    """Return the state merged with the files of version 1; None if it has their content."""
    info = state.info
    updates = info.latest_updates
    if updates and updates[0].kind is UpdateKind.REPO_MIGRATED:
        overlaid = _overlaid(info, files)
        return None if _same_refs(info, overlaid) else _upgraded(storage, overlaid)
    refs = [("branch", *item) for item in files.branches.items()]
    refs += [("tag", *item) for item in files.tags.items()]
    for kind, name, tip in refs:
        if tip not in info.snapshots and storage.head(snapshot_key(tip)) is not None:
            raise ConflictError(
                f"the upgrade of {storage.root_url} was interrupted, and afterwards both versions "
                f"were changed: {kind} {name!r} of version 1 points to snapshot {tip}, which "
                "version 2 does not have. Read what is needed from it with a library of version "
                f"1, delete the files below refs/, and the repository is version 2 ({REPO!r})",
                kind=kind,
                name=name,
                snapshot=str(tip),
            )
    return None


def _overlaid(info: RepoInfo, files: RefsOfVersion1) -> RefsOfVersion1:
    """Combine the refs of both; existing files are newer than the refs in ``repo``."""
    if MAIN in files.branches:
        # Main is deleted first, so no file has been deleted yet.
        return files
    deleted: dict[str, SnapshotId | None] = dict.fromkeys(info.deleted_tags)
    for update in info.latest_updates:
        if isinstance(update.details, TagDeletedUpdate):
            deleted[update.details.name] = update.details.previous_snap_id
    deleted |= files.deleted_tags
    tags = {**info.tags, **files.tags}
    return RefsOfVersion1(
        branches={**info.branches, **files.branches},
        tags={name: snapshot_id for name, snapshot_id in tags.items() if name not in deleted},
        deleted_tags=deleted,
        config=info.config if files.config is None else files.config,
    )


def _same_refs(info: RepoInfo, refs: RefsOfVersion1) -> bool:
    return (
        dict(info.branches) == refs.branches
        and dict(info.tags) == refs.tags
        and set(info.deleted_tags) == set(refs.deleted_tags)
        and _tree(info.config) == _tree(refs.config)
    )


def _tree(config: bytes | None) -> object:
    # Libraries order the keys of their FlexBuffers differently.
    return None if config is None else decode_flexbuffer_config(config).raw


# -- writing --------------------------------------------------------------------------------


def _current(storage: Storage, repo_file: RepoFile) -> RepoState:
    state = repo_file.fetch()
    if state is None:
        raise ConflictError(
            f"{REPO!r} of {storage.root_url} was deleted during the upgrade; make sure "
            "that no other upgrade runs, then try again",
            location=storage.root_url,
        )
    return state


def _delete(storage: Storage, keys: tuple[str, ...]) -> None:
    """Delete files of version 1, the first one before all others."""
    for step in (keys[:1], keys[1:]):
        failures = storage.delete_many(step) if step else []
        if failures:
            raise StorageError(
                f"{storage.root_url} has spec version 2 now, but {failures[0].key!r} of version 1 "
                f"could not be deleted ({failures[0].reason}); run the upgrade again to finish it",
                key=failures[0].key,
            )
