"""Lists objects whose names are ids, and looks up millions of ids in the listing.

One listing of a prefix replaces a request for each chunk. The listing is held as sorted columns, 21
bytes for each object, and searched by vectorized binary search. Objects whose names are not
canonical ids are foreign; they are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ObjectId, SortedIds, decode_many, id_columns
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.storage.protocol import Storage

_PAGE: Final = 10_000
_SECOND: Final = timedelta(seconds=1)


class ListedPage(NamedTuple):
    """A page of a listing: ids ``uint8 (n, 12)``, and the sizes of their objects.

    ``foreign`` is the number of objects whose names are not ids.
    """

    ids: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    foreign: int


def list_ids(
    storage: Storage, prefix: str, starts_with: str = "", *, older_than: datetime | None = None
) -> Iterator[ListedPage]:
    """Yield the objects directly below a prefix such as ``chunks/``, about 10,000 per page.

    ``starts_with`` limits the listing to ids with these first characters, ``older_than`` to objects
    that were certainly written before.
    """
    found = iter(storage.list(prefix + starts_with))
    while page := list(islice(found, _PAGE)):
        raw, is_id = decode_many([info.key[len(prefix) :] for info in page], ObjectId.SIZE)
        sizes = np.array([info.size for info in page], dtype=np.int64)
        foreign = int((~is_id).sum())
        if older_than is not None:
            is_id &= [is_older(info.last_modified, older_than) for info in page]
        yield ListedPage(ids=raw[is_id], sizes=sizes[is_id], foreign=foreign)


def is_older(last_modified: datetime, cutoff: datetime) -> bool:
    """Return True if an object was certainly written before a cutoff.

    A time in whole seconds may be truncated: the object may be up to a second newer.
    """
    if last_modified.microsecond == 0:
        return last_modified + _SECOND <= cutoff
    return last_modified < cutoff


class ObjectListing:
    """All objects below a prefix; ids are ``uint8 (n, 12)`` in any order."""

    def __init__(self, ids: NDArray[np.uint8], sizes: NDArray[np.int64], foreign: int = 0) -> None:
        high, low = id_columns(ids)
        order = np.lexsort((low, high))
        self._ids = SortedIds(high[order], low[order])
        self.sizes = sizes[order]
        self.is_used = np.zeros(len(order), dtype=np.bool_)
        self.foreign = foreign

    @classmethod
    def of(cls, storage: Storage, prefix: str, progress: ProgressOption = None) -> ObjectListing:
        """List a prefix."""
        pages = []
        with phase(progress, f"Listing {prefix}") as advance:
            for page in list_ids(storage, prefix):
                pages.append(page)
                advance(len(page.ids))
        ids = np.concatenate([np.zeros((0, ObjectId.SIZE), np.uint8), *(p.ids for p in pages)])
        sizes = np.concatenate([np.zeros(0, np.int64), *(p.sizes for p in pages)])
        return cls(ids, sizes, sum(page.foreign for page in pages))

    def __len__(self) -> int:
        return len(self.sizes)

    def find(self, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the row of each id, ``int64 (m,)``; -1 for ids that are not listed."""
        return self._ids.find(ids)

    def unused(self) -> tuple[int, int]:
        """Return the number and the bytes of objects that are not marked in ``is_used``."""
        return int((~self.is_used).sum()), int(self.sizes[~self.is_used].sum())
