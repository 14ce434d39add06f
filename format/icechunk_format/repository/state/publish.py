"""Replaces the ``repo`` object, or a ref file of version 1, while other writers do the same.

Steps of an update
------------------
1. Read ``repo`` and its version. Refuse when the repository is read-only.
2. Apply the change, a pure function of the state. It may decline: then nothing is written.
3. Put the bytes that were read into ``overwritten/``, under a name with 96 random bits. A commit
   that has read ``repo`` stores this copy together with its snapshot, which saves a round trip.
4. Replace ``repo`` on the condition that it still is what was read. Lost: begin again.

Why the outcome is always known, or said to be unknown
------------------------------------------------------
The log of the new state names the copy of step 3. So a state whose log names one of our copies is
ours, or a later one. Step 4 may get no answer, or the answer that the condition failed; if the
client retried after a lost response, that failure may mean that the first attempt succeeded. Then
the object is read again, with three possible results:

- The log names our copy: the write landed.
- The object changed and its log does not name our copy: the condition can never hold again, so the
  write can never land.
- The object is unchanged: repeating the same conditional write is harmless, since at most one of
  the two can land.

An error between a doubtful write and the read that settles it proves nothing about the write. Then
the outcome is unknown, and ``CommitOutcomeUnknownError`` says so.

Specification: "Consistency and Optimistic Concurrency", "Updates to the repo info file".
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    FormatError,
    IcechunkError,
    StorageError,
)
from icechunk_format.repository.files.optional_objects import read_ref
from icechunk_format.repository.state.repo_file import RepoState, read_state, remember_state
from icechunk_format.repository.state.transitions import Transition, check_status, record
from icechunk_format.spec.config.config import RepositoryConfig, decode_flexbuffer_config
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import REPO, backup_name, overwritten_key
from icechunk_format.spec.repo_info import file as repo_info
from icechunk_format.spec.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.spec.repo_info.file import RepoInfo
from icechunk_format.storage.protocol import (
    Condition,
    CreateOnly,
    ReplaceIfUnchanged,
    Storage,
)

DeclinedT = TypeVar("DeclinedT")

MAX_ATTEMPTS: Final = 100
_IMMEDIATE_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 10.0
_READS_AFTER_LOST_ANSWER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RefAnswer:
    """The tip of a branch of version 1 that was found on an attempt to move it.

    Parameters
    ----------
    tip
        The snapshot that it is at; None when it does not exist.
    tried
        Whether a write was sent that was not seen to land. A later snapshot on top proves that the
        write landed.
    """

    tip: SnapshotId | None
    tried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Generic[DeclinedT]):
    """The state after an update: the one that was written, or a later one.

    Where the change did not apply to the present state, nothing was written: ``declined`` is what
    the change answered, and ``info`` the state that it saw.
    """

    info: RepoInfo
    declined: DeclinedT | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The ``repo`` object as it was read a moment ago.

    Parameters
    ----------
    copy
        Name below ``overwritten/`` where its bytes have been put; None where they have not.
    """

    state: RepoState
    copy: str | None = None


