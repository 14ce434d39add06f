"""Functions over blocks give what xarray gives over the whole array."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import icechunk
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from helpers.raised import raises
from pyspark.errors import PySparkException

import icechunk_spark
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    IcechunkError,
    InvalidInputError,
)
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.repository import Repository
from icechunk_format.workflows.mapping import BlocksRequest
from icechunk_spark.mapping.datasets import DatasetFunction

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def weather(tmp_path):
    """Return the path of a packed dataset with times, a 2-D coordinate and a mask."""
    rng = np.random.default_rng(3)
    dataset = xr.Dataset(
        {
            "t2m": (("time", "y", "x"), rng.normal(280, 10, (12, 8, 6)), {"units": "K"}),
            "mask": (("y", "x"), rng.random((8, 6)) > 0.5),
        },
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D"),
            "y": np.linspace(50, 43, 8),
            "x": np.arange(6.0),
            "area": (("y", "x"), rng.random((8, 6))),
        },
        attrs={"title": "weather"},
    )
    dataset["t2m"].values[2, 3, 4] = np.nan
    encoding = {
        "t2m": {
            "dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768,
            "chunks": (4, 8, 6),
        }
    }  # fmt: skip
    path = str(tmp_path / "weather")
    # Here, since processes of Spark import this module by its name, without the helpers.
    from helpers.builder import reference_repository

    repository = reference_repository(path)
    session = repository.writable_session("main")
    dataset.to_zarr(session.store, zarr_format=3, consolidated=False, encoding=encoding)
    session.commit("weather")
    return path


def opened(path, group=None):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False).load()


@pytest.mark.each_spark
def test_identity_and_anomaly(spark, weather, tmp_path):
    whole = opened(weather)
    same = str(tmp_path / "same")
    done = icechunk_spark.map_blocks(
        spark, weather, lambda ds: ds, to=same, blocks={"time": 5, "y": 3}, message="same"
    )
    xr.testing.assert_identical(opened(same), whole)
    assert done.blocks == 9
    assert done.commit.totals.chunks_encoded >= 9
    assert Repository.open(same).snapshot(done.commit.snapshot_id).message == "same"

    def anomaly(ds):
        return (ds["t2m"] - ds["t2m"].mean("time")).to_dataset(name="anomaly")

    icechunk_spark.map_blocks(
        spark, weather, anomaly, to=same, to_group="derived", blocks={"time": -1, "y": 3, "x": 4}
    )
    found = opened(same, "derived")
    xr.testing.assert_allclose(found["anomaly"], anomaly(whole)["anomaly"])
    with pytest.raises(AlreadyExistsError):
        icechunk_spark.map_blocks(spark, weather, anomaly, to=same, blocks={"time": -1})


@pytest.mark.each_spark
def test_reduced_and_new_dimensions(spark, weather, tmp_path):
    whole = opened(weather)[["t2m"]]

    def derived(ds):
        t = ds["t2m"].drop_vars("area")
        return xr.Dataset(
            {
                "monthly": t.groupby("time.day").mean(),
                "quantiles": t.quantile([0.1, 0.9], "time"),
            }
        )

    to = str(tmp_path / "derived")
    icechunk_spark.map_blocks(spark, weather, derived, to=to, blocks={"time": -1, "y": 4, "x": 3})
    found = opened(to)
    for name in ("monthly", "quantiles"):
        expected = derived(whole)[name]
        np.testing.assert_allclose(found[name].transpose(*expected.dims), expected)


@pytest.mark.each_spark
def test_coarser_copies(spark, weather, tmp_path):
    to = str(tmp_path / "coarse")
    icechunk_spark.map_blocks(
        spark, weather, lambda ds: ds[["t2m"]].coarsen(y=2).mean(), to=to, blocks={"y": 4, "x": 3}
    )
    coarse = opened(weather)[["t2m"]].coarsen(y=2).mean()
    # The packing of the source is kept, as xarray does.
    xr.testing.assert_allclose(opened(to), coarse, atol=0.0051)


@pytest.mark.each_spark
def test_overlap_is_trimmed(spark, weather, tmp_path):
    def smooth(ds):
        return ds["t2m"].rolling(time=3, center=True, min_periods=1).mean().to_dataset(name="s")

    to = str(tmp_path / "smooth")
    icechunk_spark.map_blocks(
        spark, weather, smooth, to=to, blocks={"time": 4, "y": -1, "x": -1}, overlap={"time": 1}
    )
    np.testing.assert_allclose(opened(to)["s"], smooth(opened(weather))["s"])


@pytest.mark.each_spark
def test_errors_name_the_block(spark, weather, tmp_path):
    def fails(ds, block):
        if block.index["time"] == 1:
            raise ValueError("too warm")
        return ds[["t2m"]]

    to = str(tmp_path / "failed")
    blocks = {"time": 4, "y": -1, "x": -1}
    with pytest.raises(InvalidInputError) as caught:
        icechunk_spark.map_blocks(spark, weather, fails, to=to, blocks=blocks)
    first = caught.value.message.splitlines()[0]
    assert "time=2024-01-05..2024-01-08" in first
    assert "ValueError: too warm" in first
    assert not Repository.exists(to)
    done = icechunk_spark.map_blocks(spark, weather, fails, to=to, blocks=blocks, on_error="skip")
    assert len(done.failed) == 1
    found = opened(to)["t2m"]
    assert found[4:8].isnull().all()
    np.testing.assert_array_equal(found[:4], opened(weather)["t2m"][:4])


@pytest.mark.each_spark
@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (lambda ds: ds[["t2m"]].mean("time"), ("dimension", "time")),
        (lambda ds: ds[["t2m"]].isel(time=slice(0, 3)), ("dimension", "time")),
        (lambda ds: 3, ("found", "int")),
    ],
    ids=["reduced", "shorter", "number"],
)
def test_results_that_do_not_fit_are_refused(spark, weather, tmp_path, function, fact):
    with pytest.raises(InvalidInputError) as caught:
        icechunk_spark.map_blocks(
            spark, weather, function, to=str(tmp_path / "x"), blocks={"time": 4}
        )
    assert fact[1] in caught.value.message


@pytest.mark.each_spark
def test_rows_of_blocks(spark, weather):
    def patches(ds, block):
        t = ds["t2m"]
        return pd.DataFrame(
            {
                "start": [str(t.time.values[0])[:10]],
                "patch": [t.values.astype("f4").ravel().tolist()],
                "shape": [list(t.shape)],
                "block": [block.number],
            }
        )

    frame = icechunk_spark.read_blocks(
        spark,
        weather,
        patches,
        "start string, patch array<float>, shape array<bigint>, block bigint",
        blocks={"time": 6, "y": 4, "x": 6},
        variables=["t2m"],
    )
    rows = sorted(frame.collect(), key=lambda row: row.block)
    assert [row.start for row in rows] == ["2024-01-01"] * 2 + ["2024-01-07"] * 2
    whole = opened(weather)["t2m"].values.astype("f4")
    patch = np.array(rows[3].patch, "f4").reshape(rows[3].shape)
    np.testing.assert_array_equal(patch, whole[6:, 4:])
    with raises(InvalidInputError, dimension="lat"):
        icechunk_spark.read_blocks(spark, weather, patches, "a int", blocks={"lat": 2})


DECLARED = "but schema has double not null [(]"
UNFIT_ROWS = {
    "type": (lambda: pd.DataFrame({"mean": ["warm"]}), ("'mean'", "type (object|str)", DECLARED)),
    "Arrow type": (lambda: pa.table({"mean": ["warm"]}), ("'mean'", "type string", DECLARED)),
    "mixed": (lambda: pd.DataFrame({"mean": [[1], "a"]}), ("'mean'", "type object", DECLARED)),
    "null": (lambda: pd.DataFrame({"mean": [None]}), ("'mean'", "type object", DECLARED)),
    "name": (lambda: pd.DataFrame({"maen": [1.0]}), ("'maen'", "'mean'")),
    "extra": (lambda: pd.DataFrame({"mean": [1.0], "n": [1]}), ("'n'", "'mean'")),
    "twice": (lambda: pd.DataFrame([[1.0, 2.0]], columns=["mean"] * 2), ("'mean', 'mean'",)),
    "dict": (lambda: {"mean": [1.0]}, ("a dict", "return a pandas DataFrame")),
}


@pytest.mark.parametrize("case", UNFIT_ROWS)
def test_rows_that_do_not_fit_the_schema_are_refused(weather, case):
    returned, words = UNFIT_ROWS[case]
    read = parse_arguments(weather, {}, "sample")
    grid = BlocksRequest(read=read, blocks={"time": 6}, overlap=None).grid()
    block = grid.block(1)
    schema = pa.schema([pa.field("mean", pa.float64(), nullable=False)])
    function = DatasetFunction(function=lambda ds: returned())
    with pytest.raises(InvalidInputError) as caught:
        list(function.rows(block, grid.reader().read(block), grid.attributes, schema))
    line = caught.value.message.splitlines()[0]
    assert "block time=2024-01-07..2024-01-12, y=50.0..43.0, x=0.0..5.0" in line
    assert all(re.search(word, line) for word in words), line


@pytest.mark.each_spark
def test_unfit_rows_fail_the_query(spark, weather):
    frame = icechunk_spark.read_blocks(
        spark, weather, lambda ds: pd.DataFrame({"mean": ["warm"]}), "mean double",
        blocks={"time": 6},
    )  # fmt: skip
    with pytest.raises(PySparkException, match=r"InvalidInputError: column 'mean' of .* time=2024"):
        frame.collect()


@pytest.mark.each_spark
def test_functions_that_capture_much(spark, weather, tmp_path):
    # 50 MB go with the function, to all of its tasks.
    field = np.random.default_rng(1).random((50 * 2**17,))

    def looked_up(ds, block):
        return ds[["t2m"]] + field[block.number * 1000]

    def scaled(ds, factor):
        return ds[["t2m"]] * factor

    cases = {
        "closure": (looked_up, None),
        "lambda": (lambda ds: ds[["t2m"]] * 2, lambda ds: ds[["t2m"]] * 2),
        "partial": (partial(scaled, factor=3), lambda ds: ds[["t2m"]] * 3),
    }
    whole, unpacked = opened(weather), {"dtype": "f8", "scale_factor": 1.0, "add_offset": 0.0}
    for group, (function, expected) in cases.items():
        icechunk_spark.map_blocks(
            spark, weather, function, to=str(tmp_path / "to"), to_group=group,
            blocks={"time": 4}, encoding={"t2m": unpacked},
        )  # fmt: skip
        found = opened(str(tmp_path / "to"), group)["t2m"]
        if expected is None:
            steps = np.repeat(field[[0, 1000, 2000]], 4)[:, None, None]
            np.testing.assert_allclose(found, whole["t2m"] + steps)
        else:
            np.testing.assert_allclose(found, expected(whole)["t2m"])


@pytest.mark.each_spark
def test_follow_and_two_jobs_at_once(spark, weather, tmp_path):
    to = str(tmp_path / "to")

    def warm(ds):
        return ds[["t2m"]].where(ds["mask"])

    def run(_):
        return icechunk_spark.map_blocks(
            spark, weather, warm, to=to, blocks={"time": 4}, follow=True, function_version="1"
        )

    assert run(0).computed == 3
    assert run(0).commit.is_skipped
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(weather))
    session = repository.writable_session("main")
    zarr.open_group(session.store)["t2m"][5] = 100
    session.commit("change")
    with ThreadPoolExecutor(2) as threads:
        outcomes = [threads.submit(run, number) for number in range(2)]
    errors = [o.exception() for o in outcomes if o.exception() is not None]
    assert all(isinstance(error, ConflictError) for error in errors)
    assert len(errors) < 2
    assert {o.result().computed for o in outcomes if o.exception() is None} <= {0, 1}
    xr.testing.assert_equal(opened(to), warm(opened(weather)).drop_attrs(deep=False))


def test_several_sources(spark, weather, tmp_path):
    from helpers.blocks import Source

    whole = opened(weather)
    # Another order, other chunks and data types, and a commit after the tag.
    other = whole[["t2m"]].drop_vars("area").isel(y=slice(None, None, -1)).astype("f8") + 1
    other = other.assign_coords(x=whole["x"].astype("f4"))
    observed = Source(tmp_path / "observed", other, encoding={"t2m": {"chunks": (7, 8, 2)}})
    observed.write(other, group="surface")
    tip = observed.repository.lookup_branch("main")
    observed.repository.create_tag("v1", snapshot_id=tip)
    observed.put("surface/t2m", 3, 0.0)
    obs = {"path": tmp_path / "observed", "group": "surface", "tag": "v1", "variables": "t2m"}
    others = {"obs": obs, "mask": {"path": weather, "variables": ["mask"]}}
    blocks = {"time": 5, "y": 3}

    def bias(ds, obs, mask, block):
        found = (ds["t2m"] - obs["t2m"]).where(mask["mask"])
        assert dict(found.sizes) == dict(ds.sizes), block
        return found.drop_vars("area").to_dataset(name="bias")

    to = str(tmp_path / "bias")
    done = icechunk_spark.map_blocks(
        spark, weather, bias, to=to, blocks=blocks, others=others, follow=True
    )
    expected = (whole["t2m"] - other["t2m"].reindex_like(whole)).where(whole["mask"])
    xr.testing.assert_allclose(opened(to)["bias"], expected.drop_vars("area"))
    again = icechunk_spark.map_blocks(
        spark, weather, bias, to=to, blocks=blocks, others=others, follow=True
    )
    assert (done.computed, again.computed) == (9, 0)

    def means(ds, obs, mask):
        return pd.DataFrame({"mean": [float((ds["t2m"] - obs["t2m"]).where(mask["mask"]).mean())]})

    rows = icechunk_spark.read_blocks(
        spark, weather, means, "mean double", blocks=blocks, others=others
    )
    assert rows.count() == 9
    assert rows.toPandas()["mean"].between(-1.01, -0.99).all()


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"group": "a"}, {"match": "'obs' has no path", "source": "obs"}),
        (xr.Dataset({"v": 1}), {"match": "'obs' is a Dataset in memory", "source": "obs"}),
        ({"path": "{}", "message": "x"}, {"match": "does not apply to others", "call": "others"}),
        ({"path": "{}", "where": "x = 1"}, {"match": "does not apply to others"}),
        ({"path": "{}", "metod": "nearest"}, {"match": "unknown option 'metod'"}),
        ({"path": "{}", "method": "cubic"}, {"match": "choose exact, nearest, whole"}),
        ({"path": "{}#history"}, {"match": "the path names the metadata table"}),
        ("/no/such", {"match": "there is no Icechunk repository", "error": IcechunkError}),
    ],
)
def test_wrong_options_of_further_sources(spark, weather, tmp_path, given, facts):
    if isinstance(given, dict):
        given = {key: value.format(weather) for key, value in given.items()}
    error = facts.pop("error", InvalidInputError)
    with raises(error, **facts):
        icechunk_spark.read_blocks(
            spark, weather, lambda ds, obs: None, "mean double", others={"obs": given}
        )
