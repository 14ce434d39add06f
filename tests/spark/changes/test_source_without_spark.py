"""The reader of a stream, asked as Spark asks it: offsets, limits, restarts, lost history."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import APPEND, grid
from helpers.raised import raises
from helpers.spark.streams import CHANGES, ROWS, Query, append, grown, repository_at
from pyspark.sql.types import DoubleType, StructField, StructType

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.changes.source import IcechunkStreamReader

pytestmark = pytest.mark.each_spark


def test_every_row_comes_once():
    place = grown(3)
    query = Query(place)
    assert query.times() == [0, 1, 2]
    assert query.times() is None
    append(place, [3])
    assert query.times() == [3]
    append(place, [4])
    append(place, [1])  # late data
    rows = query.batch()
    assert sorted({row["time"] for row in rows}) == [1, 4]
    assert len(rows) == 4


def test_offsets_are_json_that_people_can_read():
    place = grown(2)
    query = Query(place)
    assert json.loads(json.dumps(query.reader.initialOffset())) == {"snapshot": None, "position": 0}
    query.batch()
    tip = str(repository_at(place).resolve())
    # The first snapshot of a repository is empty, and counts.
    assert json.loads(query.committed) == {"snapshot": tip, "position": 3}
    with raises(InvalidInputError, offset={"files": 12}):
        query.reader.latestOffset({"files": 12})


def test_a_restart_goes_on_where_it_was():
    place = grown(2)
    query = Query(place, maxSnapshotsPerTrigger="1")
    found = []
    for _ in range(10):
        end = query.plan()
        if end == query.committed:
            break
        query.read(end)  # lost: Spark died before it committed the batch
        query.restart()
        found.append(query.read(end))
        query.committed = end
        query.restart()
    assert [sorted({row["time"] for row in rows}) for rows in found] == [[], [0], [1]]


def test_limits_of_a_batch():
    place = grown(5)
    query = Query(place, maxSnapshotsPerTrigger="2")
    found = [query.times() for _ in range(4)]
    assert found == [[0], [1, 2], [3, 4], None]
    # Each commit changes one chunk of t and one of the labels of time.
    assert [Query(place, maxChunksPerTrigger="1").times() for _ in range(1)] == [[]]
    query = Query(place, maxChunksPerTrigger="4", startingFrom=_snapshot(place, 4))
    sizes = [len(query.times() or []) for _ in range(3)]
    assert sum(sizes) == 4
    assert max(sizes) == 2


def _snapshot(place, back):
    return str(list(repository_at(place).ancestry())[back].id)


def test_spark_4_0_asks_without_a_start():
    place = grown(3)
    query = Query(place, maxSnapshotsPerTrigger="1")
    reader = query.reader
    start, seen = reader.initialOffset(), []
    for _ in range(4):
        end = reader.latestOffset()
        reader.partitions(start, end)
        start = end
        seen.append(end["position"])
    assert seen == [1, 2, 3, 4]
    again = Query(place, maxSnapshotsPerTrigger="1").reader
    assert again.partitions(start, start) == []  # what 4.0 does after a restart
    assert again.latestOffset() == start


def test_available_now_stops_at_what_was_there():
    place = grown(2)
    query = Query(place)
    query.reader.prepareForTriggerAvailableNow()
    append(place, [7])
    assert query.times() == [0, 1]
    assert query.times() is None
    assert query.reader.reportLatestOffset()["position"] == 4


@pytest.mark.parametrize("kind", ["latest", "tag", "snapshot", "instant"])
def test_where_a_stream_begins(kind):
    place = grown(2)
    repository = repository_at(place)
    repository.create_tag("v1", repository.resolve())
    tip = repository.snapshot_info(repository.resolve())
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=tip.flushed_at + 1)
    wanted = {"latest": "latest", "tag": "v1", "snapshot": str(tip.id), "instant": at.isoformat()}
    query = Query(place, startingFrom=wanted[kind])
    assert query.times() is None
    append(place, [2])
    assert query.times() == [2]
    with pytest.raises(NotFoundError, match=r"no branch or tag 'v9'.*startingFrom takes"):
        Query(place, startingFrom="v9").batch()


def test_amended_and_reset():
    place = grown(2)
    repository = repository_at(place)
    before = _snapshot(place, 1)
    strict, lenient = (
        Query(place, schema=CHANGES, changeColumns="true", onHistoryChange=word)
        for word in ("fail", "restart")
    )
    strict.batch(), lenient.batch()
    repository.reset_branch("main", before)
    append(place, [5])
    with pytest.raises(InvalidInputError, match=r"amended.*onHistoryChange=restart"):
        strict.batch()
    rows = lenient.batch()
    assert {(row["_change"], row["time"]) for row in rows} == {("deleted", 1), ("written", 5)}
    assert lenient.batch() is None


def test_expired_history():
    place = grown(3)
    names = {"schema": CHANGES, "changeColumns": "true", "startingFrom": _snapshot(place, 1)}
    strict = Query(place, **names)
    lenient = Query(place, onHistoryChange="restart", **names)
    strict.plan(), lenient.plan()
    repository = repository_at(place)
    repository.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    append(place, [3])
    with pytest.raises((InvalidInputError, NotFoundError), match=r"onHistoryChange|expired|gone"):
        strict.batch()
    assert {row["time"] for row in lenient.batch()} >= {3}


def test_a_branch_that_was_deleted():
    place = grown(1)
    repository = repository_at(place)
    repository.create_branch("side", repository.resolve())
    query = Query(place, branch="side")
    query.batch()
    repository.delete_branch("side")
    with pytest.raises(NotFoundError, match="create it again at the snapshot"):
        query.batch()


def test_a_group_that_went_away():
    place = new_place()
    append(place, [0], group="a")
    query = Query(place, group="a")
    assert query.times() == [0]
    session = repository_at(place).writable_session()
    session.move("/a", "/b")
    session.commit("rename")
    with pytest.raises(InvalidInputError, match=r"no longer has the table.*there is no group '/a'"):
        query.batch()


def test_a_column_of_another_type():
    place = grown(1)
    query = Query(place)
    query.batch()
    rows = grid([1], [0, 1])
    write_table(place, rows.set_column(2, "t", rows.column("t").cast("string")), _overwrite())
    with pytest.raises(InvalidInputError, match="no longer has the table of the stream"):
        query.batch()


def _overwrite():
    from dataclasses import replace

    return replace(APPEND, mode="overwrite")


def test_other_variables_may_come():
    place = grown(1)
    query = Query(place)
    query.batch()
    rows = grid([1], [0, 1])
    write_table(place, rows.append_column("wind", rows.column("t")), APPEND)
    assert query.times() == [1]
    wider = Query(place, schema=StructType([*ROWS.fields, StructField("wind", DoubleType())]))
    assert wider.times() == [0, 1]


def test_the_reader_of_executors_holds_no_options():
    reader = Query(grown(1)).executor
    assert set(vars(reader)) == {"_target"}
    assert isinstance(reader, IcechunkStreamReader)
