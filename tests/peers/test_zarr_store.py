"""The tests that zarr-python has of every store pass for a store over our sessions.

``AnyKeysStore`` runs all of them: its values are chunks. ``SessionStore`` has the keys of a Zarr
hierarchy alone, so tests that invent keys or documents do not apply to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers.peers.any_keys import AnyKeysStore
from helpers.peers.store import SessionStore, opened
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

if TYPE_CHECKING:
    from pathlib import Path


class _Common:
    """Tests that zarr-python leaves to each store."""

    buffer_cls = cpu.Buffer

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        await store.set(key, value)

    async def get(self, store: Any, key: str) -> Buffer:
        return await store.get(key, default_buffer_prototype())

    def test_store_repr(self, store: Any) -> None:
        assert str(store.repository.location) in repr(store)

    def test_store_supports_writes(self, store: Any) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Any) -> None:
        assert store.supports_listing


@pytest.mark.parametrize("inline", [None, 0], ids=["inline", "native"], scope="class")
class TestValuesAsChunks(_Common, StoreTests[AnyKeysStore, cpu.Buffer]):
    store_cls = AnyKeysStore

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path, inline: int | None) -> dict[str, Any]:
        return {"url": str(tmp_path / "repository"), "inline": inline}


_KEYS = "its keys are not those of a Zarr 3 hierarchy, and Icechunk has no others"
_DOCUMENTS = "its documents are not JSON, and a node needs its kind and shape"
_SESSION = "the mode of a store is that of its session"
NOT_APPLICABLE = {
    "test_get": _KEYS,
    "test_get_not_open": _KEYS,
    "test_get_raises": _KEYS,
    "test_get_many": _KEYS,
    "test_getsize": _KEYS,
    "test_getsize_prefix": _KEYS,
    "test_set": _KEYS,
    "test_set_not_open": _KEYS,
    "test_set_many": _KEYS,
    "test_set_if_not_exists": _KEYS,
    "test_get_partial_values": _KEYS,
    "test_is_empty": _KEYS,
    "test_clear": _KEYS,
    "test_list_dir": _KEYS,
    "test_get_sync": _KEYS,
    "test_set_sync": _KEYS,
    "test_delete_sync": _KEYS,
    "test_sync_async_set_get_parity": _KEYS,
    "test_delete_sync_visible_to_async_get": _KEYS,
    "test_get_sync_byte_range_parity": _KEYS,
    "test_exists": _DOCUMENTS,
    "test_delete": _DOCUMENTS,
    "test_delete_dir": _DOCUMENTS,
    "test_list": _DOCUMENTS,
    "test_list_prefix": _DOCUMENTS,
    "test_list_empty_path": _DOCUMENTS,
    "test_serializable_store": "changes that are not committed cannot leave their process",
    "test_store_eq": "two sessions differ, whatever repository they change",
    "test_with_read_only_store": _SESSION,
}


class TestKeysOfNodes(_Common, StoreTests[SessionStore, cpu.Buffer]):
    store_cls = SessionStore

    @pytest.fixture(autouse=True)
    def _applicable(self, request: pytest.FixtureRequest) -> None:
        if reason := NOT_APPLICABLE.get(request.node.originalname):
            pytest.skip(reason)

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": str(tmp_path / "repository")}

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> SessionStore:
        return opened(**store_kwargs)
