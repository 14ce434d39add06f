"""A copy keeps its files if rechunking alone has replaced its arrays, and is right in any case."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import by_day
from helpers.mirroring.grid import Grid
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.workflows.rechunking import RechunkRequest, one_process, rechunk_arrays

# Two chunks of four: files of two chunks.
ROWS = 16
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_ROUNDED = {"name": "numcodecs.bitround", "configuration": {"keepbits": 1}}


def rechunk(grid, chunks, *, codecs=None, metadata=None, **read):
    encoding = {} if codecs is None else {name: {"codecs": codecs} for name in ("t2m", "wind")}
    request = RechunkRequest(
        read=ReadRequest(path=grid.place, **read),
        target=Location(grid.place),
        options=WriteOptions(mode="append", metadata=metadata),
        chunks=chunks,
        shards=None,
        encoding=encoding,
        memory=2**20,
    )
    done = rechunk_arrays(request, one_process, cores=None, dry_run=False)
    sizes = zip(("time", "y"), grid.chunks, grid.shape, strict=True)
    grid.chunks = tuple(min(chunks.get(dim, was), max(size, was)) for dim, was, size in sizes)
    return done


def counts(result):
    return result.files_added, result.files_removed, result.rows


@pytest.mark.parametrize(
    ("chunks", "after"),
    [
        # After the change of the first chunk: the files with its cells.
        ({"y": 2}, (1, 1, 16)),
        ({"y": 3}, (1, 1, 16)),
        ({"time": 1}, (1, 1, 16)),
        ({"time": 3}, (1, 2, 32)),
        ({"time": 6}, (1, 3, 48)),
        ({"time": 1, "y": 8}, (1, 1, 16)),
        ({"time": 2, "y": 8}, (1, 1, 16)),
    ],
)
def test_rechunked_arrays_rewrite_nothing(grid, chunks, after):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, chunks)
    done = grid.mirror()
    assert done.full_copy is None
    assert counts(done) == (0, 0, 0)
    grid.assert_copied()
    grid.change("wind", (0, 0))
    done = grid.mirror()
    assert done.full_copy is None
    assert counts(done) == after
    grid.assert_copied()
    grid.append(3)
    done = grid.mirror()
    assert done.full_copy is None
    grid.assert_copied()


def test_several_rechunks_between_two_runs(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {"time": 1})
    rechunk(grid, {"time": 3, "y": 8})
    rechunk(grid, {"y": 2}, variables=("wind",))
    assert counts(grid.mirror()) == (0, 0, 0)
    grid.assert_copied()


def test_other_codecs_of_a_rechunk_rewrite_nothing(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {}, codecs=[_BYTES, {"name": "gzip", "configuration": {"level": 1}}])
    assert counts(grid.mirror()) == (0, 0, 0)
    grid.assert_copied()


def test_other_commits_to_other_arrays_beside_a_rechunk_are_copied(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {"time": 1}, variables=("wind",))
    grid.chunks = (2, 4)
    grid.change("t2m", (1, 1))
    done = grid.mirror()
    assert done.full_copy is None
    assert counts(done) == (1, 1, 16)
    grid.assert_copied()


@pytest.mark.parametrize("name", ["before", "after", "attributes", "append"])
def test_other_changes_of_a_rechunked_array_copy_all_cells(grid, name):
    grid.mirror(rowsPerPartition=ROWS)
    if name == "before":
        grid.change("wind", (0, 0))
    rechunk(grid, {"y": 2})
    if name == "after":
        grid.change("wind", (0, 0))
    if name == "attributes":
        with grid.edited("describe") as session:
            session.update_metadata("/wind", grid.document("wind", long_name="wind"))
    if name == "append":
        grid.append(1)
    assert "another array" in grid.mirror().full_copy
    grid.assert_copied()


def test_each_snapshot_with_its_own_version_needs_no_full_copy(grid):
    grid.mirror(rowsPerPartition=ROWS)
    grid.change("wind", (0, 0))
    rechunk(grid, {"y": 2})
    grid.append(1)
    done = grid.mirror(every_snapshot=True)
    assert done.full_copy is None
    assert counts(done) == (2, 1, 24)
    grid.assert_copied()


def test_the_metadata_of_a_rechunk_on_another_commit_mean_nothing(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {"y": 2})
    grid.mirror()
    metadata = grid.repository.snapshot_info(grid.repository.resolve()).metadata
    assert metadata
    session = grid.repository.writable_session()
    session.delete("/wind")
    grid.add(session, "wind")
    session.commit("another wind", metadata=metadata)
    assert "another array" in grid.mirror().full_copy
    grid.assert_copied()
    former = grid.values["wind"].copy(), grid.values["t2m"].copy()
    older = str(grid.repository.resolve())
    grid.change("wind", (0, 0))
    grid.mirror()
    rechunk(grid, {"y": 4}, snapshot=older, metadata=metadata)
    assert "another array" in grid.mirror().full_copy
    grid.values["wind"], grid.values["t2m"] = former
    grid.assert_copied()


def test_rounding_codecs_copy_all_cells(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {"y": 2}, codecs=[_ROUNDED, _BYTES])
    assert "another array" in grid.mirror().full_copy
    found = grid.copied().column("t2m").to_numpy()
    assert not np.array_equal(found, grid.values["t2m"].reshape(-1))


def test_values_of_an_older_snapshot_copy_all_cells(grid):
    former = grid.values["wind"].copy(), grid.values["t2m"].copy()
    grid.change("wind", (0, 0))
    grid.mirror(rowsPerPartition=ROWS)
    rechunk(grid, {"y": 2}, snapshot=grid.first)
    assert "another array" in grid.mirror().full_copy
    grid.values["wind"], grid.values["t2m"] = former
    grid.assert_copied()


def test_missing_chunks_differ_after_a_rechunk(grid):
    with grid.edited("delete") as session:
        for name in ("t2m", "wind"):
            session.delete_chunks(f"/{name}", [(0, 0)])
            grid.values[name][:2, :4] = 0
    grid.mirror(missingChunks="skip", rowsPerPartition=ROWS)
    assert grid.copied().num_rows == 40
    rechunk(grid, {"y": 8})
    assert grid.mirror().full_copy is not None
    grid.assert_copied()


def test_chunks_that_would_need_much_larger_files_copy_all_cells(tmp_path):
    grid = Grid(tmp_path, shape=(400, 8), chunks=(19, 4))
    grid.mirror(rowsPerPartition=19 * 8)
    rechunk(grid, {"time": 17})
    assert "do not fit the files" in grid.mirror().full_copy
    grid.assert_copied()


@settings(max_examples=by_day(10), deadline=None)
@given(st.data())
def test_copies_of_random_histories_with_rechunks(data):
    with tempfile.TemporaryDirectory() as folder:
        grid = Grid(Path(folder))
        grid.mirror(rowsPerPartition=data.draw(st.sampled_from([4, 16, 40])))
        for _ in range(data.draw(st.integers(2, 6))):
            match data.draw(st.sampled_from(["rechunk", "rechunk", "change", "append", "mirror"])):
                case "rechunk":
                    sizes = st.fixed_dictionaries(
                        {"time": st.integers(1, 6), "y": st.integers(1, 8)}
                    )
                    rechunk(grid, data.draw(sizes))
                case "change":
                    grid.change(data.draw(st.sampled_from(["t2m", "wind"])), (0, 0))
                case "append":
                    grid.append(data.draw(st.integers(1, 3)))
                case _:
                    grid.mirror()
                    grid.assert_copied()
        grid.mirror(every_snapshot=data.draw(st.booleans()))
        grid.assert_copied()
