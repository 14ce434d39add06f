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
from helpers.raised import raises
from helpers.reference.sessions import open_reference, put_chunk, reference_contents, start
from helpers.sessions.model import stored_contents

from icechunk_format import Repository
from icechunk_format.errors import ConflictError, UnauthorizedVirtualChunkError

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
# A session conflicts with any move, a merge with moves of the same nodes.
UNRELATED = {
    "move array": {"group", "new array", "new group", "new apart", "move array", "move other"},
    "move group": {"new apart", "move group"},
    "move other": {"attributes", "grow", "shrink", "delete array", "recreate array", "group"},
}
UNRELATED["move array"].add("other chunk")
UNRELATED["move group"].add("other chunk")
UNRELATED["move other"] |= {*CHUNKS, "new apart", "move array", "move other"}
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
        assert not expected or second in UNRELATED.get(first, ()), (first, second)
        ours = stored_contents(repository, repository.resolve())
        assert reference_contents(open_reference(folder).readonly_session("main")) == ours
        if (first, second) in BESIDE:
            begun = open_reference(tmp_path / f"{number}-reference").writable_session("main")
            edit(pairs.Theirs(begun), 1)
        if not expected and (first, second) not in SAME | {LONGER}:
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


def weather(times, stations=3, offset=0.0):
    """Return steps with a coordinate on two dimensions, strings, and an array without time."""
    number = len(times)
    values = np.arange(number * stations, dtype="f4").reshape(number, stations) + offset
    return xr.Dataset(
        {
            "t": (("time", "station"), values),
            "sky": (
                ("time", "station"),
                np.array([[f"{v:.0f}" for v in row] for row in values], "U6"),
            ),
            "count": (("time", "station"), values.astype("i4")),
            "height": ("station", np.arange(stations) * 10.0),
        },
        {
            "time": np.array(times, "datetime64[ns]"),
            "station": [f"station {n}" for n in range(stations)],
            "valid": (("time", "station"), np.full((number, stations), offset)),
        },
    )


@pytest.mark.parametrize("shards", [None, (4, 3)])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("2024-01-05 2024-01-06", "2024-01-07 2024-01-08 2024-01-09"),
        ("2024-01-07 2024-01-08 2024-01-09", "2024-01-05"),
        ("2024-01-05T12 2024-01-07T12", "2024-01-06 2024-01-08"),
        ("2024-01-05", "2024-01-06"),
    ],
)
def test_both_branches_append(tmp_path, ours, theirs, shards):
    path = str(tmp_path / "weather")
    opened = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    first = weather(["2024-01-01", "2024-01-02", "2024-01-03"])
    encoding = {n: {"chunks": (2, 3)} for n in ("t", "sky", "count", "valid")}
    encoding["t"]["shards"] = shards
    encoding["time"] = {"units": "hours since 2000-01-01", "dtype": "i8"}
    session = opened.writable_session("main")
    first.to_zarr(session.store, encoding=encoding, consolidated=False)
    opened.create_branch("dev", session.commit("made"))
    parts = []
    for branch, times, offset in (("dev", ours, 100.0), ("main", theirs, 200.0)):
        parts.append(weather(times.split(), offset=offset))
        session = opened.writable_session(branch)
        added = parts[-1].drop_vars(["height", "station"])
        added.to_zarr(session.store, append_dim="time", consolidated=False)
        session.commit(f"append to {branch}")
    done = Repository.open(path).merge("dev")
    assert not done.conflicts
    expected = xr.concat([first, *parts], "time", data_vars="minimal").sortby("time")
    found = xr.open_zarr(opened.readonly_session("main").store, consolidated=False).load()
    xr.testing.assert_equal(found, expected)
    # The reference goes on: another append, and a collection.
    session = opened.writable_session("main")
    last = weather(["2024-02-01"], offset=7.0)
    last.drop_vars(["height", "station"]).to_zarr(
        session.store, append_dim="time", consolidated=False
    )
    session.commit("one more")
    opened.delete_branch("dev")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    opened.expire_snapshots(later)
    opened.garbage_collect(later)
    expected = xr.concat([expected, last], "time", data_vars="minimal")
    found = xr.open_zarr(opened.readonly_session("main").store, consolidated=False).load()
    xr.testing.assert_equal(found, expected)


def test_virtual_chunks_with_cells_of_both_are_read_where_they_are_authorized(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    prefix = f"{files.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    place = tmp_path / "repository"
    theirs = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(place)),
        config=config,
        authorize_virtual_chunk_access={prefix: icechunk.credentials.LocalFileSystemAccess},
    )

    def append(branch, numbers, first, held):
        """Append numbers; a file has the values of all chunks of two that they are in."""
        session = theirs.writable_session(branch)
        data = xr.Dataset({"v": ("n", np.array(numbers, "f8"))}, coords={"n": numbers})
        new = {"mode": "w", "encoding": {"v": {"chunks": (2,), "compressors": None}}}
        data.to_zarr(session.store, consolidated=False, **({"append_dim": "n"} if first else new))
        file = files / f"{branch}{first}.bin"
        np.array(held, "f8").tofile(file)
        for chunk in range(len(held) // 2):
            reference = {"offset": 16 * chunk, "length": 16}
            session.store.set_virtual_ref(f"v/c/{first + chunk}", file.as_uri(), **reference)
        return session.commit(f"append {numbers}")

    theirs.create_branch("dev", append("main", [1, 2, 3], 0, [1, 2, 3, 0]))
    append("dev", [4, 5, 6], 1, [3, 4, 5, 6])
    append("main", [9], 1, [3, 9])
    repository = Repository.open(place)
    with raises(UnauthorizedVirtualChunkError, match=r"set the option virtual\.authorize"):
        repository.merge("dev")
    repository.merge("dev", virtual_authorize=[prefix])
    merged = xr.open_zarr(theirs.readonly_session("main").store, consolidated=False)
    assert merged["v"].values.tolist() == [1, 2, 3, 4, 5, 6, 9]
