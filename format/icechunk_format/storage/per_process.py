"""Wraps a storage so that it survives pickling and forks: each process opens its own clients.

With ``storage.client=auto``, a process forked after its parent had used obstore uses the other
client, because obstore does not work there (see ``obstore/store.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icechunk_format.storage.concurrency import PerProcess
from icechunk_format.storage.protocol import Storage


class PerProcessStorage:
    """A ``Storage`` that passes every verb to one that this process makes at the first verb.

    Parameters
    ----------
    make
        Makes the storage; picklable.
    root_url
        The root, for people.
    is_read_only
        Whether every write is refused.
    """

    def __init__(self, make: Callable[[], Storage], root_url: str, is_read_only: bool) -> None:
        self.root_url = root_url
        self.is_read_only = is_read_only
        self._make = make
        self._storage = PerProcess(make)

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return getattr(self._storage.get(), verb)

    def __repr__(self) -> str:
        return f"PerProcessStorage({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (PerProcessStorage, (self._make, self.root_url, self.is_read_only))
