"""Replaces the ``repo`` object, or a ref file of version 1, while other writers do the same.

Steps of an update
------------------
1. Read ``repo`` and its version. Raise an error if the repository is read-only.
2. Apply the change, a pure function of the state. If it declines, nothing is written.
3. Store the bytes that were read below ``overwritten/``, under a name with 96 random bits. A commit
   that has read ``repo`` stores this copy together with its snapshot, which saves a round trip.
4. Replace ``repo`` on the condition that it is unchanged. If it has changed, start over.

Determining the outcome
-----------------------
The log of the new state names the copy of step 3. So a state whose log names one of this writer's
copies is the state that it wrote, or a later one. Step 4 may get no response, or a failed
condition; if the client retried after a lost response, the failure may mean that the first attempt
succeeded. (On a local disk a failed condition is certain.) Then the object is read again, with
three possible results:

- The log names the copy: the write succeeded.
- The object changed and its log does not name the copy: the condition can never hold again, so the
  write can never succeed.
- The object is unchanged: repeating the same conditional write is harmless, since at most one of
  the two can succeed.

If that read fails, the outcome is unknown: ``CommitOutcomeUnknownError``. If Ctrl-C interrupts
step 4 or that read, KeyboardInterrupt is raised with a message that the outcome is unknown.

Specification: "Consistency and Optimistic Concurrency", "Updates to the repo info file".
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from icechunk_format.encoding.config.config import RepositoryConfig
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REPO, backup_name, overwritten_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo
from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    FormatError,
    IcechunkError,
    StorageError,
)
from icechunk_format.repository.files.optional_objects import fetch_if_there, read_ref
from icechunk_format.repository.state.repo_file import (
    RepoState,
    config_in,
    read_state,
    remember_state,
)
from icechunk_format.repository.state.transitions import Transition, check_status, record
from icechunk_format.storage.protocol import Condition, CreateOnly, ReplaceIfUnchanged, Storage

DeclinedT = TypeVar("DeclinedT")

MAX_ATTEMPTS: Final = 100
_IMMEDIATE_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 10.0
_READS_AFTER_LOST_ANSWER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RefAnswer:
    """The tip of a branch of version 1 after an attempt to move it.

    Parameters
    ----------
    tip
        The current snapshot of the branch; None if it does not exist.
    tried
        True if a write of unknown outcome was sent; a snapshot on top of it proves its success.
    """

    tip: SnapshotId | None
    tried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Generic[DeclinedT]):
    """The state after an update: the written state, or a later one.

    If the change did not apply to the current state, nothing was written: ``declined`` is the
    result of the change, and ``info`` the state.
    """

    info: RepoInfo
    declined: DeclinedT | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The ``repo`` object as it was just read.

    ``copy`` is the name below ``overwritten/`` of the stored copy of its bytes, or None.
    """

    state: RepoState
    copy: str | None = None


