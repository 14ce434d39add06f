"""Samples a grid at points: yearly temperatures of 7,326 cities, without a row per grid cell.

The grid is that of a climate model, 240 years over North America (PyPI's ``iris-sample-data``). The
cities are those of geonames.org with more than 5,000 inhabitants (PyPI's ``bokeh-sampledata``).
The temperature of a city in a year is interpolated between cells. The picture shows the years of
twenty cities as stripes. Run it with ``python examples/city_stripes.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import icechunk
import iris_sample_data
import pandas as pd
import xarray as xr
from bokeh_sampledata import world_cities
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "city-stripes"
PICTURES = OUTPUT if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
FILE = Path(iris_sample_data.__file__).parent / "sample_data" / "A1B_north_america.nc"
# Names are not unique, so the latitude is part of the key.
SHOWN = {
    "Edmonton": 54,
    "Winnipeg": 50,
    "Vancouver": 49,
    "Seattle": 48,
    "Québec": 47,
    "Montréal": 46,
    "Toronto": 44,
    "Boston": 42,
    "Chicago": 42,
    "Salt Lake City": 41,
    "Philadelphia": 40,
    "Denver": 40,
    "San Francisco": 38,
    "Los Angeles": 34,
    "Atlanta": 34,
    "Phoenix": 33,
    "Houston": 30,
    "Miami": 26,
    "Havana": 23,
    "Mexico City": 19,
}


def write_grid() -> pd.Index:
    """Store the file in a repository with the reference library, and return its times."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    dataset = xr.open_dataset(FILE)[["air_temperature"]].drop_encoding()
    dataset["time"].encoding = {"units": "days since 1860-01-01", "calendar": "360_day"}
    icechunk.set_logs_filter("off")
    storage = icechunk.local_filesystem_storage(str(OUTPUT / "repository"))
    session = icechunk.Repository.create(storage).writable_session("main")
    chunks = {"air_temperature": {"chunks": (24, 37, 49)}}
    dataset.to_zarr(session.store, consolidated=False, encoding=chunks)
    session.commit("Yearly temperatures, scenario A1B")
    return dataset.indexes["time"]


def cities() -> pd.DataFrame:
    """Return the name and the position of each city inside of the grid."""
    found = world_cities.data
    inside = found["lat"].between(16, 59) & found["lng"].between(-134, -46)
    return found[inside].reset_index(names="city").rename(columns={"lng": "lon"})


def anomalies(sampled: DataFrame) -> DataFrame:
    """Return each city's yearly deviations from its own mean of 1961 to 1990."""
    normal = F.avg(F.when(F.year("at").between(1961, 1990), F.col("air_temperature")))
    of_city = normal.over(Window.partitionBy("city"))
    return sampled.withColumn("anomaly", F.col("air_temperature") - of_city)


def draw(shown: pd.DataFrame, file: Path) -> None:
    """Draw a row of stripes for each city, from north to south."""
    grid = shown.pivot(index="lat", columns="year", values="anomaly").sort_index(ascending=False)
    names = shown.drop_duplicates("lat").set_index("lat")["name"].loc[grid.index]
    figure = drawing.figure(
        "240 years of twenty cities, from north to south",
        "Yearly air temperature minus the mean of 1961–1990, scenario A1B",
        height=6.2,
        source="Model: Met Office; cities: geonames.org",
    )
    axes = drawing.plain(figure.add_axes((0.21, 0.135, 0.76, 0.735)), labelsize=11)
    first, last = grid.columns[0], grid.columns[-1] + 1
    stripes = axes.imshow(
        grid.to_numpy(),
        cmap="RdBu_r",
        vmin=-8,
        vmax=8,
        aspect="auto",
        interpolation="nearest",
        extent=(first, last, len(names), 0),
    )
    axes.hlines(range(1, len(names)), first, last, color="white", linewidth=1.5)
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    axes.set_xticks(range(1900, last, 50))
    labels = {-8: "−8 °C", 0: "0", 8: "+8 °C"}
    drawing.scale(figure, stripes, (0.21, 0.07, 0.36, 0.02), labels)
    drawing.save(figure, file)


def main() -> None:
    times = write_grid()
    found = cities()
    spark = SparkSession.builder.master("local[2]").appName("cities").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    # The calendar of the model has 360 days; `sample` matches 1 June by calendar date.
    years = f"sequence(DATE'{times[0].year}-06-01', DATE'{times[-1].year}-06-01', INTERVAL 1 YEAR)"
    points = spark.createDataFrame(found).withColumn("at", F.explode(F.expr(years)))
    sampled = icechunk_spark.sample(
        points.withColumn("at", F.col("at").cast("timestamp_ntz")),
        str(OUTPUT / "repository"),
        on={"time": "at", "latitude": "lat", "longitude": "lon"},
        method={"time": "nearest", "latitude": "linear", "longitude": "linear"},
    )
    result = anomalies(sampled).withColumn("year", F.year("at")).cache()
    print(f"{len(found):,} cities, {result.count():,} temperatures")
    late = result.where("year >= 2070").groupBy("name", "city").agg(F.avg("anomaly").alias("by"))
    late.orderBy(F.desc("by")).select("name", F.round("by", 1).alias("warmer_by")).show(3)
    near = F.create_map(*[F.lit(value) for pair in SHOWN.items() for value in pair])
    shown = result.where(F.abs(F.col("lat") - near[F.col("name")]) < 0.6).toPandas()
    draw(shown, PICTURES / "city_stripes.png")
    spark.stop()


if __name__ == "__main__":
    main()
