"""Merges beside the reference: the same edits in its session on the branch that takes them.

For each pair of edits, one on each branch, a merge conflicts just where a session that began at the
common ancestor does; where the reference commits such a session, the contents are equal.
"""

import datetime
import importlib.util
import itertools
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.builder import reference_repository
from helpers.reference.sessions import open_reference, put_chunk, reference_contents, start
from helpers.sessions.model import stored_contents

from icechunk_format.errors import ConflictError
from icechunk_format.repository.repository import Repository

_PAIRS = Path(__file__).with_name("test_conflicts.py")
_spec = importlib.util.spec_from_file_location("pairs_of_edits", _PAIRS)
pairs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pairs)

# Both sides did the same, so nothing is left to merge.
SAME = {
    ("delete chunk 0", "delete chunk 0"),
    ("shift", "shift"),
    ("shift", "delete chunk 0"),
    ("delete chunk 0", "shift"),
}

# A session conflicts, a merge does not: chunks beside attributes or a larger shape of their array.
CHUNKS = ("chunk 0", "chunk 1", "delete chunk 0", "shift")
BESIDE = set(itertools.product(("attributes", "grow"), CHUNKS))
# The same shift of a longer array moves other chunks.
LONGER = ("grow", "shift")


@pytest.mark.parametrize("first", pairs.EDITS)
def test_a_merge_conflicts_where_a_session_does(first, tmp_path):
    for number, (second, edit) in enumerate(pairs.EDITS.items()):
        folder = tmp_path / str(number)
        repository = start(folder)
        repository.create_branch("dev", repository.resolve())
        again = start(tmp_path / f"{number}-reference")
        theirs = open_reference(tmp_path / f"{number}-reference")
        moves = second.startswith("move")
        begun = theirs.rearrange_session("main") if moves else theirs.writable_session("main")
        edit(pairs.Theirs(begun), 1)
        session = pairs.Ours(repository.writable_session())
        edit(session, 1)
        source = pairs.Ours(repository.writable_session("dev"))
        edit(source, 1)
        source.session.commit(second)
        for each in (repository, again):
            winner = pairs.Ours(each.writable_session())
            pairs.EDITS[first](winner, 2)
            winner.session.commit(first)
        expected = session.conflicts()
        if (first, second) in SAME | BESIDE:
            expected = False
        try:
            repository.merge("dev")
        except ConflictError:
            assert expected, (first, second)
            continue
        assert not expected, (first, second)
        ours = stored_contents(repository, repository.resolve())
        assert reference_contents(open_reference(folder).readonly_session("main")) == ours
        if (first, second) in BESIDE:
            begun = open_reference(tmp_path / f"{number}-reference").writable_session("main")
            edit(pairs.Theirs(begun), 1)
        if (first, second) not in SAME | {LONGER}:
            begun.commit("the same edit", rebase_with=icechunk.ConflictDetector())
            assert stored_contents(again, again.resolve()) == ours


def test_the_reference_goes_on_after_merges(tmp_path):
    repository = start(tmp_path)
    repository.create_branch("dev", repository.resolve())
    theirs = open_reference(tmp_path)
    for branch, key in (("dev", "g/a/c/1"), ("main", "b/c/2")):
        session = theirs.writable_session(branch)
        put_chunk(session.store, key, branch.encode() * 300)
        session.commit(branch)
    waiting = theirs.writable_session("main")
    put_chunk(waiting.store, "b/c/4", b"waiting")
    done = repository.merge("dev")
    waiting.commit("rebased", rebase_with=icechunk.ConflictDetector())
    repository.delete_branch("dev")
    opened = open_reference(tmp_path)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    opened.expire_snapshots(later)
    opened.garbage_collect(later)
    found = stored_contents(repository, repository.resolve())
    assert found["g/a/c/1"] == b"dev" * 300
    assert found["b/c/2"] == b"main" * 300
    assert found["b/c/4"] == b"waiting"
    assert done.commit is not None
    assert reference_contents(open_reference(tmp_path).readonly_session("main")) == found


@pytest.mark.parametrize("appends", ["main", "fix"])
def test_cells_are_fixed_on_one_branch_while_the_other_appends(tmp_path, appends):
    path = str(tmp_path / "weather")
    theirs = reference_repository(path)
    data = xr.Dataset(
        {"t": (("time", "x"), np.arange(40.0).reshape(8, 5))}, {"time": range(8), "x": range(5)}
    )
    session = theirs.writable_session("main")
    data.to_zarr(session.store, encoding={"t": {"chunks": (2, 5)}}, consolidated=False)
    first = session.commit("made")
    theirs.create_branch("fix", first)
    later = data.assign_coords(time=range(8, 16)) + 100
    session = theirs.writable_session(appends)
    later.to_zarr(session.store, append_dim="time", consolidated=False)
    session.commit("append")
    session = theirs.writable_session("fix" if appends == "main" else "main")
    zarr.open_group(session.store, mode="r+")["t"][2:4] = -1.0
    session.commit("fix")
    merged = Repository.open(path).merge("fix")
    assert not merged.conflicts
    found = xr.open_zarr(theirs.readonly_session("main").store, consolidated=False).load()
    expected = xr.concat([data, later], "time")
    expected["t"][2:4] = -1.0
    xr.testing.assert_equal(found, expected)
