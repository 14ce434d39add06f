"""Stores a climate run, reads it with Spark, draws it and writes anomalies.

1. Writes 240 years of surface air temperature over North America (the A1B scenario run in PyPI's
   ``iris-sample-data``; its calendar has 360 days) to a local Icechunk repository with the
   reference library: two commits and a tag.
2. Reads that repository with Spark: the schema, a selective query, an earlier snapshot with another
   result, and aggregates that executors compute while they read.
3. Draws a map and a time series that is weighted by area.
4. Computes anomalies as a DataFrame, writes them as a new array on a branch, checks them there and
   publishes them to ``main`` in one step. xarray reads the same values with the reference library.

Run it with ``make demo``, or ``python examples/demo.py [output folder]``. On a cluster, with the
repository on S3: ``--master spark://host:7077 --repository s3://bucket/prefix``, credentials and
endpoint from the environment (``make cluster`` does that with processes of this machine).
"""

import argparse
import datetime
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from urllib.parse import urlsplit

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# The reference library warns of concurrent commits on local disks; the demo has one writer.
os.environ.setdefault("ICECHUNK_LOG", "error")

import drawing
import icechunk
import iris_sample_data
import numpy as np
import xarray as xr
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format import Repository

SOURCE = "Model: Met Office, from iris-sample-data"
PAST, FUTURE = ("1860", "1890"), ("2070", "2100")
GRID = ["latitude", "longitude"]


def title(text: str) -> None:
    print(f"\n--- {text}", flush=True)


def reference_storage(url: str) -> icechunk.Storage:
    """Return the reference library's storage of a local folder, or of a prefix on S3."""
    if not url.startswith("s3://"):
        return icechunk.local_filesystem_storage(url)
    place = urlsplit(url)
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    return icechunk.s3_storage(
        bucket=place.netloc,
        prefix=place.path.strip("/"),
        region=os.environ.get("AWS_REGION"),
        endpoint_url=endpoint,
        allow_http=bool(endpoint and endpoint.startswith("http://")),
        force_path_style=endpoint is not None,
        from_env=True,
    )


def write_repository(url: str) -> None:
    """Write the run up to 1979, tag it, and append the rest, like a data producer."""
    sample_data = Path(iris_sample_data.__file__).parent / "sample_data"
    run = xr.open_dataset(sample_data / "A1B_north_america.nc", decode_timedelta=True)
    run = run[["air_temperature"]].drop_vars(["forecast_period", "forecast_reference_time"])
    run["air_temperature"].encoding = {}
    repository = icechunk.Repository.create(reference_storage(url))

    session = repository.writable_session("main")
    chunks = {"air_temperature": {"chunks": (24, 37, 49)}}
    before = run.isel(time=slice(0, 120))
    before.to_zarr(session.store, mode="w", consolidated=False, encoding=chunks)
    first = session.commit("A1B run over North America, 1860 to 1979")
    repository.create_tag("v1", first)

    session = repository.writable_session("main")
    after = run.isel(time=slice(120, None))
    after.to_zarr(session.store, append_dim="time", consolidated=False)
    session.commit("Append 1980 to 2099")


def reader(spark: SparkSession, url: str) -> DataFrameReader:
    return spark.read.format("icechunk").option("path", url)


def draw_map(warming: DataFrame, file: Path) -> None:
    grid = warming.toPandas().pivot(index="latitude", columns="longitude", values="warming")
    figure = drawing.figure(
        "North America and its seas warm by 2 to 10 °C",
        "Surface air temperature, 2070–2099 minus 1860–1889, scenario A1B",
        height=5.4,
        source=SOURCE,
    )
    axes = figure.add_axes((0.02, 0.11, 0.96, 0.77))
    mesh = drawing.north_america(axes, grid, cmap=drawing.HEAT, vmin=2, vmax=10)
    labels = {degrees: f"+{degrees} °C" for degrees in (2, 4, 6, 8, 10)}
    drawing.scale(figure, mesh, (0.06, 0.1, 0.55, 0.028), labels)
    drawing.save(figure, file)


def draw_series(series: xr.DataArray, file: Path) -> None:
    year, celsius = series["time"].dt.year, series - 273.15
    low, high = float(celsius.min()), float(celsius.max())
    figure = drawing.figure(
        "North America and its seas warm by 4.5 °C",
        "Yearly mean of 15° to 60° N, weighted by area, surface air, °C, scenario A1B",
        height=4.2,
        source=SOURCE,
    )
    axes = drawing.plain(figure.add_axes((0.07, 0.15, 0.9, 0.66)), labelsize=11)
    axes.plot(year, celsius, color="0.72", linewidth=1)
    smooth = celsius.rolling(time=11, center=True).mean()
    axes.plot(year, smooth, color=drawing.RED, linewidth=2.5)
    axes.axvline(1979.5, color=drawing.BLUE, linestyle=":", linewidth=1.5)
    axes.text(1977, high, "tag v1 ends here", ha="right", va="top", color=drawing.BLUE)
    axes.text(2062, high - 2.4, "mean of\n11 years", color=drawing.RED)
    axes.text(1866, low + 1.3, "one year", color="0.5")
    axes.grid(axis="y", color="0.92")
    drawing.save(figure, file)


