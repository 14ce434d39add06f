"""A ``repo`` without dropped snapshots has every ref and parent of the kept ones."""

import pytest

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import RepoStatus
from icechunk_format.maintenance.garbage.collect import RootsMoved, without_dropped

IDS = [SnapshotId(bytes([number]) * 12) for number in range(5)]


def line(**branches):
    """Return a repository of five snapshots, each on the one before."""
    return RepoInfo(
        branches=branches,
        snapshots={
            own: SnapshotInfo(id=own, parent_id=above, flushed_at=number, message="")
            for number, (own, above) in enumerate(zip(IDS, [None, *IDS], strict=False))
        },
        status=RepoStatus(set_at=0),
    )


def test_a_kept_snapshot_gets_its_nearest_kept_ancestor():
    kept, dropped = frozenset([IDS[0], IDS[1], IDS[4]]), frozenset(IDS[2:4])
    new = without_dropped(line(main=IDS[4]), kept, dropped).info
    assert set(new.snapshots) == kept
    assert new.snapshots[IDS[4]].parent_id == IDS[1]
    assert new.snapshots[IDS[4]].pruned_ancestor_tx_logs == (IDS[2], IDS[3])


@pytest.mark.parametrize(
    ("branches", "dropped"),
    [({"main": IDS[1], "late": IDS[2]}, IDS[2:]), ({"main": IDS[4]}, IDS[2:4])],
    ids=["a ref on a dropped snapshot", "a new snapshot on a dropped one"],
)
def test_roots_have_moved(branches, dropped):
    moved = without_dropped(line(**branches), frozenset(IDS[:2]), frozenset(dropped))
    assert isinstance(moved, RootsMoved)
