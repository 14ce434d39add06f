"""Creates a repository: an empty first snapshot, and the object that refers to it.

The snapshot and its transaction log are written first, then ``repo`` (version 2) or the ref of
``main`` (version 1) is created if absent. If several processes create a repository, one succeeds,
and the others leave at most two files of garbage.

Specification: "Initialize New Repository".
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Final

from icechunk_format.encoding.envelope import SPEC_V1, SPEC_V2
from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icechunk_format.encoding.object_keys import (
    CHUNKS,
    MANIFESTS,
    REPO,
    STAGING,
    snapshot_key,
    transaction_log_key,
)
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo
from icechunk_format.encoding.repo_info.updates import RepoInitializedUpdate, RepoStatus, Update
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.encoding.values.metadata_items import RESERVED_METADATA, MetadataItems
from icechunk_format.errors import AlreadyExistsError, InvalidInputError
from icechunk_format.repository.files.metadata_files import snapshot_objects
from icechunk_format.repository.history.history import snapshot_summary
from icechunk_format.repository.lifecycle.discovery import MAIN_REF, has_repository
from icechunk_format.repository.state.publish import create_once, now_in_microseconds
from icechunk_format.repository.state.transitions import MAIN
from icechunk_format.storage.protocol import Storage

_MARK_SIZE: Final = 64


def create_repository(
    storage: Storage, *, spec_version: int = SPEC_V2, check_clean_root: bool = True
) -> None:
    """Write an empty repository with the branch ``main``, as ``Repository.create``.

    A write that creates its repository does not check for a clean root here, but calls
    ``check_new_root`` before its tasks store chunks.
    """
    if spec_version not in (SPEC_V1, SPEC_V2):
        raise InvalidInputError(
            f"a repository cannot have spec version {spec_version}; 2 is usual, 1 is for old "
            "readers",
            found=spec_version,
            allowed=(SPEC_V1, SPEC_V2),
        )
    if check_clean_root:
        _check_empty(storage, own=_files_of([INITIAL_SNAPSHOT_ID]))
    elif has_repository(storage):
        raise _already_exists(storage)
    now = now_in_microseconds()
    root = root_snapshot(now, spec_version=spec_version)
    files = snapshot_objects(root, TransactionLog(id=root.id))
    if spec_version == SPEC_V1:
        # The first snapshot of version 1 has no log.
        files = files[:1]
        # Random spaces and tabs after the JSON distinguish concurrent creators.
        mark = bytes(secrets.choice(b" \t") for _ in range(_MARK_SIZE))
        key, data = MAIN_REF, v1_refs.encode_ref_json(root.id) + mark
    else:
        info = RepoInfo(
            branches={MAIN: root.id},
            snapshots={root.id: snapshot_summary(root)},
            status=RepoStatus(set_at=now),
            latest_updates=(Update(details=RepoInitializedUpdate(), updated_at=now),),
        )
        key, data = REPO, repo_info.encode(info)
    storage.put_many(files)
    create_object(storage, key, data)


def root_snapshot(flushed_at: int, *, spec_version: int = SPEC_V2) -> Snapshot:
    """Return the empty first snapshot of a history."""
    return Snapshot(
        # The id that the reference assumes for the root if it finds none.
        id=INITIAL_SNAPSHOT_ID,
        spec_version=spec_version,
        flushed_at=flushed_at,
        message="Repository initialized",
        metadata_items=MetadataItems.of(
            {RESERVED_METADATA: {"is_root": True}}, spec_version=spec_version
        ),
    )


def create_object(storage: Storage, key: str, data: bytes) -> None:
    """Create the object that makes a repository; its bytes must be unique to this creator."""
    if not create_once(storage, key, data):
        raise _already_exists(storage)


def check_new_root(
    storage: Storage, versions: Iterable[SnapshotId] = (INITIAL_SNAPSHOT_ID,)
) -> None:
    """Check that a write whose commit creates the repository can begin.

    Chunks, manifests, staged objects and the two files of each snapshot in ``versions`` may exist:
    they are garbage of a write that failed before its commit.
    """
    _check_empty(storage, (CHUNKS, MANIFESTS, STAGING), _files_of(versions))


def _files_of(versions: Iterable[SnapshotId]) -> set[str]:
    return {key for i in versions for key in (snapshot_key(i), transaction_log_key(i))}


def _check_empty(
    storage: Storage, leftovers: tuple[str, ...] = (), own: Collection[str] = ()
) -> None:
    """Check that there is no object except below prefixes, and those with some keys."""
    if has_repository(storage):
        raise _already_exists(storage)
    for info in storage.list(""):
        if not info.key.startswith(leftovers) and info.key not in own:
            failed = "first write" if leftovers else "creation"
            raise AlreadyExistsError(
                f"{storage.root_url} is not empty (it contains {info.key}); a new repository needs "
                f"an empty location, or one with files of a failed {failed} only",
                found=(info.key,),
            )


def _already_exists(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"there is a repository at {storage.root_url} already; open it, or choose another location",
        kind="repository",
        location=storage.root_url,
    )
