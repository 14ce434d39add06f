"""Both sides of each row of the table for users of xarray return the same values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.builder import reference_repository

import icechunk_spark

PAGE = Path(__file__).parents[2] / "docs" / "start" / "coming-from.md"
TABLE = PAGE.read_text().partition("<!-- both sides -->")[2].partition("<!-- /both sides -->")[0]
ROWS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", TABLE, flags=re.MULTILINE)

pytestmark = pytest.mark.needs_reference


@pytest.fixture(scope="module")
def names(spark, tmp_path_factory):
    """Store a dataset, and return the names that both sides of the table use."""
    import pandas as pd
    import xarray as xr
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    shape = (36, 5, 6)
    values = np.random.default_rng(7).normal(298, 4, shape).astype("float32")
    dataset = xr.Dataset(
        {"t2m": (("time", "latitude", "longitude"), values, {"units": "K"})},
        {
            "time": pd.date_range("2024-07-01", periods=shape[0], freq="23h"),
            "latitude": [55.0, 50.0, 45.0, 40.0, 35.0],
            "longitude": np.arange(0.0, 30.0, 5.0),
        },
    )
    path = str(tmp_path_factory.mktemp("coming-from") / "repository")
    session = reference_repository(path).writable_session("main")
    dataset.to_zarr(session.store, consolidated=False)
    session.commit("dataset")
    cities = pd.DataFrame(
        {"city": ["Paris", "Rome", "Berlin"], "lat": [48.9, 41.9, 52.5], "lon": [2.4, 12.5, 13.4]}
    ).set_index("city", drop=False)
    return {
        "icechunk_spark": icechunk_spark,
        "spark": spark,
        "path": path,
        "df": icechunk_spark.read(spark, path),
        "ds": xr.open_zarr(session.store, consolidated=False).load(),
        "cities": cities,
        "F": F,
        "W": Window,
        "np": np,
    }


def test_the_table_was_found():
    assert len(ROWS) == TABLE.count("\n|") - 2 > 15


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[row[0] for row in ROWS])
def test_both_sides_are_the_same(names, theirs, ours):
    expected, found = eval(theirs, names), eval(ours, names)
    if hasattr(expected, "index"):  # a data frame of pandas
        labels = list(expected.index.names)
        expected, found = expected.to_xarray(), found.set_index(labels).to_xarray()
    elif not expected.dims:
        assert found.first()[0] == pytest.approx(float(expected), rel=1e-6)
        return
    elif not hasattr(found, "data_vars"):
        # The dimension of the cities is named after the index of the data frame.
        found = icechunk_spark.to_xarray(found, dims=list(expected.dims))
    if not hasattr(expected, "data_vars"):
        expected = expected.to_dataset(name="value")
        own = [name for name in found.data_vars if found[name].dims]
        found = found.rename({own[-1]: "value"})
    for name in expected.data_vars:
        right, left = expected[name], found[name].transpose(*expected[name].dims)
        for dim in right.dims:
            assert sorted(right[dim].values) == sorted(left[dim].values)
        left = left.sel({dim: right[dim].values for dim in right.dims})
        np.testing.assert_allclose(left.values, right.values, rtol=1e-5, atol=2e-4)
