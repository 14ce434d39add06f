"""Copies as Delta tables from the command line."""

import json

import pytest
from helpers.mirroring.grid import Grid

from icechunk_format.command_line.views.documents import document_keys


@pytest.fixture
def grid(tmp_path):
    return Grid(tmp_path)


def test_mirror_and_freshness(command, grid):
    missing = command("freshness", grid.target)
    assert missing.code == 1
    assert "there is no copy at" in missing.err
    planned = command("mirror", grid.place, grid.target, "--dry-run")
    assert planned.lines[-1] == f"version 0 of {grid.target} would be snapshot {grid.first}"
    first = command("mirror", grid.place, grid.target, "--variables", "wind, t2m")
    assert first.code == 0, first.err
    assert first.lines[0] == "wrote all cells: there was no copy yet"
    assert first.lines[-1] == f"version 0 of {grid.target} is snapshot {grid.first}"
    tip = grid.append(2)
    behind = json.loads(command("freshness", grid.target, "--json").out)
    assert list(behind) == list(document_keys("freshness"))
    assert (behind["snapshots_behind"], behind["branch_snapshot_id"]) == (1, tip)
    again = json.loads(command("mirror", grid.place, grid.target, "--json").out)
    assert list(again) == list(document_keys("mirror"))
    assert (again["rows"], again["full_copy"], again["version"]) == (16, None, 1)
    assert command("freshness", grid.target).lines[-1].endswith("0 snapshots later")
    grid.assert_copied("wind", "t2m")


def test_mistakes_are_told_on_one_line(command, grid, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    refused = command("mirror", grid.place, grid.target)
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)
    assert "notes.txt" in refused.err
    other = tmp_path / "other"
    assert command("mirror", grid.place, other, "--isel", "time=0:2").code == 0
    refused = command("mirror", grid.place, other, "--isel", "time=0:3")
    assert refused.code == 2
    assert "isel='time=0:2', and now isel='time=0:3'" in refused.err
    refused = command("mirror", grid.place, "s3://b/x", "--target-option", "AWS_REGION")
    assert refused.code == 2
