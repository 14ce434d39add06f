"""A storage that fails on purpose, at one request, in one of the ways in which stores fail.

Wraps any storage. Requests are counted in the order in which they reach the store; those of a
batch count one by one. What a client would repeat by itself has been repeated in vain here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from icechunk_format.errors import StorageError
from icechunk_format.storage.protocol import OVERWRITE, Lost, Overwrite


class Fault(Enum):
    """How a request fails."""

    REFUSED = "the store says that it did nothing: it is throttled or out of order"
    REQUEST_LOST = "the request never arrived, and nobody can tell"
    RESPONSE_LOST = "the request was carried out, and the answer never came"
    REPEATED = "the answer was lost, and the client's repetition lost against its first try"


@dataclass
class FaultyStorage:
    """``inner`` with one fault, or several in a row.

    Parameters
    ----------
    inner
        Does the work.
    fault
        How requests fail.
    at
        Numbers of the requests that fail, from 0; None for none.
    """

    inner: object
    fault: Fault = Fault.REFUSED
    at: frozenset[int] | set[int] = frozenset()
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def root_url(self):
        return self.inner.root_url

    @property
    def is_read_only(self):
        return self.inner.is_read_only

    def _request(self, verb, key, act, *, condition=OVERWRITE):
        number = len(self.requests)
        self.requests.append((verb, key))
        if number not in self.at:
            return act()
        conditional = not isinstance(condition, Overwrite)
        error = StorageError(
            f"{self.fault.value}: {verb} {key!r}",
            outcome_unknown=conditional and self.fault is not Fault.REFUSED,
        )
        if self.fault in (Fault.RESPONSE_LOST, Fault.REPEATED):
            answer = act()
            if self.fault is Fault.REPEATED:
                return Lost() if conditional else answer
        raise error

    def get(self, key, *, start=None, end=None):
        return self._request("get", key, lambda: self.inner.get(key, start=start, end=end))

    def get_many(self, requests):
        return [
            self._request("get", r.key, lambda r=r: self.inner.get_many([r])[0]) for r in requests
        ]

    def head(self, key):
        return self._request("head", key, lambda: self.inner.head(key))

    def put(self, key, data, *, condition=OVERWRITE, attributes=None):
        return self._request(
            "put", key, lambda: self.inner.put(key, data, condition=condition), condition=condition
        )

    def put_many(self, items, *, attributes=None):
        return [
            self._request("put", key, lambda k=key, d=data: self.inner.put_many([(k, d)])[0])
            for key, data in items
        ]

    def delete_many(self, keys):
        return [
            failure
            for key in keys
            for failure in self._request("delete", key, lambda k=key: self.inner.delete_many([k]))
        ]

    def copy(self, source, target, *, source_version=None):
        return self._request(
            "copy", target, lambda: self.inner.copy(source, target, source_version=source_version)
        )

    def list(self, prefix=""):
        return self._request("list", prefix, lambda: self.inner.list(prefix))
