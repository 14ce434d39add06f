"""``changesSince``: only the rows that changed, through both ways of reading."""

from __future__ import annotations

import pytest
from helpers.spark.written import grid_frame, hours

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.errors import InvalidInputError, NotFoundError

pytestmark = pytest.mark.core

DIMS = ["time", "latitude", "longitude"]


@pytest.fixture
def path(spark, tmp_path):
    path = str(tmp_path / "weather")
    icechunk_spark.write(grid_frame(spark, hours(0, 2)), path, dims=DIMS, chunks={"time": 1})
    repository = Repository.open(path)
    repository.create_tag("v1", repository.resolve())
    for hour in (2, 3):
        icechunk_spark.write(grid_frame(spark, hours(hour, 1)), path, mode="append")
    return path


def test_only_what_was_appended_is_read(spark, path, load):
    whole = load(path)
    step = whole.count() // 4
    new = load(path, changesSince="v1", changeColumns="true")
    assert new.columns == [*whole.columns, "_change", "_snapshot_id", "_committed_at"]
    assert dict(new.dtypes)["_committed_at"] == "timestamp"
    assert new.count() == 2 * step
    assert [row["_change"] for row in new.select("_change").distinct().collect()] == ["written"]
    old = load(path, tag="v1")
    assert old.union(load(path, changesSince="v1")).exceptAll(whole).count() == 0
    by_snapshot = load(path, changesSince="v1", changesBy="snapshot", changeColumns="true")
    counts = {
        row["_snapshot_id"]: row["count"]
        for row in by_snapshot.groupBy("_snapshot_id").count().collect()
    }
    assert counts == {str(i.id): step for i in list(Repository.open(path).ancestry())[:2]}
    assert load(path, changesSince="main").count() == 0


def test_some_columns_of_the_changes(path, load):
    new = load(path, changesSince="v1", changeColumns="true", schema="_change string, t2m float")
    assert new.columns == ["_change", "t2m"]
    assert new.where("t2m IS NULL").count() == 0
    assert load(path, changesSince="v1", layout="refs").where("array = '/t2m'").count() == 2
    with pytest.raises(Exception, match="is on values"):
        load(path, changesSince="v1", where="t2m > 280").count()


def test_versions_that_cannot_be_compared(spark, path):
    with pytest.raises(NotFoundError, match="option changesSince must name a tag"):
        icechunk_spark.read(spark, path, changes_since="v2")
    with pytest.raises(InvalidInputError, match="onHistoryChange=restart"):
        icechunk_spark.read(spark, path, tag="v1", changes_since="main")
    back = icechunk_spark.read(
        spark,
        path,
        tag="v1",
        changes_since="main",
        on_history_change="restart",
        change_columns=True,
    )
    now = icechunk_spark.read(spark, path)
    assert back.where("_change = 'deleted'").count() == now.count() // 2
