"""An array at the root of a repository is not read, and is named as what it is."""

from __future__ import annotations

import pytest
from helpers.raised import raises

from icechunk_format.errors import UnsupportedError
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset

icechunk = pytest.importorskip("icechunk", reason="the oracle is not installed")
zarr = pytest.importorskip("zarr", reason="the oracle is not installed")

pytestmark = pytest.mark.needs_reference


def test_an_array_at_the_root_is_unsupported_and_not_damaged(tmp_path):
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    zarr.create_array(session.store, shape=(4, 3), dtype="f4", chunks=(2, 3))[:] = 1
    tip = session.commit("an array")
    opened = Repository.open(str(tmp_path))
    with raises(UnsupportedError, match="the root of the repository is an array"):
        open_dataset(opened, tip)
