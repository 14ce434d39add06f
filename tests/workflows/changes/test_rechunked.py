"""A feed has no rows for arrays that rechunking alone has replaced."""

import itertools

import pytest
from helpers.mirroring.grid import Grid
from workflows.changes.test_changes_law import assert_law, feed_rows, rows_at

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.tables import open_dataset
from icechunk_format.workflows.changes.rechunked import SAME_VALUES, rechunked_arrays
from icechunk_format.workflows.rechunking import RechunkRequest, one_process, rechunk_arrays


def rechunk(grid, chunks, **read):
    request = RechunkRequest(
        read=ReadRequest(path=grid.place, **read),
        target=Location(grid.place),
        options=WriteOptions(mode="append"),
        chunks=chunks,
        shards=None,
        encoding={},
        memory=2**20,
    )
    return rechunk_arrays(request, one_process, cores=None, dry_run=False).commit.snapshot_id


def found(grid, older, newer):
    repository = grid.repository
    sides = [
        {v.path: v for v in open_dataset(repository, version, "/").variables.values()}
        for version in (older, newer)
    ]
    infos = list(repository.ancestry(snapshot=newer))
    logs = [info.id for info in itertools.takewhile(lambda info: info.id != older, infos)]
    for order in (logs, logs[::-1]):
        yield rechunked_arrays(repository, order, *sides)


@pytest.fixture
def histories(tmp_path):
    """Return a grid, and its snapshots: two rechunks, a change, a rechunk, an append."""
    grid = Grid(tmp_path)
    versions = [SnapshotId.parse(grid.first), rechunk(grid, {"time": 1}), rechunk(grid, {"y": 2})]
    grid.chunks = (1, 2)
    versions.append(SnapshotId.parse(grid.change("wind", (0, 0), (4, 1))))
    versions.append(rechunk(grid, {"time": 4}, variables=("wind",)))
    versions.append(rechunk(grid, {"time": 4}, variables=("t2m",)))
    grid.chunks = (4, 2)
    versions.append(SnapshotId.parse(grid.append(3)))
    return grid, versions


def test_the_arrays_that_rechunks_alone_replaced(histories):
    grid, versions = histories
    both, t2m, wind = {"/t2m", "/wind"}, {"/t2m"}, {"/wind"}
    expected = {
        (0, 1): both,
        (1, 2): both,
        (0, 2): both,
        (0, 3): t2m,
        (2, 3): set(),
        (3, 4): wind,
        (4, 5): t2m,
        (3, 5): both,
        (2, 5): t2m,
        (0, 5): t2m,
        (5, 6): set(),
        (4, 6): set(),
    }
    for (older, newer), names in expected.items():
        for same in found(grid, versions[older], versions[newer]):
            assert same - {"/time", "/y"} == names - {"/time", "/y"}, (older, newer)


def test_feeds_over_rechunks(histories):
    grid, versions = histories
    for by_snapshot, more in itertools.product([False, True], [{}, {"missing_chunks": "skip"}]):
        assert_law(grid.repository, versions, "cells", {}, more, by_snapshot)
    assert_law(grid.repository, versions, "chunks", {}, {"missing_chunks": "skip"}, False)


def test_a_rechunk_has_no_rows_in_a_feed(histories):
    grid, versions = histories

    def feed(older, newer, **options):
        _, table = rows_at(grid.repository, versions[newer], "cells", {}, {})
        ends = (versions[older], versions[newer])
        return feed_rows(grid.repository, *ends, "cells", {}, options, table)

    assert feed(0, 2) == feed(3, 5) == []
    # The cells of the chunks that the commit after it wrote.
    assert len(feed(2, 3)) == 4
    assert len(feed(0, 2, missing_chunks="skip")) > 0


def test_the_mark_is_on_commits_in_place_alone(histories):
    grid, versions = histories
    marks = [SAME_VALUES in grid.repository.snapshot_info(v).metadata for v in versions]
    assert marks == [False, True, True, False, True, True, False]
    grid.change("wind", (0, 0))
    old = rechunk(grid, {"time": 3}, snapshot=str(versions[-1]), variables=("t2m",))
    assert SAME_VALUES not in grid.repository.snapshot_info(old).metadata
