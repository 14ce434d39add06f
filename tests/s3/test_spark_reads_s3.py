"""Spark reads repositories on S3 through either client, and shows no credential.

The reference library writes the repository to a real S3 server; Spark's driver and executors reach
it with credentials from options or from the environment. Whatever goes wrong, the last line of the
error helps, and no text of the library, of Spark's plans or of the driver's log holds a secret.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.grids.cell_grids import assert_cells, row_positions
from helpers.servers.s3 import SECRET_KEY
from helpers.spark.repositories import (
    LATITUDES,
    LONGITUDES,
    T2M,
    T2M_V1,
    TIMES,
    WIND_STORED,
    Weather,
    commit,
    fill_weather,
)
from helpers.spark.session import by_source, environment_of_a_program
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import icechunk_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.servers.s3 import S3Server
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.needs_reference
icechunk = pytest.importorskip("icechunk")

WRONG_SECRET = "canary-wrong-secret-8c72"
CANARIES = (SECRET_KEY, WRONG_SECRET, "canary-key-id-90d1", "canary-token-2f6e")
LABELS = {"time": TIMES, "latitude": LATITUDES, "longitude": LONGITUDES}
WIND = np.where(WIND_STORED == -999, np.nan, WIND_STORED * 0.1 + 5.0)


def s3_repository(server: S3Server, bucket: str, prefix: str) -> Any:
    """Create a repository with the reference library."""
    icechunk.set_logs_filter("off")
    storage = icechunk.s3_storage(
        bucket=bucket,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
    )
    return icechunk.Repository.create(storage)


@pytest.fixture(scope="module")
def weather(s3_server) -> Weather:
    bucket = s3_server.new_bucket()
    repository = s3_repository(s3_server, bucket, "models/weather")
    return fill_weather(repository, f"s3://{bucket}/models/weather")


@pytest.fixture(params=["obstore", "fsspec"])
def client(request) -> str:
    return request.param


@pytest.fixture
def read(spark, s3_server, weather, client) -> Callable[..., DataFrame]:
    """Load from S3 with the server's credentials; ``None`` takes an option away."""
    return loader(s3_server, weather, client, by_format(spark))


def by_format(spark) -> Callable[..., DataFrame]:
    # A reader keeps the options that it was given, so each load has one of its own.
    return lambda path, **options: by_source(spark).load(path, **options)


