"""A Zarr store with any keys: each value is one chunk of an array, whose attribute has the keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from helpers.peers.store import SessionStore, as_tuple, check_writable, view_of
from zarr.core.buffer import Buffer, BufferPrototype

from icechunk_format.repository import Repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zarr.abc.store import ByteRequest

_LENGTH = 10_000
_ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [_LENGTH],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
}
# A chunk has at least one byte, a value may have none.
_MARK = b"\x2a"


class AnyKeysStore(SessionStore):
    """Values below any keys, for tests of stores that know nothing of arrays."""

    def __init__(self, url: str, *, read_only: bool = False, inline: int | None = None) -> None:
        repository = Repository.find(url)
        if repository is None:
            repository = Repository.create(url)
            if inline is not None:
                repository.update_config({"inline_chunk_threshold_bytes": inline})
            session = repository.writable_session()
            session.create_group("/", {})
            session.create_array(
                "/values", json.dumps(_ARRAY).encode(), shape=[_LENGTH], num_chunks=[_LENGTH]
            )
            session.commit("An array of values")
        session = view_of(repository) if read_only else repository.writable_session()
        super().__init__(repository, session)

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._open()
        return store

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AnyKeysStore):
            return False
        return self.repository.location == other.repository.location

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AnyKeysStore, (str(self.repository.location),)

    def with_read_only(self, read_only: bool = False) -> AnyKeysStore:
        return AnyKeysStore(str(self.repository.location), read_only=read_only)

    def _numbers(self) -> dict[str, int]:
        node = self.session.node("/values")
        assert node is not None
        numbers: dict[str, int] = json.loads(node.user_data)["attributes"].get("keys", {})
        return numbers

    def _key(self, key: str) -> str | None:
        number = self._numbers().get(key)
        return None if number is None else f"values/c/{number}"

    # -- reading --------------------------------------------------------------------------------

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        start, end = as_tuple(byte_range)
        place = self._key(key)
        size = None if place is None else self.keys.size(place)
        if place is None or size is None:
            return None
        if start is None and end is not None:
            start, end = max(size - 1 - end, 0), size - 1
        shifted = (start or 0) + 1, None if end is None else end + 1
        found = self.keys.get(place, shifted)
        return None if found is None else prototype.buffer.from_bytes(found)

    async def _size(self, key: str) -> int | None:
        place = self._key(key)
        size = None if place is None else self.keys.size(place)
        return None if size is None else size - len(_MARK)

    def _found(self, prefix: str = "") -> list[str]:
        stored = {key for key, _ in self.keys.sizes("values/c/")}
        return [
            key
            for key, number in self._numbers().items()
            if key.startswith(prefix) and f"values/c/{number}" in stored
        ]

    async def list(self) -> AsyncIterator[str]:
        for key in self._found():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._found(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        base = prefix.strip("/")
        base = f"{base}/" if base else ""
        for name in dict.fromkeys(k[len(base) :].partition("/")[0] for k in self._found(base)):
            yield name

    # -- writing --------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        check_writable(self, value)
        numbers = self._numbers()
        if key not in numbers:
            numbers[key] = len(numbers)
            self.session.set_attributes("/values", {"keys": numbers})
        self.keys.set(f"values/c/{numbers[key]}", _MARK + value.to_bytes())

    async def delete(self, key: str) -> None:
        self._check_writable()
        place = self._key(key)
        if place is not None:
            self.keys.delete(place)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        base = prefix.strip("/")
        for key in self._found(f"{base}/" if base else ""):
            await self.delete(key)

    async def clear(self) -> None:
        await self.delete_dir("")
