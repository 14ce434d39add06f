"""Reads the operations log, newest entry first, through the backups of the ``repo`` object.

The ``repo`` object has the newest entries and the name of the backup that continues the log. Users
may delete backups: a missing backup ends the log.

An entry names the backup in which it is the newest. This name is absent in the backup itself and is
added here.

Specification: "Updates to the repo info file".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.spec.object_keys import REPO, overwritten_key
from icechunk_format.spec.repo_info import file as repo_info
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.spec.repo_info.updates import Update
from icechunk_format.storage.protocol import Storage


def read_operations(storage: Storage, newest: RepoInfo) -> Iterator[Update]:
    """Yield the entries of the log, newest first, fetching each backup when it is reached."""
    seen: set[str] = set()
    part = newest
    name: str | None = None
    while True:
        for position, update in enumerate(part.latest_updates):
            is_newest_of_backup = position == 0 and update.backup_path is None
            yield replace(update, backup_path=name) if is_newest_of_backup else update
        name = part.repo_before_updates
        if name is None:
            return
        if name in seen:
            raise FormatError(
                f"the operations log returns to the backup {name!r}",
                object_key=REPO,
                file_type="repo info",
                field="repo_before_updates",
            )
        seen.add(name)
        object_key = overwritten_key(name)
        try:
            data = storage.get(object_key).data
        except NotFoundError:
            return
        part = repo_info.decode(data, object_key=object_key)
