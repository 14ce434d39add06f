"""Deletes backups in ``overwritten/`` that the operations log does not need.

Backups in the chain of the operations log are kept regardless of their age. Other old backups are
deleted: of updates that lost a race or were interrupted, of the ``config.yaml`` of spec version 1,
and before a gap in the chain, where a backup was deleted manually.

Specification: "Updates to the repo info file".
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import numpy as np

from icechunk_format.maintenance.garbage.object_listing import is_older
from icechunk_format.maintenance.garbage.result import DeleteReport
from icechunk_format.maintenance.garbage.sweep import delete_keys
from icechunk_format.repository.state.repo_file import read_operations
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import OVERWRITTEN
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.storage.protocol import Storage

_NAME: Final = re.compile(r"(?:repo|config\.yaml)\.\d{14}\.([0-9A-Z]{20})")


def needed_copies(storage: Storage, info: RepoInfo) -> set[str]:
    """Return the names of the backups in the operations log of a state.

    Raises
    ------
    FormatError
        A backup is damaged, or the chain of backups has a cycle, so that the needed backups are
        unknown.
    """
    named = {update.backup_path for update in read_operations(storage, info)}
    return {name for name in (*named, info.repo_before_updates) if name is not None}


def trim_overwritten(
    storage: Storage, needed: set[str], older_than: datetime, *, dry_run: bool = False
) -> DeleteReport:
    """Delete old backups that are not needed.

    Memory: one key for each deleted backup.
    """
    keys: list[str] = []
    sizes: list[int] = []
    for found in storage.list(OVERWRITTEN):
        name = found.key[len(OVERWRITTEN) :]
        is_copy = _NAME.fullmatch(name)
        if is_copy is None or SnapshotId.parse_exact(is_copy[1]) is None or name in needed:
            continue
        if is_older(found.last_modified, older_than):
            keys.append(found.key)
            sizes.append(found.size)
    return delete_keys(
        storage,
        len(keys),
        lambda start, stop: keys[start:stop],
        np.array(sizes, dtype=np.uint64),
        dry_run=dry_run,
    )