def now_in_microseconds() -> int:
    """Return the time since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1000


def new_backup_name(now: int, *, of: str = REPO) -> str:
    """Return a unique name below ``overwritten/``; ``now`` is in microseconds."""
    return backup_name(now // 1000, secrets.token_bytes(12), of=of)


def update_repo(
    storage: Storage,
    change: Callable[[RepoInfo], Transition | DeclinedT],
    *,
    landed: Callable[[RepoInfo], bool] | None = None,
    even_if_read_only: bool = False,
    seen: Seen | None = None,
) -> Published[DeclinedT]:
    """Apply a change to the ``repo`` object, retrying if other writers change it concurrently.

    Parameters
    ----------
    change
        Pure function of the state; called again for each state that is read.
    landed
        Returns True for a state that includes the change, identified by a random id; needed if
        the log keeps few entries.
    even_if_read_only
        True for changes of the status.
    seen
        The state to try first; if it is outdated, the conditional write fails, and the next
        attempt reads the object.

    Raises
    ------
    ReadOnlyError
        The repository is read-only.
    ConflictError
        Other writers won every attempt; nothing was changed.
    CommitOutcomeUnknownError
        The storage responded neither to the write nor to a later read: the change may have
        succeeded.
    """
    copies: set[str] = set()
    # Time of the state that a write of unknown outcome would have replaced.
    doubted: int | None = None
    try:
        for _ in attempts():
            if seen is None:
                seen = Seen(state=read_state(storage))
            state, copy = seen.state, seen.copy
            seen = None
            info = state.info
            if copies and (_stands_on(info, copies) or (landed is not None and landed(info))):
                return Published(info=info)
            if doubted is not None:
                if _time_of(info) < doubted:
                    # The storage returned an outdated state, which proves nothing.
                    continue
                if _time_of(info) > doubted:
                    if landed is None and not _reaches_back(info, doubted):
                        raise outcome_unknown(storage, REPO)
                    doubted = None
            if not even_if_read_only:
                check_status(info.status)
            answer = change(info)
            if not isinstance(answer, Transition):
                return Published(info=info, declined=answer)
            now = now_in_microseconds()
            is_copied = copy is not None
            copy = copy or new_backup_name(now)
            new = record(
                answer, now=now, backup_name=copy, entries_per_file=_entries_per_file(answer.info)
            )
            data = repo_info.encode(new)
            # Only the state that was read can be replaced, so its bytes are stored as the copy.
            if not is_copied:
                storage.put(overwritten_key(copy), state.data)
            copies.add(copy)
            written = put_if(storage, REPO, data, ReplaceIfUnchanged(version=state.version))
            if written:
                remember_state(data, new)
                return Published(info=new)
            if written is None:
                doubted = _time_of(info)
        info = read_state(storage).info
        if _stands_on(info, copies) or (landed is not None and landed(info)):
            return Published(info=info)
    except CommitOutcomeUnknownError:
        raise
    except IcechunkError as error:
        if doubted is None:
            raise
        raise outcome_unknown(storage, REPO) from error
    except KeyboardInterrupt as interrupt:
        if doubted is None:
            raise
        raise interrupted(storage, REPO) from interrupt
    if doubted is not None and _time_of(info) <= doubted:
        raise outcome_unknown(storage, REPO)
    raise race_lost(storage.root_url, "the 'repo' object")


def update_branch_ref(
    storage: Storage, branch: str, new: SnapshotId, *, expected: SnapshotId | None, key: str
) -> RefAnswer:
    """Move a branch of a version 1 repository, or create it if nothing is ``expected``.

    Raises CommitOutcomeUnknownError if the storage responds neither to the write nor to a later
    read.

    Parameters
    ----------
    expected
        The snapshot that the branch must be at; None if the branch must not exist.

    Returns
    -------
    RefAnswer
        The tip is ``new`` if the branch was moved, else the snapshot that it is at, or None if it
        does not exist.
    """
    condition: Condition
    tried = False
    try:
        for _ in attempts():
            found = read_ref(storage, key)
            if found is None:
                if expected is not None:
                    return RefAnswer(tip=None, tried=tried)
                condition = CreateOnly()
            else:
                tip, version = found
                # Ids are random: if the branch is at this snapshot, an earlier request succeeded.
                if tip == new or tip != expected:
                    return RefAnswer(tip=tip, tried=tried)
                condition = ReplaceIfUnchanged(version=version)
            written = put_if(storage, key, v1_refs.encode_ref_json(new), condition)
            if written:
                return RefAnswer(tip=new, tried=tried)
            tried = tried or written is None
    except CommitOutcomeUnknownError:
        raise
    except IcechunkError as error:
        if not tried:
            raise
        raise outcome_unknown(storage, key) from error
    except KeyboardInterrupt as interrupt:
        if not tried:
            raise
        raise interrupted(storage, key) from interrupt
    raise race_lost(storage.root_url, f"branch {branch!r}", branch=branch)


def create_once(storage: Storage, key: str, data: bytes) -> bool:
    """Create an object if absent; return True if it has these bytes, False if it has others.

    If the outcome is unknown, the object is read: its bytes show which request succeeded. If it
    does not exist, creating it again is harmless, since only one of the requests can succeed.

    Raises CommitOutcomeUnknownError if the storage responds neither to the write nor to a later
    read.
    """
    for _ in attempts():
        if put_if(storage, key, data, CreateOnly()):
            return True
        try:
            found = fetch_if_there(storage, key)
        except StorageError as error:
            raise outcome_unknown(storage, key) from error
        if found is not None:
            return found.data == data
    raise race_lost(storage.root_url, repr(key), key=key)


def _stands_on(info: RepoInfo, copies: set[str]) -> bool:
    """Return True if a state names a copy of this writer, so its write succeeded earlier."""
    named = {update.backup_path for update in info.latest_updates}
    named.add(info.repo_before_updates)
    return not copies.isdisjoint(named)


def _time_of(info: RepoInfo) -> int:
    """Return the time of a state; times of successive states increase."""
    return max((update.updated_at for update in info.latest_updates), default=0)


def _reaches_back(info: RepoInfo, timestamp: int) -> bool:
    """Return True if the log in a state includes every update since a time."""
    if info.repo_before_updates is None:
        return True
    return any(update.updated_at <= timestamp for update in info.latest_updates)


def _entries_per_file(info: RepoInfo) -> int:
    try:
        return config_in(info).num_updates_per_repo_info_file
    except FormatError:
        # A damaged configuration must not make the repository unwritable.
        return RepositoryConfig().num_updates_per_repo_info_file


def put_if(storage: Storage, key: str, data: bytes, condition: Condition) -> bool | None:
    """Write conditionally; return True if that succeeded, False if it certainly did not.

    None means that the object must be read: the condition failed, perhaps after an earlier attempt
    of the same client, or the response was lost and the storage responds again.

    Raises CommitOutcomeUnknownError if the response was lost and the storage no longer responds.
    """
    try:
        try:
            if storage.put(key, data, condition=condition) is not None:
                return True
            is_replacement = isinstance(condition, ReplaceIfUnchanged)
            return False if is_replacement and storage.lost_race_is_certain else None
        except StorageError as error:
            if not error.outcome_unknown:
                raise
            exists_after(storage, key, written=key)
            return None
    except KeyboardInterrupt as interrupt:
        raise interrupted(storage, key) from interrupt


def exists_after(storage: Storage, key: str, *, written: str) -> bool:
    """Return True if an object exists, after a write of it or of another object.

    Raises CommitOutcomeUnknownError if the storage does not respond, so the outcome of the write is
    unknown.
    """
    for reading in range(_READS_AFTER_LOST_ANSWER):
        try:
            return storage.head(key) is not None
        except IcechunkError as error:
            lost_answer = error
            time.sleep(_FIRST_PAUSE * 4**reading)
    raise outcome_unknown(storage, written) from lost_answer


def outcome_unknown(storage: Storage, key: str) -> CommitOutcomeUnknownError:
    """Return the error for a write whose outcome is unknown."""
    return CommitOutcomeUnknownError(
        f"the storage did not respond when {key!r} of {storage.root_url} was written, and does "
        "not respond now. The change may have landed or not: check the repository before repeating "
        "it, and delete nothing",
        key=key,
    )


def interrupted(storage: Storage, key: str) -> KeyboardInterrupt:
    """Return the interrupt of a write whose outcome is unknown."""
    return KeyboardInterrupt(
        f"interrupted while {key!r} of {storage.root_url} was written: the change may have landed"
        " or not. Check the repository before repeating it, and delete nothing"
    )


def attempts() -> Iterator[int]:
    """Yield the numbers of attempts at a change, with pauses after lost races."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if attempt > 1:
            steps = max(0, attempt - _IMMEDIATE_ATTEMPTS)
            longest = min(_FIRST_PAUSE * 1.5**steps, _LONGEST_PAUSE)
            # Uniform over the whole span, since writers with equal pauses would collide again.
            time.sleep(random.uniform(0, longest))
        yield attempt


def race_lost(
    root_url: str,
    what: str,
    outcome: str = "nothing was changed. Let fewer writers commit at once, or try again",
    *,
    times: int | None = None,
    **facts: str,
) -> ConflictError:
    """Return the error for a change that lost the race in all its attempts."""
    times = times or MAX_ATTEMPTS
    return ConflictError(
        f"{what} of {root_url} was changed by other writers {times:,} times during "
        f"this change; {outcome}",
        attempts=times,
        location=root_url,
        **facts,
    )
