"""Creates an object that must not exist yet, and finds out whose object is there when in doubt.

If a request gets no answer, or the client retried after a lost response, the object is read. Ours:
the first request landed. Another one: a rival was faster. None: creating it again is harmless,
since only one of both requests can succeed.
"""

from __future__ import annotations

from typing import Final

from icechunk_format.errors import StorageError
from icechunk_format.repository.files.optional_objects import fetch_if_there
from icechunk_format.repository.state.publish import outcome_unknown, put_if
from icechunk_format.storage.protocol import CreateOnly, Storage

_ATTEMPTS: Final = 5


def create_once(storage: Storage, key: str, data: bytes) -> bool:
    """Create an object; False where an object with other bytes exists.

    Raises
    ------
    CommitOutcomeUnknownError
        The store did not answer, and could not be asked afterwards.
    StorageError
        The store failed; then nothing was created.
    """
    for _ in range(_ATTEMPTS):
        if put_if(storage, key, data, CreateOnly()):
            return True
        try:
            found = fetch_if_there(storage, key)
        except StorageError as error:
            raise outcome_unknown(storage, key) from error
        if found is not None:
            return found.data == data
    raise StorageError(
        f"{key!r} of {storage.root_url} could not be created in {_ATTEMPTS} attempts; nothing was "
        "changed. Try again",
        key=key,
    )
