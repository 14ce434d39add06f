"""Readers beside hundreds of commits see one whole version at every read."""

import pytest
from helpers.sessions.snapshot_watchers import check

from icechunk_format.storage.location import Location

COMMITS = 300


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_readers_see_whole_versions(tmp_path, place):
    check(Location(str(tmp_path) if place == "folder" else "memory://isolation"), COMMITS)
