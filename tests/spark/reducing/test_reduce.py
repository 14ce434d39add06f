"""Reductions on Spark equal those of xarray, with and without a shuffle, in one commit."""

import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, days, opened
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import AlreadyExistsError, InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.reducing import plan as planning

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return Source(tmp_path_factory.mktemp("reduce") / "source", days(0, 40), chunks=(3, 6, 4))


def test_a_shuffled_climatology(spark, source, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "_LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(planning, "_LEAST_CHUNK_BYTES", 1)
    to = str(tmp_path / "to")
    statistics = {"t2m": ["mean", "std", "count"]}
    given = {"over": "time", "by": "time.month", "to": to}
    planned = icechunk_spark.reduce(spark, source.path, statistics, dry_run=True, **given)
    assert planned.commit is None
    assert planned.shuffled == 1
    assert "t2m_mean (month, y, x) float64" in planned.layout
    done = icechunk_spark.reduce(spark, source.path, statistics, **given)
    months = opened(source.path)[["t2m"]].groupby("time.month")
    found = opened(to)
    for name in ("mean", "std", "count"):
        np.testing.assert_allclose(found[f"t2m_{name}"], getattr(months, name)()["t2m"])
    # Each of 14 chunks is decoded once.
    assert done.commit.totals.chunks_decoded == 14
    assert len(list(Repository.open(to).ancestry(branch="main"))) == 2
    with raises(AlreadyExistsError, kind="arrays"):
        icechunk_spark.reduce(spark, source.path, statistics, **given)
    icechunk_spark.reduce(spark, source.path, {"t2m": "max"}, **given, mode="overwrite")
    assert opened(to)["t2m"].equals(months.max()["t2m"])


def test_a_small_result_is_a_dataset(spark, source):
    found = icechunk_spark.reduce(spark, source.path, {"t2m": "mean"}, over=["y", "x"], to=None)
    expected = opened(source.path)[["t2m"]].mean(("y", "x"))
    xr.testing.assert_allclose(found, expected)
    with raises(InvalidInputError, option="over", name="tim"):
        icechunk_spark.reduce(spark, source.path, {"t2m": "mean"}, over="tim", to=None)
