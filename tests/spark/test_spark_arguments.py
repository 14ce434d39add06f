"""Every keyword of every public function refuses wrong values with an error of the project."""

from __future__ import annotations

import inspect
import math
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import IcechunkError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.running import in_process
from icechunk_spark import maintenance
from icechunk_spark.jobs import task_rows

#: Writes plan a job for most values, which takes a minute.
BY_NIGHT = {"write"}
#: Functions without a path, whose arguments are DataFrames and columns of Spark.
OF_FRAMES = {"combine_summaries", "last_read_metrics"}
FUNCTIONS = {
    name: found
    for module in (icechunk_spark, maintenance)
    for name in module.__all__
    if inspect.isfunction(found := getattr(module, name)) and name not in OF_FRAMES
}
WRONG = [
    *(None, True, 0, 5, -1, 10**30, 1.5, math.nan, Decimal("NaN"), 2j),
    *("", " ", "\0", "\ud800", "nonsense", "a,,b", "[" * 3_000, "9" * 5_000, "x=1", "{}", "[5]"),
    *("http://[", "s3://", "/", "../..", "é" * 1_000, "-", "1e400", "x" * 100_000),
    *([], (), {}, [None], [5], [[]], ["v", "v"], ["nowhere"], {5: 5}, {"x": None}, {"x": -1}),
    *({"x": 0}, {"x": 10**30}, {"nowhere": 1}, {"x": "y"}, {"v": {}}, {"v": {"dtype": "q"}}),
    *({"x": slice(3, 1, -1)}, {"x": [[]]}, {"x": object()}, {"x": {"y": set()}}, {None: 1}),
    *(object(), object, set(), b"bytes", range(3), slice(1), iter(["v"]), lambda: 0, len),
    *(
        np.float32("nan"),
        np.array([1, 2]),
        np.array("v"),
        np.datetime64("NaT", "s"),
        np.bool_(True),
    ),
    *(datetime.max, datetime(2024, 1, 1), timedelta.max, timedelta(-1), np.str_("v")),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("arguments") / "r")
    table = pa.table({"x": pa.array(range(4), pa.int64()), "v": pa.array([1.0, 2.0, 3.0, 4.0])})
    write_table(path, table, WriteOptions(mode="append", dims=("x",)))
    return path


@pytest.fixture
def calls(spark, repository, tmp_path, monkeypatch):
    """Return the valid arguments of each function; the result of a call is not kept."""
    monkeypatch.chdir(tmp_path)
    for module in (task_rows, icechunk_spark.maintenance.rewrite, icechunk_spark.mirroring.copy):
        monkeypatch.setattr(
            module, "on_executors", lambda spark, f, tasks, *_: in_process(f, tasks)
        )
    frame = spark.createDataFrame([(9, 1.0)], "x bigint, v double")
    zones = spark.createDataFrame([("POINT EMPTY",)], "geometry string")
    numbers = count()
    pytest.importorskip("virtualizarr")

    def new():
        return str(tmp_path / f"new{next(numbers)}")

    archive = str(tmp_path / "f.nc")
    xarray = pytest.importorskip("xarray")
    xarray.Dataset({"v": (("x",), np.arange(3.0))}).to_netcdf(archive)
    delta = str(tmp_path / "delta")
    icechunk_spark.mirror(spark, repository, delta)
    on = {"spark": spark, "path": repository}
    return {
        "delete": lambda: {**on, "where": "x = 0", "dry_run": True},
        "estimate": lambda: {**on, "spark": None},
        "freshness": lambda: {"target": delta},
        "map_blocks": lambda: {**on, "function": lambda ds: ds, "to": new()},
        "mirror": lambda: {**on, "target": new(), "dry_run": True},
        "mirrored": lambda: {"spark": spark, "target": delta},
        "read": lambda: on,
        "read_blocks": lambda: {**on, "function": lambda ds: None, "schema": "v double"},
        "rechunk": lambda: {**on, "chunks": {"x": 2}, "dry_run": True},
        "reduce": lambda: {**on, "statistics": "mean", "over": "x", "to": new(), "dry_run": True},
        "register": lambda: {"spark": spark},
        "sample": lambda: {"points": frame, "path": repository, "on": {"x": "x"}},
        "to_xarray": lambda: {"df": frame, "dims": ["x"]},
        "unregister": lambda: {"spark": spark},
        "attach": lambda: {
            "spark": spark,
            "catalog": {"tables": {"attached": {"path": repository}}},
            "prefix": "of_arguments_",
        },
        "tables": lambda: {"spark": spark},
        "view": lambda: {"spark": spark, "name": "seen", "path": repository},
        "virtualize": lambda: {**on, "files": [archive], "path": new(), "dry_run": True},
        "write": lambda: {
            "df": frame,
            "path": new(),
            "mode": "append",
            "dims": ["x"],
            "dry_run": True,
        },
        "zonal": lambda: {"zones": zones, "path": repository},
        "collect_garbage": lambda: {**on, "older_than": timedelta(days=9), "dry_run": True},
        "copy": lambda: {"spark": spark, "source": repository, "target": new(), "dry_run": True},
        "expire_snapshots": lambda: {**on, "older_than": timedelta(days=9), "dry_run": True},
        "rewrite_manifests": lambda: {**on, "dry_run": True},
        "verify": lambda: on,
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in BY_NIGHT else [])
        for name in sorted(FUNCTIONS)
    ],
)
def test_wrong_values_raise_errors_of_the_project(name, calls, spark):
    function, raw = FUNCTIONS[name], []
    for keyword, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for value in [*WRONG, F.col("x")]:
            if name == "verify" and keyword in ("deep", "max_findings") and _is_right(value):
                continue
            try:
                function(**{**calls[name](), keyword: value})
            except (IcechunkError, PySparkException) as error:
                if isinstance(error, IcechunkError) and len(str(error)) > 6_000:
                    raw.append(f"{keyword}: a message of {len(str(error))} characters")
            except Exception as error:
                shown = repr(value)[:60] if not isinstance(value, int) else type(value).__name__
                raw.append(f"{keyword}={shown}: {type(error).__name__}: {error}"[:300])
    icechunk_spark.register(spark)
    assert not raw, "\n".join(raw)


def _is_right(value):
    """Return True for values with which a Spark job would run."""
    return isinstance(value, bool | int | np.bool_)
