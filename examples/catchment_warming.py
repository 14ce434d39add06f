"""Computes zonal statistics: the projected warming of catchments, for each polygon and year.

The temperatures are those of a climate model from 1860 to 2099 (iris-sample-data), the catchments
are synthetic. Draws a map of the warming. Run it with
``python examples/catchment_warming.py [output folder]``.
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
import shapely
import xarray as xr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icechunk_spark

mpl.use("Agg")
OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "catchment-warming"
FILE = Path(iris_sample_data.__file__).parent / "sample_data" / "A1B_north_america.nc"


def store_temperatures(path: str) -> None:
    """Store the model's yearly temperatures: longitudes from 225 to 315, a calendar of 360 days."""
    icechunk.set_logs_filter("off")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    temperatures = xr.open_dataset(FILE)[["air_temperature"]].drop_encoding()
    temperatures["time"].encoding = {"units": "days since 1860-01-01", "calendar": "360_day"}
    chunks = {"air_temperature": {"chunks": (60, 19, 25)}}
    temperatures.to_zarr(session.store, consolidated=False, encoding=chunks)
    session.commit("yearly temperatures")


def catchments(count: int) -> list[tuple[int, bytes]]:
    """Return synthetic catchments: cells around random springs, with curved borders."""
    random = np.random.default_rng(7)
    region = shapely.box(-132, 20, -55, 58)
    springs = shapely.multipoints(random.uniform((-132, 20), (-55, 58), (count, 2)))
    cells = shapely.get_parts(shapely.voronoi_polygons(springs, extend_to=region))
    fine = shapely.segmentize(shapely.intersection(cells, region), 0.2)
    waves = [(random.uniform(0, 2 * np.pi, 2), 2.0**n) for n in range(3) for _ in range(3)]

    def bend(points: np.ndarray) -> np.ndarray:
        moved = points.copy()
        for (angle, phase), pitch in waves:
            along = points @ [np.cos(angle), np.sin(angle)]
            shift = 0.1 / pitch * np.sin(3 * pitch / 2 * along + phase)
            moved += shift[:, None] * [-np.sin(angle), np.cos(angle)]
        return moved

    return list(enumerate(shapely.to_wkb(shapely.transform(fine, bend)).tolist()))


def warming(spark: SparkSession, zones: DataFrame, path: str) -> DataFrame:
    """Return the warming of each catchment from 1961-1990 to 2070-2099."""
    yearly = icechunk_spark.zonal(
        zones, path, variables=["air_temperature"], statistics=["mean"], weights="area"
    )
    year = F.substring("time", 1, 4).cast("int")  # a calendar of 360 days comes as text

    def between(first: int, last: int) -> F.Column:
        return F.avg(F.when(year.between(first, last), F.col("air_temperature_mean")))

    late, early = between(2070, 2099), between(1961, 1990)
    return yearly.groupBy("catchment").agg((late - early).alias("warming"))


def draw(zones: list[tuple[int, bytes]], values: dict[int, float], file: Path) -> None:
    """Draw the catchments by their values."""
    import matplotlib.pyplot as plt
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Polygon

    shapes = [(number, shapely.from_wkb(wkb)) for number, wkb in zones]
    rings = [Polygon(shapely.get_coordinates(shape.exterior)) for _, shape in shapes]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    drawn = PatchCollection(rings, cmap="YlOrRd", edgecolor="white", linewidth=0.4)
    drawn.set_array([values[number] for number, _ in shapes])
    axes.add_collection(drawn)
    axes.set(
        xlim=(-133, -54),
        ylim=(19, 59),
        aspect=1.3,
        xlabel="longitude",
        ylabel="latitude",
        title="Warmer in 2070 to 2099 than in 1961 to 1990, scenario A1B",
    )
    figure.colorbar(drawn, label="degrees Celsius", shrink=0.8)
    figure.savefig(file, dpi=80, bbox_inches="tight")


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    path = str(OUTPUT / "repository")
    store_temperatures(path)
    spark = SparkSession.builder.master("local[2]").appName("catchments").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.shuffle.partitions", 2)

    made = catchments(150)
    zones = spark.createDataFrame(made, "catchment int, geometry binary")
    values = {row.catchment: row.warming for row in warming(spark, zones, path).collect()}
    most = max(values, key=values.__getitem__)
    print(f"{len(values)} catchments, {240 * len(values):,} yearly means")
    print(f"catchment {most} warms most: by {values[most]:.2f} degrees")
    draw(made, values, OUTPUT / "catchment_warming.png")
    print(f"wrote {OUTPUT / 'catchment_warming.png'}")
    spark.stop()


if __name__ == "__main__":
    main()