def loader(s3_server, weather, client, action) -> Callable[..., DataFrame]:
    """Return a function that gives `action` a path and options with the server's credentials."""

    def load(path: str = weather.path, **changes: str | None) -> DataFrame:
        options: dict[str, str | None] = {
            **{f"storage.{key}": value for key, value in s3_server.storage_options.items()},
            "storage.client": client,
            **changes,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return action(path, **given)

    return load


# --- reading ----------------------------------------------------------------------------------


def test_every_cell_of_both_versions(read):
    now = read(variables="t2m,wind").toArrow()
    assert_cells(now.drop_columns("wind"), LABELS, {"t2m": T2M}, decoded=True)
    expected = WIND.ravel()[row_positions(now, LABELS)]
    # Rounding of packed values is held against xarray's elsewhere.
    np.testing.assert_allclose(now["wind"].to_numpy(), expected, rtol=1e-6)
    then = read(variables="t2m", tag="v1").toArrow()
    assert_cells(then, LABELS, {"t2m": T2M_V1}, decoded=True)


def test_versions_by_snapshot_and_instant(read, weather):
    for version in ({"snapshot": weather.v1}, {"asOf": weather.between.isoformat()}):
        first = read(**version, isel="time=0", variables="t2m").agg(F.max("t2m")).first()[0]
        assert first == np.nanmax(T2M_V1[0])


def test_conditions_select_cells(read):
    where = "time >= '2024-07-02' AND latitude BETWEEN 40 AND 50 AND t2m > 260"
    found = read(where=where).toArrow()
    chosen = (np.datetime64("2024-07-02") <= TIMES)[:, None, None]
    chosen = chosen & ((LATITUDES >= 40) & (LATITUDES <= 50))[:, None] & (T2M > 260)
    assert sorted(found["t2m"].to_pylist()) == sorted(T2M[chosen].tolist())


def test_other_layouts(read):
    summary = read(layout="summary", variables="t2m").agg(F.sum("t2m_count"), F.max("t2m_max"))
    assert tuple(summary.first()) == (np.isfinite(T2M).sum(), np.nanmax(T2M))
    refs = read(layout="refs", variables="t2m,wind").toArrow()
    assert refs.num_rows == 16 + 2
    chunks = read(layout="chunks", variables="t2m", isel="time=0").toArrow().to_pylist()
    for row in chunks:
        box = tuple(slice(a, a + n) for a, n in zip(row["start"], row["shape"], strict=True))
        found = np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        np.testing.assert_array_equal(found, T2M[box])


def test_a_dataframe_stays_at_its_snapshot_while_others_write(spark, s3_server, client):
    bucket = s3_server.new_bucket()
    repository = s3_repository(s3_server, bucket, "growing")
    path = fill_weather(repository, f"s3://{bucket}/growing").path
    options = {f"storage.{key}": value for key, value in s3_server.storage_options.items()}
    options |= {"storage.client": client, "variables": "elevation"}

    def highest(frame: DataFrame) -> int:
        return frame.agg(F.max("elevation")).first()[0]

    before = spark.read.format("icechunk").options(**options).load(path)
    assert highest(before) == 590

    def raise_all(root: Any) -> None:
        root["elevation"][...] = 4000

    commit(repository, "mountains", raise_all)
    assert highest(before) == 590
    assert highest(spark.read.format("icechunk").options(**options).load(path)) == 4000


# --- mistakes ---------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, str | None], str]] = {
    "secret": ({"storage.secret": WRONG_SECRET}, r"storage\.key.*storage\.secret"),
    "key": ({"storage.key": "canary-key-id-90d1"}, r"storage\.key"),
    "half a pair": ({"storage.secret": None}, r"storage\.secret"),
    "endpoint": ({"storage.endpoint_url": "http://127.0.0.1:9"}, r"storage\.endpoint_url"),
    "misspelt": ({"storage.secrte": WRONG_SECRET}, r"storage\.secrte.*storage\.secret"),
    "prefix left out": ({"secret": WRONG_SECRET}, r"storage\.secret"),
    "condition": ({"where": "t2m >"}, "where"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_last_line_helps_and_nothing_tells_the_secret(read, last_line, mistake):
    changes, helpful = MISTAKES[mistake]
    said: list[str] = []

    def load() -> None:
        try:
            read(**changes).collect()
        except PySparkException as error:
            said.append(everything_said(error))
            raise

    assert re.search(helpful, last_line(load))
    assert_no_canary(said)


@pytest.mark.parametrize(
    ("path", "helpful"),
    [
        ("s3://no-such-bucket-4711/models/weather", "no-such-bucket-4711"),
        ("s3://{bucket}/models/wether", "models/wether"),
    ],
)
def test_a_place_without_a_repository_is_named(read, last_line, weather, path, helpful):
    bucket = weather.path.split("/")[2]
    message = last_line(lambda: read(path.format(bucket=bucket)))
    assert helpful in message


def everything_said(error: PySparkException) -> str:
    """Return all texts of an error: Spark's, Python's, and those of the JVM below."""
    texts = [str(error), repr(error), str(error.args), str(error.getMessage())]
    origin = getattr(error, "_origin", None)
    while origin is not None:
        texts.append(str(origin.toString()))
        origin = origin.getCause()
    return "\n".join(texts)


def assert_no_canary(texts: list[str]) -> None:
    assert texts
    for text in texts:
        assert text
        for canary in CANARIES:
            assert canary not in text


@pytest.mark.parametrize("door", ["format", "function"])
def test_plans_tell_no_secret(spark, s3_server, weather, client, door, capsys):
    by_function = partial(icechunk_spark.read, spark)
    action = by_function if door == "function" else by_format(spark)
    read = loader(s3_server, weather, client, action)
    frame = read(**{"storage.token": None}, where="latitude > 40").filter("t2m > 270")
    assert frame.count() == int((T2M[:, LATITUDES > 40] > 270).sum())
    frame.explain(extended=True)
    frame.explain(mode="formatted")
    frame.explain(mode="codegen")
    execution = frame._jdf.queryExecution()
    texts = [capsys.readouterr().out, repr(frame), frame.schema.json(), execution.toString()]
    texts += [execution.logical().toString(), execution.optimizedPlan().toString()]
    frame.createOrReplaceTempView("on_s3")
    texts += [str(row) for row in frame.sparkSession.sql("DESCRIBE EXTENDED on_s3").collect()]
    assert_no_canary(texts)
    assert "icechunk" in texts[0].lower()


# --- credentials of the environment, and the driver's log -------------------------------------

SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession, functions as F
import icechunk_spark

path, wrong = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("DEBUG")
icechunk_spark.register(spark, reader="source")
answer = {}
for client in ("obstore", "fsspec"):
    reader = spark.read.format("icechunk").option("storage.client", client)
    frame = reader.load(path, variables="t2m", where="latitude > 30")
    answer[client] = list(frame.agg(F.count("*"), F.sum("t2m")).first())
given = {
    "storage.key": os.environ.pop("AWS_ACCESS_KEY_ID"),
    "storage.secret": os.environ.pop("AWS_SECRET_ACCESS_KEY"),
}
answer["given"] = spark.read.format("icechunk").options(**given).load(path).count()
answer["function"] = icechunk_spark.read(spark, path, **given).count()
# Spark itself writes the texts of SQL to its debug log, literals and all.
spark.sparkContext.setLogLevel("INFO")
for action in ("SELECT count(*) FROM v", "SELECT nothing FROM v"):
    try:
        spark.sql(
            "CREATE OR REPLACE TEMPORARY VIEW v USING icechunk OPTIONS"
            f" (path '{path}', `storage.secret` '{wrong}', `storage.key` 'canary-key-id-90d1')"
        )
        spark.sql(action).collect()
    except Exception as error:
        answer.setdefault("errors", []).append(str(error))
print("ANSWER " + json.dumps(answer))
spark.stop()
"""


def test_credentials_of_the_environment_and_a_clean_log(s3_server, weather):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, weather.path, WRONG_SECRET],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment_of_a_program(**s3_server.environment),
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answer = json.loads(line.removeprefix("ANSWER "))
    for client in ("obstore", "fsspec"):
        count, total = answer[client]
        assert count == T2M.size
        np.testing.assert_allclose(total, np.nansum(T2M, dtype="float64"))
    assert answer["given"] == answer["function"] == T2M.size
    assert len(answer["errors"]) == 2
    assert "DEBUG" in done.stdout
    assert_no_canary([done.stdout])
