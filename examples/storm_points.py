"""Samples a grid at points: the climate along storm tracks, without a row per grid cell.

The grid is a climate model's (``iris-sample-data``: 240 years of a calendar with 360 days), the
storms are synthetic. Each position of a storm gets the air temperature there in its year. Run it
with ``python examples/storm_points.py [output folder]``; the picture is in ``docs/pictures``.
"""

import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import icechunk
import iris_sample_data
import matplotlib as mpl
import numpy as np
import pandas as pd
import xarray as xr
from PIL import Image
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import icechunk_spark

mpl.use("Agg")
import matplotlib.pyplot as plt

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "storm-points"
PICTURES = OUTPUT if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
FILE = Path(iris_sample_data.__file__).parent / "sample_data" / "A1B_north_america.nc"


def write_grid() -> xr.Dataset:
    """Store the file in a repository with the reference library."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    dataset = xr.open_dataset(FILE)[["air_temperature"]].drop_vars("forecast_reference_time")
    dataset["air_temperature"].encoding = {"chunks": (24, 37, 49)}
    icechunk.set_logs_filter("off")
    storage = icechunk.local_filesystem_storage(str(OUTPUT))
    session = icechunk.Repository.create(storage).writable_session("main")
    dataset.to_zarr(session.store, consolidated=False)
    session.commit("The A1B scenario over North America")
    return dataset


def storm_tracks(storms: int = 60, steps: int = 40) -> pd.DataFrame:
    """Return synthetic storms that move west and turn north-east, a row for each six hours."""
    random = np.random.default_rng(1859)
    begin = pd.to_datetime(random.choice(pd.date_range("1980-07-01", "2090-09-30"), storms))
    heading = random.uniform(170, 200, storms)
    turning = -random.uniform(1.0, 3.6, storms)
    latitude, longitude = random.uniform(16, 22, storms), random.uniform(-68, -48, storms)
    rows = []
    for step in range(steps):
        rows.append(
            pd.DataFrame(
                {
                    "storm": np.arange(storms),
                    "at": begin + pd.Timedelta(hours=6 * step),
                    "lat": latitude,
                    "lon": longitude,
                }
            )
        )
        angle = np.deg2rad(heading + turning * step)
        latitude = latitude + 0.8 * np.sin(angle)
        longitude = longitude + 1.0 * np.cos(angle)
    return pd.concat(rows, ignore_index=True)


def draw(sampled: pd.DataFrame, dataset: xr.Dataset) -> Path:
    figure, axes = plt.subplots(figsize=(8, 5.4), layout="constrained")
    mean = dataset["air_temperature"].mean("time")
    longitudes = mean["longitude"].values - 360
    lines = axes.contour(
        longitudes, mean["latitude"], mean.values, levels=12, colors="0.75", linewidths=0.8
    )
    axes.clabel(lines, fmt="%.0f K", fontsize=7)
    points = axes.scatter(
        sampled["lon"], sampled["lat"], c=sampled["air_temperature"], s=9, cmap="plasma", zorder=2
    )
    figure.colorbar(points, label="air temperature of place and year (K)")
    axes.set(
        xlabel="longitude",
        ylabel="latitude",
        title="Made-up storms, and the scenario A1B where and when they pass",
    )
    picture = PICTURES / "storm_points.png"
    figure.savefig(picture, dpi=100)
    # A palette holds all colours of the picture, in a third of the bytes.
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)
    return picture


def main() -> None:
    dataset = write_grid()
    tracks = storm_tracks()
    spark = SparkSession.builder.master("local[2]").appName("storm-points").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Longitudes count from -180 here and from 0 in the grid, whose months all have 30 days.
    at = F.when(F.dayofmonth("at") == 31, F.expr("at - INTERVAL 1 DAY")).otherwise(F.col("at"))
    sampled = icechunk_spark.sample(
        spark.createDataFrame(tracks, "storm int, at timestamp_ntz, lat double, lon double"),
        str(OUTPUT),
        on={"time": at, "latitude": "lat", "longitude": "lon"},
        method={"time": "nearest", "latitude": "linear", "longitude": "linear"},
        tolerance={"time": "360 days"},
    )
    found = sampled.where("air_temperature IS NOT NULL").count()
    print(f"{len(tracks):,} positions, {found:,} with a temperature")
    decade = (F.year("at") / 10).cast("int") * 10
    sampled.groupBy(decade.alias("decade")).agg(
        F.count("air_temperature").alias("positions"),
        F.round(F.avg("air_temperature"), 2).alias("kelvin"),
    ).orderBy("decade").show()
    picture = draw(sampled.toPandas(), dataset)
    print(f"drew {picture}")
    spark.stop()


if __name__ == "__main__":
    main()
