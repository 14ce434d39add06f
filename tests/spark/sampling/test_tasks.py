"""The function that Spark calls: groups of points stay within their bytes, values in their rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icechunk_spark.sampling import tasks


def batches_of(*sizes):
    begin = 0
    for size in sizes:
        yield pa.record_batch({"n": np.arange(begin, begin + size)})
        begin += size


def test_groups_are_cut_and_joined_within_the_bytes(monkeypatch):
    monkeypatch.setattr(tasks, "_GROUP_BYTES", 1000)
    groups = list(tasks.grouped(batches_of(3, 0, 50, 4), 100))
    rows = [sum(batch.num_rows for batch in group) for group in groups]
    assert sum(rows) == 57
    assert max(rows) <= 20
    assert len(rows) < 8
    found = np.concatenate([batch.column(0).to_numpy() for group in groups for batch in group])
    np.testing.assert_array_equal(found, np.arange(57))
    assert [len(group) for group in tasks.grouped(batches_of(2, 2), 10**9)] == [1] * 4
    assert list(tasks.grouped(iter(()), 1)) == []


@pytest.mark.needs_reference
def test_more_points_than_a_group_holds(monkeypatch, tmp_path):
    import xarray as xr
    from helpers.reference.xarray_datasets import opened, store_dataset

    from icechunk_format.options.read import ReadRequest
    from icechunk_format.workflows.sampling import SampleRequest, plan_sample

    monkeypatch.setattr(tasks, "_GROUP_BYTES", 10_000)
    values = np.random.default_rng(1).normal(size=500)
    dataset = xr.Dataset({"v": (("n",), values)})
    path = store_dataset(dataset, tmp_path / "line", {"v": {"chunks": (30,)}})
    request = SampleRequest(
        points={"n": ("n", pa.int64())},
        read=ReadRequest(path=str(path)),
        existing=["n"],
        outside="drop",
    )
    plan = plan_sample(opened(path), request)
    run = tasks.SamplePoints(
        plan, [0], 1, pa.schema([(v.column.name, v.arrow_type) for v in plan.variables])
    )
    made = list(run(batches_of(200, 100, 300)))
    assert len(made) > 3
    table = pa.Table.from_batches(made)
    assert table.column_names == ["n", "v"]
    np.testing.assert_array_equal(table["n"].to_numpy(), np.arange(500))
    np.testing.assert_array_equal(table["v"].to_numpy(), values)
