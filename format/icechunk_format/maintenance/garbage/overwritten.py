"""Finds backups of ``repo`` in ``overwritten/`` that no operations log can need any more.

Backups that stay, whatever their age
-------------------------------------
All that the operations log names, since a log that grows may continue through any of them. Deleted
are backups of updates that lost a race or were interrupted, backups of the ``config.yaml`` of spec
version 1, and backups behind a gap, where a backup was deleted by hand.

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
from icechunk_format.repository.state.operations import read_operations
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import OVERWRITTEN
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.storage.protocol import Storage

_NAME: Final = re.compile(r"(?:repo|config\.yaml)\.\d{14}\.([0-9A-Z]{20})")


def needed_copies(storage: Storage, info: RepoInfo) -> set[str]:
    """Return the names of the backups that the operations log names, beginning with a state.

    Raises
    ------
    FormatError
        A backup is damaged, or backups name one another in a circle, so that it is unknown which
        others are needed.
    """
    named = {update.backup_path for update in read_operations(storage, info)}
    return {name for name in (*named, info.repo_before_updates) if name is not None}


def trim_overwritten(
    storage: Storage, needed: set[str], older_than: datetime, *, dry_run: bool = False
) -> DeleteReport:
    """Delete the backups that are old enough and that no log names.

    Memory: one key for each backup that is deleted.
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
