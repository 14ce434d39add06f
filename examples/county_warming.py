"""Computes zonal statistics: the projected warming of 3,109 counties of the USA.

Temperatures are those of a climate model from 1860 to 2099, scenario A1B (PyPI's
``iris-sample-data``). Boundaries are those of the US Census Bureau, TIGER/Line (PyPI's
``bokeh-sampledata``). Draws a map of the warming in an equal-area projection. Run it with
``python examples/county_warming.py [output folder]``.
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
import numpy as np
import pandas as pd
import shapely
import xarray as xr
from bokeh_sampledata import us_counties, us_states
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "county-warming"
PICTURES = OUTPUT if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
FILE = Path(iris_sample_data.__file__).parent / "sample_data" / "A1B_north_america.nc"
CONTIGUOUS = {state["code"] for state in us_states.records()} - {"AK", "HI"}


def write_temperatures(path: str) -> None:
    """Store the model's yearly temperatures: longitudes from 225 to 315, a calendar of 360 days."""
    icechunk.set_logs_filter("off")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    temperatures = xr.open_dataset(FILE)[["air_temperature"]].drop_encoding()
    temperatures["time"].encoding = {"units": "days since 1860-01-01", "calendar": "360_day"}
    chunks = {"air_temperature": {"chunks": (60, 19, 25)}}
    temperatures.to_zarr(session.store, consolidated=False, encoding=chunks)
    session.commit("Yearly temperatures, scenario A1B")


def counties() -> pd.DataFrame:
    """Return name, state and polygon of each county of the contiguous states."""
    found = pd.DataFrame(us_counties.records())[["fips", "detailed_name", "state", "geometry"]]
    return found[found["state"].isin(CONTIGUOUS)].reset_index(drop=True)


def warming(spark: SparkSession, zones: DataFrame, path: str) -> DataFrame:
    """Return the warming of each county from 1961-1990 to 2070-2099."""
    yearly = icechunk_spark.zonal(
        zones, path, variables=["air_temperature"], statistics=["mean"], weights="area"
    )
    year = F.substring("time", 1, 4).cast("int")  # times of a 360-day calendar are strings

    def between(first: int, last: int) -> F.Column:
        return F.avg(F.when(year.between(first, last), F.col("air_temperature_mean")))

    late, early = between(2070, 2099), between(1961, 1990)
    return yearly.groupBy("fips", "detailed_name").agg((late - early).alias("warming"))


def rings(geometry: shapely.Geometry) -> list[np.ndarray]:
    """Return the outlines of a county in degrees."""
    return [shapely.get_coordinates(part.exterior) for part in shapely.get_parts(geometry)]


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the counties in classes of half a degree, under the borders of the states."""
    lowest, highest = found["warming"].min(), found["warming"].max()
    classes = np.arange(np.floor(lowest * 2) / 2, np.ceil(highest * 2) / 2 + 0.25, 0.5)
    colors = drawing.HEAT.resampled(len(classes) - 1)
    norm = BoundaryNorm(classes, colors.N)
    figure = drawing.figure(
        "Every county of the contiguous USA, by its warming",
        "Surface air temperature, 2070–2099 minus 1961–1990, scenario A1B",
        height=5.2,
        source="Model: Met Office, scenario A1B; counties: US Census Bureau",
    )
    axes = figure.add_axes((0, 0.13, 1, 0.74))
    outlines = [rings(geometry) for geometry in found["geometry"]]
    drawing.usa(axes, outlines, found["warming"].to_numpy(), cmap=colors, norm=norm)
    whole = classes[classes == np.round(classes)]
    labels = {degrees: f"+{degrees:.0f} °C" for degrees in whole}
    drawing.scale(figure, ScalarMappable(norm, colors), (0.05, 0.095, 0.55, 0.03), labels)
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    path = str(OUTPUT / "repository")
    write_temperatures(path)
    spark = SparkSession.builder.master("local[2]").appName("counties").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.shuffle.partitions", 2)

    shapes = counties()
    rows = shapes.assign(geometry=shapely.to_wkb(shapes["geometry"]))
    zones = spark.createDataFrame(rows[["fips", "detailed_name", "geometry"]])
    found = warming(spark, zones, path).toPandas()
    print(f"{len(found):,} counties, {240 * len(found):,} yearly means")
    for word, row in (("most", found["warming"].idxmax()), ("least", found["warming"].idxmin())):
        name, degrees = found.loc[row, ["detailed_name", "warming"]]
        print(f"{name} warms {word}: by {degrees:.1f} degrees Celsius")
    draw(shapes.merge(found[["fips", "warming"]], on="fips"), PICTURES / "county_warming.png")
    spark.stop()


if __name__ == "__main__":
    main()
