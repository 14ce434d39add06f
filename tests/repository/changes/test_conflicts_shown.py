"""A conflict is shown with its chunks, and the commit that it meets."""

from dataclasses import replace

import numpy as np

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.repository.changes import Conflict, ConflictKind


def test_a_conflict_shows_its_chunks_and_commit():
    coords = np.arange(12, dtype=np.uint32).reshape(6, 2)
    conflict = Conflict(kind=ConflictKind.CHUNKS_WRITTEN_TWICE, path="/a")
    text = "/a: chunks that both wrote"
    assert str(conflict) == text
    assert str(replace(conflict, labels="x=3")) == f"{text} (x=3)"
    five = "(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)"
    assert str(replace(conflict, coords=coords[:5])) == f"{text} ({five})"
    found = replace(conflict, coords=coords, snapshot_id=SnapshotId(bytes(12)), commit="'m'")
    assert str(found) == f"{text} ({five} and 1 more), in snapshot {SnapshotId(bytes(12))} ('m')"
