"""Virtualizes NetCDF files as one dataset on Spark, without copying them, and finds El Niño.

The archive has one file for each year of monthly sea surface temperatures along the equator (OSTIA,
2006 to 2010, from PyPI's ``iris-sample-data``). One file is damaged and is left out; the next call
adds its replacement. Spark and the reference library read all files as one dataset. The picture is
a Hovmöller diagram of the Pacific: longitude to the right, time downwards.

Run it with ``python examples/virtual_from_netcdf.py [output folder]``; it needs
``pip install 'icechunk-spark[virtualize]' iris-sample-data matplotlib netCDF4`` and the packages of
``drawing.py``.
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
import xarray as xr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "virtual-from-netcdf"
PICTURES = OUTPUT if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
OSTIA = Path(iris_sample_data.__file__).parent / "sample_data" / "ostia_monthly.nc"
PACIFIC = (140, 280)  # degrees east, from New Guinea to Peru


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("virtual-from-netcdf").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def write_year(folder: Path, year: int) -> None:
    """Write the months of a year as one compressed NetCDF4 file, as is usual in archives."""
    ostia = xr.open_dataset(OSTIA, decode_timedelta=True)[["surface_temperature"]]
    months = ostia.reset_coords(drop=True).sel(time=str(year)).drop_encoding()
    encoding = {
        "surface_temperature": {"chunksizes": (1, 18, 432), "zlib": True, "shuffle": True},
        "time": {"units": f"days since {year}-01-01"},  # different in each file
    }
    file = folder / f"ostia-{year}.nc"
    months.to_netcdf(file, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])


def anomalies(sea: DataFrame) -> DataFrame:
    """Return the difference of each month and longitude from the mean of that calendar month."""
    means = (
        sea.where(F.col("longitude").between(*PACIFIC))
        .groupBy("time", "longitude")
        .agg(F.avg("surface_temperature").alias("kelvin"))
    )
    usual = F.avg("kelvin").over(Window.partitionBy("longitude", F.month("time")))
    return means.select("time", "longitude", (F.col("kelvin") - usual).alias("anomaly"))


def draw(found: DataFrame, file: Path) -> None:
    """Draw the anomalies: longitude to the right, time downwards."""
    grid = found.toPandas().pivot(index="time", columns="longitude", values="anomaly")
    figure = drawing.figure(
        "El Niño, read from files that were not copied",
        "Sea surface along the equator, difference from the usual month",
        height=5.2,
        source="OSTIA sea surface temperature, Met Office",
    )
    axes = drawing.plain(figure.add_axes((0.095, 0.2, 0.875, 0.6)), labelsize=11)
    axes.set_facecolor("0.8")
    mesh = axes.pcolormesh(
        grid.columns,
        grid.index,
        grid.to_numpy(),
        cmap="RdBu_r",
        vmin=-2.5,
        vmax=2.5,
        shading="nearest",
    )
    axes.invert_yaxis()
    for month, words in (("2007-12", "La Niña"), ("2009-12", "El Niño")):
        place = (222, np.datetime64(f"{month}-16"))
        axes.annotate(words, place, ha="center", va="center", fontsize=15, color="white")
    degrees = np.arange(150, 271, 30)
    east = [f"{d}°E" if d < 180 else f"{360 - d}°W".replace("180°W", "180°") for d in degrees]
    axes.set_xticks(degrees, east)
    years = range(2007, 2011)
    axes.set_yticks([np.datetime64(f"{year}-01-01") for year in years], years)
    figure.text(0.095, 0.815, "New Guinea", color=drawing.GREY)
    figure.text(0.97, 0.815, "Peru", color=drawing.GREY, ha="right")
    labels = {-2.5: "−2.5 °C", 0: "0", 2.5: "+2.5 °C"}
    drawing.scale(figure, mesh, (0.095, 0.1, 0.45, 0.028), labels)
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    folder, path = OUTPUT / "archive", str(OUTPUT / "repository")
    folder.mkdir(parents=True)
    for year in range(2006, 2010):
        write_year(folder, year)
    (folder / "ostia-2010.nc").write_bytes(b"<html>503 Slow Down</html>")
    spark = start()

    done = icechunk_spark.virtualize(
        spark, f"{folder}/*.nc", path, concat_dim="time", on_mismatch="skip"
    )
    print(f"{done.references} chunks of {done.files_added} files are referenced without copying")
    for row in done.report.where("status = 'refused'").collect():
        print(f"left out: {Path(row.file).name}: {row.difference}")

    # A valid file replaces the damaged one and adds one more year.
    write_year(folder, 2010)
    done = icechunk_spark.virtualize(spark, f"{folder}/*.nc", path, concat_dim="time")
    print(f"the next run added {done.files_added} file and skipped {done.files_skipped} known ones")

    # Reads outside of the repository must be authorized.
    sea = icechunk_spark.read(spark, path, virtual_authorize=done.places)
    sea.groupBy(F.year("time").alias("year")).agg(
        F.count("*").alias("cells"), F.round(F.avg("surface_temperature"), 2).alias("kelvin")
    ).orderBy("year").show()
    draw(anomalies(sea), PICTURES / "archives.png")

    access = icechunk.credentials.LocalFileSystemAccess
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(path),
        authorize_virtual_chunk_access=dict.fromkeys(done.places, access),
    )
    seen = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    files = sorted(folder.glob("*.nc"))
    originals = xr.concat([xr.open_dataset(file) for file in files], "time", data_vars="minimal")
    print("the reference library reads the values of the files:", seen.equals(originals))
    spark.stop()


if __name__ == "__main__":
    main()