def now_in_microseconds() -> int:
    """Return the time since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1000


def new_backup_name(now: int, *, of: str = REPO) -> str:
    """Return a name below ``overwritten/`` that no other writer has; ``now`` in microseconds."""
    return backup_name(now // 1000, secrets.token_bytes(12), of=of)


def update_repo(
    storage: Storage,
    change: Callable[[RepoInfo], Transition | DeclinedT],
    *,
    landed: Callable[[RepoInfo], bool] | None = None,
    even_if_read_only: bool = False,
    seen: Seen | None = None,
) -> Published[DeclinedT]:
    """Apply a change to the ``repo`` object, however many others do so at the same time.

    Parameters
    ----------
    storage
        Where the repository is.
    change
        Pure function of the state; called again for each state that is met.
    landed
        Another way to recognise a state that stands on the change, where there is one: a random id
        that it brings. It also serves repositories whose log keeps very few entries.
    even_if_read_only
        For the change of the status itself.
    seen
        A state to begin with. An old state is safe: its conditional write fails, and the next
        attempt reads the object.

    Raises
    ------
    ReadOnlyError
        The repository is read-only.
    ConflictError
        The race was lost a hundred times; nothing was changed.
    CommitOutcomeUnknownError
        The store did not answer, and could not be asked afterwards: the change may have landed.
    NotFoundError, FormatError, StorageError
        The repository cannot be read.
    """
    copies: set[str] = set()
    # The time of the state that a write of ours was to replace, while its outcome is unknown.
    doubted: int | None = None
    try:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            pause_before(attempt)
            if seen is None:
                seen = Seen(state=read_state(storage))
            state, copy = seen.state, seen.copy
            seen = None
            info = state.info
            if copies and (_stands_on(info, copies) or (landed is not None and landed(info))):
                return Published(info=info)
            if doubted is not None:
                if _time_of(info) < doubted:
                    # The store answered with an old state, which tells nothing of our write.
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
            # Only the state that was read can be replaced, so its bytes are the copy.
            if not is_copied:
                storage.put(overwritten_key(copy), state.data)
            copies.add(copy)
            if put_if(storage, REPO, data, ReplaceIfUnchanged(version=state.version)):
                remember_state(data, new)
                return Published(info=new)
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
    if doubted is not None and _time_of(info) <= doubted:
        raise outcome_unknown(storage, REPO)
    raise ConflictError(
        f"the 'repo' object of {storage.root_url} was changed by others {MAX_ATTEMPTS} times "
        "while this change was tried; nothing was changed. Let fewer writers commit at once, or "
        "try again",
        attempts=MAX_ATTEMPTS,
    )


def update_branch_ref(
    storage: Storage,
    branch: str,
    new: SnapshotId,
    *,
    expected: SnapshotId | None,
    key: str,
) -> RefAnswer:
    """Move a branch of a version 1 repository, or create it where nothing is ``expected``.

    Parameters
    ----------
    expected
        Where the branch has to be; None for a branch that is not there yet.
    key
        Key of the ref file.

    Returns
    -------
    RefAnswer
        Where the branch is after the call: ``new`` if it was moved, else the snapshot that another
        writer moved it to; None when it does not exist (any more).

    Raises
    ------
    CommitOutcomeUnknownError
        The store did not answer, and could not be asked afterwards.
    """
    condition: Condition
    tried = False
    try:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            pause_before(attempt)
            found = read_ref(storage, key)
            if found is None:
                if expected is not None:
                    return RefAnswer(tip=None, tried=tried)
                condition = CreateOnly()
            else:
                tip, version = found
                # Snapshot ids are random: if the branch is at our id, our earlier request landed.
                if tip == new or tip != expected:
                    return RefAnswer(tip=tip, tried=tried)
                condition = ReplaceIfUnchanged(version=version)
            if put_if(storage, key, v1_refs.encode_ref_json(new), condition):
                return RefAnswer(tip=new, tried=tried)
            tried = True
    except CommitOutcomeUnknownError:
        raise
    except IcechunkError as error:
        if not tried:
            raise
        raise outcome_unknown(storage, key) from error
    raise ConflictError(
        f"branch {branch!r} of {storage.root_url} was changed by others {MAX_ATTEMPTS} times while "
        "this change was tried; nothing was changed",
        branch=branch,
    )


def _stands_on(info: RepoInfo, copies: set[str]) -> bool:
    """Tell whether a state names one of our copies, so that our write came before it."""
    named = {update.backup_path for update in info.latest_updates}
    named.add(info.repo_before_updates)
    return not copies.isdisjoint(named)


def _time_of(info: RepoInfo) -> int:
    """Return when a state was written; every state is younger than the one before it."""
    return max((update.updated_at for update in info.latest_updates), default=0)


def _reaches_back(info: RepoInfo, instant: int) -> bool:
    """Tell whether the log in a state names every update since an instant."""
    if info.repo_before_updates is None:
        return True
    return any(update.updated_at <= instant for update in info.latest_updates)


def _entries_per_file(info: RepoInfo) -> int:
    if info.config is None:
        return RepositoryConfig().num_updates_per_repo_info_file
    try:
        return decode_flexbuffer_config(info.config).num_updates_per_repo_info_file
    except FormatError:
        # A damaged configuration must not make the repository unwritable.
        return RepositoryConfig().num_updates_per_repo_info_file


def put_if(storage: Storage, key: str, data: bytes, condition: Condition) -> bool:
    """Write under a condition; False where the object has to be read to learn what happened.

    The write was lost, perhaps because a retry of the client met its own first attempt; or its
    answer went missing, and the store answers again.

    Raises
    ------
    CommitOutcomeUnknownError
        The answer went missing, and the store cannot be asked afterwards.
    """
    try:
        return storage.put(key, data, condition=condition) is not None
    except StorageError as error:
        if not error.outcome_unknown:
            raise
        exists_after(storage, key, written=key)
        return False


def exists_after(storage: Storage, key: str, *, written: str) -> bool:
    """Return True if an object exists after another one, or itself, was written.

    Raises
    ------
    CommitOutcomeUnknownError
        The store gives no answer, so what the write led to is unknown.
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
        f"the store did not answer when {key!r} of {storage.root_url} was written, and cannot be "
        "asked now. The change may have landed or not: look at the repository before doing it "
        "again, and delete nothing",
        key=key,
    )


def pause_before(attempt: int) -> None:
    """Wait before a repeated attempt; the first few losers of a race only make room."""
    if attempt == 1:
        return
    steps = max(0, attempt - _IMMEDIATE_ATTEMPTS)
    longest = min(_FIRST_PAUSE * 1.5**steps, _LONGEST_PAUSE)
    # Spread over the whole span: rivals that pause alike would meet again.
    time.sleep(random.uniform(0, longest))
