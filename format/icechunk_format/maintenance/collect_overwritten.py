"""Old copies of ``repo``: every change of a repository leaves one, and nothing else removes them.

Which copies stay, whatever their age
-------------------------------------
The operations log is read from ``repo`` and through the copies that continue it, each naming the
next one. These stay. So do the copies that the entries in ``repo`` itself name, because the log
will be continued from one of them when it grows over its limit. All others are needed by nobody:
copies of updates that lost a race, and those that only entries further back in the log name (the
entries stay readable, the state before each of them does not).

Specification: "Updates to the repo info file".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.maintenance.collect_result import DeleteReport
from icechunk_format.maintenance.collect_roots import is_older
from icechunk_format.maintenance.collect_sweep import delete_keys
from icechunk_format.spec import repo_info
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import OVERWRITTEN, REPO, overwritten_key

if TYPE_CHECKING:
    from datetime import datetime

    from icechunk_format.spec.repo_info import RepoInfo
    from icechunk_format.storage.protocol import Storage

_NAME: Final = re.compile(r"(?:repo|config\.yaml)\.\d{14}\.([0-9A-Z]{20})")


def needed_copies(storage: Storage, info: RepoInfo) -> set[str]:
    """Return the names of the copies that the operations log is or will be read from.

    Raises
    ------
    FormatError
        A copy is damaged, or copies name one another in a circle: which others are needed cannot
        be told then.
    """
    named = {update.backup_path for update in info.latest_updates if update.backup_path}
    chain: set[str] = set()
    following = info.repo_before_updates
    while following is not None:
        if following in chain:
            raise FormatError(
                f"the operations log comes back to the copy {following!r}",
                object_key=REPO,
                file_type="repo info",
                field="repo_before_updates",
            )
        chain.add(following)
        key = overwritten_key(following)
        try:
            data = storage.get(key).data
        except NotFoundError as error:
            if error.facts.get("kind") != "object":
                raise
            break
        following = repo_info.decode(data, object_key=key).repo_before_updates
    return named | chain


def trim_overwritten(
    storage: Storage, needed: set[str], older_than: datetime, *, dry_run: bool = False
) -> DeleteReport:
    """Delete the copies that are old enough and that the log does not need.

    Memory: one key for each copy that goes.
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
    if dry_run:
        return DeleteReport(deleted_objects=len(keys), deleted_bytes=sum(sizes))
    return delete_keys(
        storage, len(keys), lambda start, stop: keys[start:stop], np.array(sizes, dtype=np.uint64)
    )
