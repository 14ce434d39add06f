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

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import icechunk
import iris_sample_data
import matplotlib as mpl
import numpy as np
import pandas as pd
import pyproj
import shapely
import xarray as xr
from bokeh_sampledata import us_counties, us_states
from PIL import Image
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icechunk_spark

mpl.use("Agg")
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


def outlines(geometries: list[shapely.Geometry]) -> list[list[np.ndarray]]:
    """Return the rings of each geometry in an equal-area projection of North America, in km."""
    albers = pyproj.Transformer.from_crs("EPSG:4269", "EPSG:5070", always_xy=True)
    rings = []
    for geometry in geometries:
        polygons = shapely.get_parts(geometry)
        exteriors = [shapely.get_coordinates(polygon.exterior) for polygon in polygons]
        rings.append([np.column_stack(albers.transform(*ring.T)) / 1000 for ring in exteriors])
    return rings


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the counties in classes of half a degree, under the borders of the states."""
    import matplotlib.pyplot as plt
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import BoundaryNorm, ListedColormap

    states = [state["geometry"] for state in us_states.records() if state["code"] in CONTIGUOUS]
    lowest, highest = found["warming"].min(), found["warming"].max()
    classes = np.arange(np.floor(lowest * 2) / 2, np.ceil(highest * 2) / 2 + 0.25, 0.5)
    inferno = plt.get_cmap("inferno_r")
    colors = ListedColormap(inferno(np.linspace(0.06, 0.85, len(classes) - 1)))
    norm = BoundaryNorm(classes, colors.N)

    rings = outlines(found["geometry"].tolist())
    values = np.repeat(found["warming"].to_numpy(), [len(parts) for parts in rings])
    figure = plt.figure(figsize=(10, 6.9))
    axes = figure.add_axes((0.01, 0.1, 0.98, 0.8))
    axes.add_collection(
        PolyCollection(
            [ring for parts in rings for ring in parts],
            array=values,
            cmap=colors,
            norm=norm,
            edgecolor=(1, 1, 1, 0.3),
            linewidth=0.25,
        )
    )
    borders = [ring for parts in outlines(states) for ring in parts]
    axes.add_collection(LineCollection(borders, color="white", linewidth=1.1))
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.set_axis_off()
    title = "Every county of the contiguous USA, by how much it warms"
    figure.text(0.03, 0.94, title, fontsize=19, fontweight="bold", color="0.15")
    about = "Air temperature at the surface, 2070–2099 minus 1961–1990, climate scenario A1B"
    figure.text(0.03, 0.9, about, fontsize=12.5, color="0.35")
    bar = figure.add_axes((0.05, 0.1, 0.42, 0.025))
    scale = figure.colorbar(mpl.cm.ScalarMappable(norm, colors), cax=bar, orientation="horizontal")
    scale.outline.set_visible(False)
    scale.set_ticks(classes[classes == np.round(classes)])
    scale.ax.xaxis.set_major_formatter(lambda degrees, _: f"+{degrees:.0f} °C")
    scale.ax.minorticks_off()
    scale.ax.tick_params(length=0, labelsize=12, labelcolor="0.25")
    figure.savefig(file, dpi=100, facecolor="white")
    # A palette holds all colours of the picture, in a third of the bytes.
    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)


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
    picture = PICTURES / "county_warming.png"
    draw(shapes.merge(found[["fips", "warming"]], on="fips"), picture)
    print(f"drew {picture}")
    spark.stop()


if __name__ == "__main__":
    main()
