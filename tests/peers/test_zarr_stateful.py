"""The state machines of zarr-python find no difference between our sessions and its memory store.

Both also commit, and go on in a new session of the branch, which must have the same keys.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from helpers.examples import by_day
from helpers.peers.any_keys import AnyKeysStore
from helpers.peers.store import opened
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from zarr.core.buffer import default_buffer_prototype
from zarr.testing.stateful import (
    SyncStoreWrapper,
    ZarrHierarchyStateMachine,
    ZarrStoreStateMachine,
)

from icechunk_format.maintenance import rewrite_manifests, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

_TWO = [["any_array", [{"condition": "Any", "num_chunks": 2}]]]

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.fixture
def settings_of_the_run() -> settings:
    return settings(
        max_examples=by_day(8),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def grids(machine: type) -> Iterator[None]:
    # Spec version 1 has only regular grids.
    with zarr.config.set({"array.rectilinear_chunks": machine is not HierarchyOfVersion1}):
        yield


class _Folder:
    """A repository of its own for each example."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.url = str(Path(self.folder.name) / "repository")

    def teardown(self) -> None:
        self.folder.cleanup()


class Values(_Folder, ZarrStoreStateMachine):
    """Values below any keys, each a chunk."""

    def __init__(self) -> None:
        _Folder.__init__(self)
        ZarrStoreStateMachine.__init__(self, AnyKeysStore(self.url, inline=20))

    @rule()
    def commit(self) -> None:
        self.store.store.session.commit("more values", allow_empty=True)
        self.store = SyncStoreWrapper(AnyKeysStore(self.url))


class Hierarchy(_Folder, ZarrHierarchyStateMachine):
    """Groups and arrays that zarr-python makes, resizes, overwrites and deletes."""

    spec_version = 2

    def __init__(self) -> None:
        _Folder.__init__(self)
        ZarrHierarchyStateMachine.__init__(self, opened(self.url, spec_version=self.spec_version))

    def _contents(self, store: Any) -> dict[str, bytes]:
        async def read() -> dict[str, bytes]:
            prototype = default_buffer_prototype()
            found = {
                key: await store.get(key, prototype) for key in [k async for k in store.list()]
            }
            return {key: value.to_bytes() for key, value in found.items()}

        contents: dict[str, bytes] = self._sync(read())
        return contents

    @rule()
    def commit(self) -> None:
        before = self._contents(self.store)
        self.store.session.commit("a step", allow_empty=True)
        self.store = opened(self.url)
        assert self._contents(self.store) == before

    @precondition(lambda self: not self.store.session.has_changes)
    @rule()
    def rewrite(self) -> None:
        before = self._contents(self.store)
        rewrite_manifests(self.url, splitting=_TWO)
        self.store = opened(self.url)
        assert self._contents(self.store) == before

    @precondition(lambda self: not self.store.session.has_changes)
    @rule()
    def check(self) -> None:
        findings = verify(self.url).to_pylist()
        assert [one for one in findings if one["severity"] != "info"] == []


class HierarchyOfVersion1(Hierarchy):
    """The same in a repository of spec version 1."""

    spec_version = 1


@pytest.mark.parametrize(
    "machine", [Values, Hierarchy, HierarchyOfVersion1], ids=lambda machine: machine.__name__
)
def test_no_difference_is_found(machine: type, settings_of_the_run: settings, grids: None) -> None:
    run_state_machine_as_test(machine, settings=settings_of_the_run)
