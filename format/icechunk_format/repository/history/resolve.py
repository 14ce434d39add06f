"""Finds the snapshot that a branch, tag, snapshot id or timestamp selects.

Rules of this file
------------------
1. ``branch``, ``tag`` and ``snapshot`` exclude one another; the default is branch ``main``.
2. ``as_of`` walks the history of a branch; it is refused with a tag or a snapshot.
3. Errors about missing names list the existing ones, nearest spelling first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypedDict

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.errors import InvalidInputError, NotFoundError, StorageError, UnsupportedError
from icechunk_format.names import by_likeness

if TYPE_CHECKING:
    from icechunk_format.repository.history.history import History

DEFAULT_BRANCH = "main"
_MOST_SUGGESTIONS = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A timestamp with a time zone, an age, or either as a string.
Cutoff = datetime | timedelta | str

_AGE: Final = re.compile(r"(\d{1,9})\s*(s|min|h|d|w)", re.ASCII)
_AGE_SECONDS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class SnapshotArguments(TypedDict, total=False):
    """The arguments of ``resolve`` that select a snapshot."""

    branch: str | None
    tag: str | None
    snapshot: str | SnapshotId | None
    as_of: datetime | None


def resolve(
    history: History,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | SnapshotId | None = None,
    as_of: datetime | None = None,
    repository_url: str,
) -> SnapshotId:
    """Return the snapshot that the arguments select; see ``RepositoryReader.resolve``."""
    given = [
        name
        for name, value in (("branch", branch), ("tag", tag), ("snapshot", snapshot))
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidInputError(
            f"{' and '.join(given)} are both given, but they exclude one another; keep one",
            given=tuple(given),
        )
    if as_of is not None and (tag is not None or snapshot is not None):
        raise InvalidInputError(
            f"as_of is given with a {given[0]}, which is one snapshot already; "
            "give as_of with a branch",
            given=(*given, "as_of"),
        )
    if snapshot is not None:
        return entry_of(history, snapshot, repository_url=repository_url).id
    if tag is not None:
        return _tagged_snapshot(history, tag, repository_url)
    name = DEFAULT_BRANCH if branch is None else branch
    tip = history.branch_tip(name)
    if tip is None:
        raise _missing_ref("branch", name, history.branches, repository_url)
    return tip if as_of is None else _as_of(history, name, tip, as_of, repository_url)


def entry_of(history: History, snapshot: str | SnapshotId, *, repository_url: str) -> SnapshotInfo:
    """Return parent, time, message and metadata of a snapshot; see ``resolve`` for the errors."""
    try:
        snapshot_id = SnapshotId.parse(snapshot) if isinstance(snapshot, str) else snapshot
    except InvalidInputError as error:
        raise InvalidInputError(
            f"snapshot must be the id of a snapshot, which has {error.facts['allowed']}, but is"
            f" {snapshot!r}: the metadata table 'history' lists ids; tags and branches are read"
            " with the options tag and branch",
            option="snapshot",
            found=snapshot,
        ) from None
    found = history.snapshot_info(snapshot_id)
    if found is None:
        existing = _listing("snapshot", str(snapshot_id), history.known_snapshots)
        raise NotFoundError(
            f"there is no snapshot {snapshot_id} in {repository_url}; "
            f"it was never committed there, or it expired; {existing}",
            kind="snapshot",
            name=str(snapshot_id),
        )
    return found


def _tagged_snapshot(history: History, tag: str, repository_url: str) -> SnapshotId:
    snapshot_id = history.tagged_snapshot(tag)
    if snapshot_id is not None:
        return snapshot_id
    error = _missing_ref("tag", tag, history.tags, repository_url)
    if tag in _listed(history.deleted_tags):
        raise NotFoundError(
            f"tag {tag!r} of {repository_url} was deleted, and its name cannot be used again; "
            f"{error.facts['existing']}",
            **error.facts,
            deleted=True,
        )
    raise error


def _missing_ref(
    kind: str, name: str, list_existing: Callable[[], Iterable[object]], repository_url: str
) -> NotFoundError:
    existing = _listing(kind, name, list_existing)
    return NotFoundError(
        f"there is no {kind} {name!r} in {repository_url}; {existing}",
        kind=kind,
        name=name,
        existing=existing,
    )


def _as_of(
    history: History, branch: str, tip: SnapshotId, as_of: datetime, repository_url: str
) -> SnapshotId:
    timestamp = microseconds(as_of, argument="as_of")
    earliest: int | None = None
    for info in history.ancestry(tip):
        if info.flushed_at <= timestamp:
            return info.id
        earliest = info.flushed_at
    # Imported here, since display modules are loaded on use.
    from icechunk_format.display.plain_text import to_timestamp

    begins = "" if earliest is None else to_timestamp(earliest).isoformat()
    raise NotFoundError(
        f"branch {branch!r} of {repository_url} has no snapshot at or before "
        f"{as_of.isoformat()}; its history begins at {begins}",
        kind="snapshot",
        branch=branch,
        as_of=as_of,
        earliest=begins,
    )


def microseconds(timestamp: datetime, *, argument: str) -> int:
    """Convert a timestamp with a time zone to whole microseconds since 1970."""
    if timestamp.tzinfo is None:
        raise InvalidInputError(
            f"{argument} {timestamp.isoformat()} has no time zone; give one, as in "
            f"{timestamp.replace(tzinfo=UTC).isoformat()}",
            argument=argument,
        )
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


def parse_cutoff(given: Cutoff, *, argument: str, now: datetime | None = None) -> datetime:
    """Return the timestamp of a cutoff; strings without a zone are in UTC."""
    present = datetime.now(UTC) if now is None else now
    if isinstance(given, datetime):
        microseconds(given, argument=argument)
        return given
    try:
        if isinstance(given, timedelta) and given >= timedelta(0):
            return present - given
        if isinstance(given, str):
            stripped = given.strip()
            match = _AGE.fullmatch(stripped.lower())
            if match is not None:
                return present - timedelta(seconds=int(match[1]) * _AGE_SECONDS[match[2]])
            parsed = datetime.fromisoformat(stripped.replace(" UTC", "Z"))
            # Also raises for timestamps that UTC cannot represent.
            return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidInputError(
        f"{argument} {given!r} is neither an age, such as 30d, 12h, 45min or 4w, nor a time,"
        " such as 2026-01-31 or 2026-01-31T12:00:00Z",
        argument=argument,
        found=given,
    )


def _listed(list_existing: Callable[[], Iterable[object]]) -> list[str]:
    """Return existing names; an empty list if they cannot be listed."""
    try:
        return [str(name) for name in list_existing()]
    except (StorageError, UnsupportedError):
        return []


def _listing(kind: str, wanted: str, list_existing: Callable[[], Iterable[object]]) -> str:
    plural = "branches" if kind == "branch" else f"{kind}s"
    existing = _listed(list_existing)
    names = by_likeness(wanted, sorted(existing), _MOST_SUGGESTIONS)
    if not names:
        return f"no {plural} were found there"
    more = len(set(existing)) - len(names)
    return f"{plural} that exist: {', '.join(names)}" + (f" and {more} more" if more else "")
