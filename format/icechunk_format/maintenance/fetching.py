"""Fetches the objects of a batch, and checks the ids in them.

A batch read fails as a whole if an object is missing: ``fetched`` raises an error with advice,
``fetched_present`` returns None for the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.encoding.manifest import decode as manifest_file
from icechunk_format.errors import NotFoundError
from icechunk_format.repository.files.metadata_files import check_id
from icechunk_format.repository.files.optional_objects import missing_key
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import ReadRequest, Storage


def sized_ids(
    ids: NDArray[np.uint8], sizes: NDArray[Any], count: int, nbytes: int
) -> Iterator[list[bytes]]:
    """Yield ids ``uint8 (n, 12)`` in batches, bounded by object sizes (0 is unknown)."""
    items = ((row.tobytes(), size or None) for row, size in zip(ids, sizes.tolist(), strict=True))
    return sized_batches(items, count, nbytes)


def fetched(storage: Storage, keys: Sequence[str], needed_by: str, advice: str) -> list[bytes]:
    """Return the bytes of objects; raise NotFoundError, with advice, for a missing object."""
    try:
        return storage.get_many([ReadRequest(key=key) for key in keys])
    except NotFoundError as error:
        missing = missing_key(error)
        raise NotFoundError(
            f"{missing!r} is not in {storage.root_url}, although {needed_by} needs it; {advice}",
            kind="object",
            key=missing,
            root_url=storage.root_url,
        ) from error


def fetched_present(storage: Storage, object_keys: Sequence[str]) -> list[bytes | None]:
    """Return the bytes of each object; None if it does not exist."""
    try:
        return [*storage.get_many([ReadRequest(key=key) for key in object_keys])]
    except NotFoundError as error:
        missing_key(error)
        if len(object_keys) == 1:
            return [None]
    return [found for key in object_keys for found in fetched_present(storage, [key])]


def decoded_manifest(data: bytes, key: str, raw_id: bytes) -> manifest_file.Manifest:
    """Decode a manifest, and check its id."""
    found = manifest_file.decode(data, object_key=key)
    check_id(found.id, ManifestId(raw_id), key, "manifest")
    return found
