"""What the reference library writes is sound, except where it is known not to be.

Every state that the reference can leave behind is verified, deep, and gives no error and no
warning. Two of its rebases are known to leave broken hierarchies; verification names them.
"""

from __future__ import annotations

import icechunk
import pytest
import zarr
from helpers.builder import reference_repository
from helpers.reference.repositories import CASES, build

from icechunk_format.maintenance import verify

pytestmark = pytest.mark.needs_reference


def problems(table):
    return [row for row in table.to_pylist() if row["severity"] != "info"]


@pytest.mark.parametrize(("name", "spec_version"), CASES)
def test_states_of_the_reference_are_sound(name, spec_version, tmp_path):
    built = build(name, spec_version, tmp_path)
    table = verify(str(built.path), deep=True, authorized=built.virtual_prefixes)
    assert problems(table) == []


@pytest.fixture
def repository(tmp_path):
    """Build a repository with a group and an array in it."""
    made = reference_repository(tmp_path / "r")
    session = made.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_group("g").create_array("a", shape=(4,), chunks=(2,), dtype="int32")
    session.commit("base")
    return made


def rebased(repository, theirs, ours):
    """Commit two changes that were made side by side, the second after a rebase."""
    first, second = repository.writable_session("main"), repository.writable_session("main")
    theirs(first.store)
    ours(second.store)
    first.commit("theirs")
    second.commit("ours", rebase_with=icechunk.BasicConflictSolver())


def recreate(store):
    group = zarr.open_group(store, path="g")
    del group["a"]
    group.create_array("a", shape=(4,), chunks=(2,), dtype="int32")[:] = 7


def test_an_array_that_two_sessions_recreated_is_there_twice(repository, tmp_path):
    rebased(repository, recreate, recreate)
    found = verify(str(tmp_path / "r"))
    assert {(row["kind"], row["node_path"]) for row in problems(found)} == {
        ("node-path-duplicate", "/g/a")
    }


def test_an_array_in_a_group_that_another_session_deleted_is_an_orphan(repository, tmp_path):
    def delete(store):
        del zarr.open_group(store)["g"]

    def add(store):
        zarr.open_group(store, path="g").create_array("b", shape=(2,), chunks=(2,), dtype="int8")

    rebased(repository, delete, add)
    found = verify(str(tmp_path / "r"))
    assert {(row["kind"], row["node_path"]) for row in problems(found)} == {
        ("node-parent-missing", "/g/b")
    }
