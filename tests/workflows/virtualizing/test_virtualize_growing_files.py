"""Files that grow, as the month that goes on does, and the way out where one blocks the next."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference


_times = itertools.count(2_000_000_000)


def rewrite(path, number, **how):
    made.compressed(Path(path), number, **how)
    at = next(_times)
    os.utime(path, (at, at))


def assert_is_all(repository, files):
    found, expected = by_reference(repository), concatenated(files)
    xr.testing.assert_identical(found.drop_attrs(), expected.drop_attrs())


def test_a_file_that_ends_within_a_chunk_blocks_the_next_until_it_has_grown(tmp_path):
    def ragged(path, number):
        made.compressed(path, number, steps=3 if number == 1 else 4)

    files = made.archive(tmp_path / "files", ragged)
    virtualize(files[:2], tmp_path / "repository")
    with raises(InvalidInputError, match="call again when that file has grown to whole", refused=1):
        virtualize(files, tmp_path / "repository")
    rewrite(files[1], 1)
    done = virtualize(files, tmp_path / "repository")
    assert statuses(done) == {"0.nc": "known", "1.nc": "refreshed", "2.nc": "taken"}
    assert_is_all(tmp_path / "repository", files)


def test_a_file_grows_at_the_end_and_in_the_middle(tmp_path):
    files = made.archive(tmp_path / "files", count=2)
    rewrite(files[1], 1, steps=2, start=20)
    virtualize(files, tmp_path / "repository")
    rewrite(files[1], 1, steps=7, start=20)  # at the end, to a part of a chunk
    assert statuses(virtualize(files, tmp_path / "repository"))["1.nc"] == "refreshed"
    assert_is_all(tmp_path / "repository", files)
    rewrite(files[0], 0, steps=8)  # the other file moves
    assert statuses(virtualize(files, tmp_path / "repository"))["0.nc"] == "refreshed"
    assert_is_all(tmp_path / "repository", files)
    # New files before and after one that grows at the same time.
    more = made.archive(tmp_path / "more", lambda p, n: made.compressed(p, 0, start=12 + 88 * n), 2)
    rewrite(files[1], 1, steps=8, start=20)
    virtualize([*files, *more], tmp_path / "repository")
    assert_is_all(tmp_path / "repository", [files[0], more[0], files[1], more[1]])


def test_a_file_that_grows_over_another_is_refused_and_stays_as_it_was(tmp_path):
    files = made.archive(tmp_path / "files")
    before = virtualize(files, tmp_path / "repository")
    rewrite(files[1], 1, steps=6)
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    [row] = [r for r in done.report.to_pylist() if r["status"] == "refused"]
    assert row["file"].endswith("1.nc")
    assert "overlaps another file" in row["difference"]
    assert row["compared_with"].endswith("2.nc")
    assert (done.snapshot_id, done.files_added) == (before.snapshot_id, 0)


def test_what_is_too_large_to_be_compared_is_noted(tmp_path, monkeypatch):
    def with_heights(path, number):
        data = made.dataset(number)
        data["height"] = (("y", "x"), data["t2m"].values[0] * 0 + number)
        data.to_netcdf(path, engine="h5netcdf", encoding=made.COMPRESSED)

    files = made.archive(tmp_path / "files", with_heights)
    with raises(InvalidInputError, refused=2):
        virtualize(files, tmp_path / "refused")
    monkeypatch.setattr("icechunk_format.workflows.virtualizing.scanning.scan._MOST_COMPARED", 100)
    done = virtualize(files, tmp_path / "repository")
    for row in done.report.to_pylist():
        assert "height: its 192 bytes are too many to compare" in row["note"]
    assert (by_reference(tmp_path / "repository")["height"] == 0).all()
