"""The tests that xarray has of its Zarr backend pass for a store over our sessions."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import xarray as xr
import zarr
from helpers.peers.store import SessionStore, opened
from xarray.testing import assert_identical
from xarray.tests import test_backends as peers
from xarray.tests.conftest import time_unit, use_dask  # noqa: F401 - fixtures of its tests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The import of its tests makes xarray warn of open files, in all tests of the process.
xr.set_options(warn_for_unclosed_files=False)

# Whatever xarray warns of concerns xarray.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def default_zarr_format() -> Iterator[None]:
    with zarr.config.set(default_zarr_format=3):
        yield


_CONSOLIDATED = "Icechunk does not consolidate documents, which are in one snapshot already"
_FORMAT_2 = "it is about documents of Zarr 2, which Icechunk does not have"
NOT_APPLICABLE = {
    "test_roundtrip_consolidated": _CONSOLIDATED,
    "test_hidden_zarr_keys": _FORMAT_2,
}


class _OfSessions:
    spec_version = 2

    @pytest.fixture(autouse=True)
    def _applicable(self, request: pytest.FixtureRequest, tmp_path_factory: Any) -> None:
        self.paths = tmp_path_factory
        if reason := NOT_APPLICABLE.get(request.node.originalname):
            pytest.skip(reason)
        params = getattr(request.node, "callspec", None)
        if params is not None and params.params.get("consolidated") is True:
            pytest.skip(_CONSOLIDATED)

    @contextlib.contextmanager
    def create_zarr_target(self) -> Iterator[SessionStore]:
        url = str(self.paths.mktemp("peers") / "repository")
        yield opened(url, spec_version=self.spec_version)


class TestDatasets(_OfSessions, peers.ZarrBase):
    @contextlib.contextmanager
    def _committed(self, data: xr.Dataset) -> Iterator[xr.Dataset]:
        with self.create_zarr_target() as store:
            self.save(data, store)
            store.session.commit("a dataset")
            with self.open(opened(str(store.repository.location), read_only=True)) as found:
                yield found

    # A store of uncommitted changes stays in its process; both pickle what they read again.
    def test_pickle(self) -> None:
        expected = xr.Dataset({"foo": ("x", [42])})
        with self._committed(expected) as found, pickle.loads(pickle.dumps(found)) as copied:
            assert_identical(expected, copied)

    def test_pickle_dataarray(self) -> None:
        expected = xr.Dataset({"foo": ("x", [42])})
        with self._committed(expected) as found:
            assert_identical(expected["foo"], pickle.loads(pickle.dumps(found["foo"])))


@pytest.mark.nightly
class TestDatasetsOfVersion1(TestDatasets):
    spec_version = 1


class TestRegions(_OfSessions, peers.TestZarrRegionAuto):
    """Writes to regions that xarray finds by their labels."""

    @pytest.fixture
    def tmp_store(self, tmp_path: Path) -> SessionStore:
        return opened(str(tmp_path / "repository"))
