"""The graph beside the log is right for any history: each snapshot stands in its own lane.

Random forests are drawn and read back: following the lane below a snapshot leads to its parent.
"""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.command_line.views.history import graph_rows
from icechunk_format.command_line.views.screen import IN_ASCII
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.repository.history import newest_first


def snapshot_id(number):
    return SnapshotId(number.to_bytes(12, "big"))


def history(parents, times=None):
    """Return snapshots 1, 2, ...; ``parents`` gives the number of each one's parent, or None."""
    return {
        snapshot_id(number): SnapshotInfo(
            id=snapshot_id(number),
            parent_id=None if parent is None else snapshot_id(parent),
            flushed_at=number if times is None else times[number - 1],
            message=str(number),
            metadata_items=MetadataItems.of({}),
            pruned_ancestor_tx_logs=(),
        )
        for number, parent in enumerate(parents, start=1)
    }


def drawn(parents, tips):
    infos = newest_first(history(parents), [snapshot_id(tip) for tip in tips])
    lines = []
    for row, info in zip(
        graph_rows((info.id, info.parent_id) for info in infos), infos, strict=True
    ):
        lines += [] if row.above is None else [row.above]
        lines.append(f"{row.node} {info.message}")
    return lines


def test_a_line_is_one_lane():
    assert drawn([None, 1, 2], [3]) == ["● 3", "● 2", "● 1"]


def test_branches_join_where_they_parted():
    assert drawn([None, 1, 1, 2, 3, 3], [4, 5, 6]) == [
        "● 6",
        "│ ● 5",
        "│ │ ● 4",
        "├─┘ │",
        "●   │ 3",
        "│   ● 2",
        "├───┘",
        "● 1",
    ]


def test_many_branches_join_at_once_across_others():
    assert drawn([None, None, 1, 2, 1, 1], [3, 4, 5, 6]) == [
        "● 6",
        "│ ● 5",
        "│ │ ● 4",
        "│ │ │ ● 3",
        "│ │ ● │ 2",
        "├─┴───┘",
        "● 1",
    ]
    lines = drawn([None, None, 1, 2, 1], [3, 4, 5])
    assert [line.translate(IN_ASCII) for line in lines] == [
        "* 5",
        "| * 4",
        "| | * 3",
        "| * | 2",
        "|---'",
        "* 1",
    ]


def test_lines_that_do_not_meet_are_crossed():
    assert drawn([None, None, 2, 1, 2], [3, 4, 5]) == [
        "● 5",
        "│ ● 4",
        "│ │ ● 3",
        "├─┼─┘",
        "● │ 2",
        "  ● 1",
    ]


@st.composite
def forests(draw):
    count = draw(st.integers(1, 25))
    parents = [
        draw(st.one_of(st.none(), st.integers(1, number - 1))) if number > 1 else None
        for number in range(1, count + 1)
    ]
    tips = draw(st.lists(st.integers(1, count), min_size=1, max_size=8))
    # Clocks of writers differ: times are in any order.
    times = draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    return parents, times, tips


@given(forests())
def test_lanes_lead_from_each_snapshot_to_its_parent(forest):
    parents, times, tips = forest
    snapshots = history(parents, times)
    infos = newest_first(snapshots, [snapshot_id(tip) for tip in tips])
    expected = set()
    for tip in tips:
        number = tip
        while number is not None:
            expected.add(snapshot_id(number))
            number = parents[number - 1]
    assert {info.id for info in infos} == expected
    assert len(infos) == len(expected)
    position = {info.id: place for place, info in enumerate(infos)}
    rows = graph_rows((info.id, info.parent_id) for info in infos)
    for row, info in zip(rows, infos, strict=True):
        assert row.node.count("●") == 1
        assert re.fullmatch("[ ●│]+", row.node)
        if info.parent_id is None:
            continue
        below = position[info.parent_id]
        assert below > position[info.id]
        lane = row.node.index("●")
        for other in rows[position[info.id] : below]:
            assert other.below[lane] == "│"
        target = rows[below].node.index("●")
        joined = rows[below].above
        assert lane == target or (
            joined is not None and joined[target] == "├" and joined[lane] in ("┴", "┘")
        )


@pytest.mark.parametrize("seed", [1, 2])
def test_long_histories_are_drawn_quickly(seed):
    chosen = random.Random(seed)
    parents = [None] + [chosen.randint(max(1, n - 20), n) for n in range(1, 5000)]
    infos = newest_first(history(parents), [snapshot_id(n) for n in range(4980, 5001)])
    assert len(graph_rows((info.id, info.parent_id) for info in infos)) == len(infos)


def test_a_parent_that_is_not_known_ends_its_line():
    known = history([None, 1, 2])
    del known[snapshot_id(1)]
    assert [info.message for info in newest_first(known, [snapshot_id(3)])] == ["3", "2"]
