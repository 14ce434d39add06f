"""Virtualizes NetCDF files as one dataset on Spark, without copying them.

A week of files becomes one repository of references, one file of it is broken, and the next day is
added by the same call. Then Spark and the reference library read all of it as one dataset.
Run it with ``python examples/virtual_from_netcdf.py [output folder [picture.png]]``; it needs
``pip install 'icechunk-spark[virtualize]'``, and matplotlib for the picture.
"""

import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import icechunk
import numpy as np
import xarray as xr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "virtual-from-netcdf"
PICTURE = sys.argv[2] if len(sys.argv) > 2 else None
SHAPE, CHUNK = (24, 73, 144), (12, 73, 72)


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("virtual-from-netcdf").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def write_day(folder: Path, day: int) -> None:
    """Write one compressed NetCDF4 file, as an archive has them: a warm spot that moves east."""
    latitude, longitude = np.linspace(90, -90, SHAPE[1]), np.arange(SHAPE[2]) * 2.5
    hour = np.arange(SHAPE[0])
    away = np.radians(longitude - 40 * day - 90)
    spot = 12 * np.exp(-(((latitude[:, None] - 35) / 15) ** 2)) * (1 + np.cos(away))
    base = 288 + 25 * np.cos(2 * np.radians(latitude))[:, None]
    values = base + spot + 3 * np.sin(hour / 24 * 2 * np.pi)[:, None, None]
    units = {"units": f"hours since 2024-07-{day + 1:02}"}  # of its own in each file
    data = xr.Dataset(
        {"t2m": (("time", "latitude", "longitude"), values.astype("float32"), {"units": "K"})},
        {"time": ("time", hour, units), "latitude": latitude, "longitude": longitude},
    )
    storage = {"chunksizes": CHUNK, "zlib": True, "complevel": 4, "shuffle": True}
    file = folder / f"2024-07-{day + 1:02}.nc"
    data.to_netcdf(file, engine="h5netcdf", encoding={"t2m": storage})


def draw(table, file: str) -> None:
    """Draw the mean of each grid cell, which Spark has computed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grid = table.pivot(index="latitude", columns="longitude", values="t2m")
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    mesh = axes.pcolormesh(grid.columns, grid.index, grid.to_numpy() - 273.15, cmap="inferno")
    axes.set(xlabel="longitude", ylabel="latitude", title="Mean of 6 files, none of them copied")
    figure.colorbar(mesh, label="2 m temperature (°C)")
    figure.savefig(file, dpi=80)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    folder, path = OUTPUT / "archive", str(OUTPUT / "repository")
    folder.mkdir(parents=True)
    for day in range(5):
        write_day(folder, day)
    (folder / "2024-07-06.nc").write_bytes(b"<html>503 Slow Down</html>")
    spark = start()

    done = icechunk_spark.virtualize(
        spark, f"{folder}/*.nc", path, concat_dim="time", on_mismatch="skip"
    )
    print(f"{done.references} chunks of {done.files_added} files are referenced, none was copied")
    for row in done.report.where("status = 'refused'").collect():
        print(f"left out: {Path(row.file).name}: {row.difference}")

    # The broken file is replaced by a valid one, which adds one more day.
    write_day(folder, 5)
    done = icechunk_spark.virtualize(spark, f"{folder}/*.nc", path, concat_dim="time")
    print(f"the next run added {done.files_added} file and knew {done.files_skipped}")

    # Reads outside of the repository must be authorised.
    t2m = icechunk_spark.read(spark, path, virtual_authorize=done.places)
    t2m.groupBy(F.to_date("time").alias("day")).agg(
        F.count("*").alias("cells"), F.round(F.avg("t2m"), 3).alias("mean")
    ).orderBy("day").show()
    if PICTURE is not None:
        draw(
            t2m.groupBy("latitude", "longitude").agg(F.avg("t2m").alias("t2m")).toPandas(), PICTURE
        )

    access = icechunk.credentials.LocalFileSystemAccess
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(path),
        authorize_virtual_chunk_access=dict.fromkeys(done.places, access),
    )
    seen = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    files = sorted(folder.glob("*.nc"))
    originals = xr.concat([xr.open_dataset(file) for file in files], "time", data_vars="minimal")
    print("the reference library reads the numbers that are in the files:", seen.equals(originals))
    spark.stop()


if __name__ == "__main__":
    main()