def main(output: Path, master: str, below: str | None) -> None:
    started = time.perf_counter()
    warnings.simplefilter("ignore")
    if below is None:
        shutil.rmtree(output, ignore_errors=True)
        path = str(output / "a1b-north-america")
    else:
        # Each run has its own repository below a given URL, so that nothing is deleted there.
        path = f"{below.rstrip('/')}/{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}"
    output.mkdir(parents=True, exist_ok=True)
    title(f"writing 240 years of model output with the reference library to {path}")
    write_repository(path)

    spark = (
        SparkSession.builder.master(master)
        .appName("icechunk-spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)

    title('spark.read.format("icechunk").load(path)')
    run = reader(spark, path).load()
    run.printSchema()

    title("a selective query: hot years in the Great Plains; only three of ten chunks are read")
    where = """time >= '2040' AND latitude BETWEEN 35 AND 45 AND longitude BETWEEN 255 AND 265
               AND air_temperature > 290.5"""
    hot = run.where(where)
    hot.orderBy(F.desc("air_temperature")).show(5, truncate=False)

    title("time travel: the same query at tag v1 and on branch main")
    for name, versioned in (
        ("tag v1", reader(spark, path).option("tag", "v1")),
        ("branch main", reader(spark, path)),
    ):
        result = (
            versioned.load()
            .agg(
                F.count("*").alias("cells"),
                F.max("time").alias("last"),
                F.avg("air_temperature").alias("mean"),
            )
            .first()
        )
        cells, last, mean = result["cells"], result["last"][:4], result["mean"]
        print(f"{name:>12}: {cells:>7,} cells up to {last}, mean of the cells {mean:.3f} K")

    title("a series weighted by area: a cell is smaller the closer it is to a pole")
    series = icechunk_spark.reduce(
        spark, path, {"air_temperature": "mean"}, over=GRID, weights="area", to=None
    )["air_temperature"]
    print(series[:3].to_series())
    draw_series(series, output / "series.png")

    title("a map: the mean of the last thirty years minus that of the first thirty")
    run.createOrReplaceTempView("run")
    warming = spark.sql(f"""
        SELECT latitude, longitude,
            avg(air_temperature) FILTER (WHERE time BETWEEN '{FUTURE[0]}' AND '{FUTURE[1]}')
            - avg(air_temperature) FILTER (WHERE time BETWEEN '{PAST[0]}' AND '{PAST[1]}')
            AS warming
        FROM run GROUP BY latitude, longitude""")
    draw_map(warming, output / "map.png")

    title("writing: anomalies from the first thirty years, as a new array on a branch")
    baseline = run.where(F.col("time").between(*PAST)).groupBy("latitude", "longitude")
    anomalies = run.join(baseline.agg(F.avg("air_temperature").alias("normal")), GRID).select(
        "time", *GRID, (F.col("air_temperature") - F.col("normal")).cast("float").alias("anomaly")
    )
    anomalies = anomalies.cache()
    done = icechunk_spark.write(
        anomalies,
        path,
        mode="append",
        merge_schema=True,
        branch="anomalies",
        createBranch=True,
        chunks={"time": 24},
        message="Anomalies from the mean of 1860 to 1889",
    )
    print(
        f"commit {done.snapshot_id} on branch anomalies: {done.rows:,} rows, {done.chunks} chunks"
    )

    title("audit on the branch, then publish")
    candidate = reader(spark, path).option("branch", "anomalies").option("variables", "anomaly")
    bias = candidate.option("sel", f"time={PAST[0]}:1889-12-30").load().agg(F.avg("anomaly"))
    if abs(bias.first()[0]) > 1e-4:
        sys.exit("the mean anomaly of the baseline is not zero; main was not changed")
    Repository.open(path).fast_forward("main", "anomalies")
    print("the mean anomaly of the baseline is zero: main now has two arrays")

    title("comparison with xarray and the reference library")
    repository = icechunk.Repository.open(reference_storage(path))
    store = repository.readonly_session("main").store
    oracle = xr.open_zarr(store, consolidated=False)
    kelvin = oracle["air_temperature"].astype("float64")
    by_area = kelvin.weighted(np.cos(np.radians(kelvin["latitude"].astype("f8")))).mean(GRID)
    apart = float(abs(series - by_area).max())
    first, last = float(series[0]), float(series[-1])
    print(f"series: {first:.2f} to {last:.2f} K, from xarray by at most {apart:.1e} K")
    in_spark = run.agg(F.avg("air_temperature")).first()[0]
    print(f"mean of all cells: Spark {in_spark:.6f} K, xarray {float(kelvin.mean()):.6f} K")
    expected = kelvin - kelvin.sel(time=slice(PAST[0], "1889-12-30")).mean("time")
    worst = float(abs(oracle["anomaly"] - expected).max())
    print(f"anomalies: largest difference between Spark and xarray {worst:.1e} K")
    if not np.isclose(in_spark, float(kelvin.mean()), rtol=1e-9) or max(worst, apart) > 1e-4:
        sys.exit("Spark and xarray disagree")
    spark.stop()

    print(f"\npictures: {output / 'series.png'}\n          {output / 'map.png'}")
    print(f"done in {time.perf_counter() - started:.0f} s; the repository is kept at {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="From a climate run to Spark and back.")
    parser.add_argument("output", nargs="?", default="demo-output", type=Path)
    parser.add_argument("--master", default="local[2]", help="URL of a Spark master")
    parser.add_argument("--repository", help="URL below which the repository is created")
    given = parser.parse_args()
    main(given.output.absolute(), given.master, given.repository)
