"""Makes one array of many NetCDF files without copying them; a Spark task lists each file's chunks.

Each task reads the offsets and lengths of a variable's chunks from one file with h5py. Those rows
become virtual references with ``layout=refs``, which also works for datasets of millions of chunks.
Then Spark and the reference library read the archive as one array.
Run it with ``python examples/virtual_from_netcdf.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import h5py
import icechunk
import numpy as np
import pyarrow as pa
import xarray as xr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "virtual-from-netcdf"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("virtual-from-netcdf").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


DAYS, SHAPE, CHUNK = 5, (24, 73, 144), (12, 73, 72)
DIMS = ("time", "latitude", "longitude")


def make_archive(folder: Path) -> list[str]:
    """Write one compressed NetCDF4 file per day, as an archive has them."""
    folder.mkdir(parents=True)
    latitude = np.linspace(90, -90, SHAPE[1])
    files = []
    for day in range(DAYS):
        hour = np.arange(SHAPE[0]) + 24 * day
        values = 288 + 25 * np.cos(2 * np.radians(latitude))[:, None] + np.zeros(SHAPE)
        values += 3 * np.sin(hour / 24 * 2 * np.pi)[:, None, None] + day
        data = xr.Dataset(
            {"t2m": (DIMS, values.astype("float32"))},
            {"time": hour, "latitude": latitude, "longitude": np.arange(SHAPE[2]) * 2.5},
        )
        file = folder / f"2024-07-{day + 1:02}.nc"
        storage = {"chunksizes": CHUNK, "zlib": True, "complevel": 4, "shuffle": True}
        data.to_netcdf(file, engine="h5netcdf", encoding={"t2m": storage})
        files.append(str(file.resolve()))
    return files


def list_chunks(batches):
    """Return where each chunk of each array lies, for batches of (day, file)."""
    for batch in batches:
        rows = []
        for day, path in zip(*batch.to_pydict().values(), strict=True):
            with h5py.File(path) as file:
                for name in ("t2m", *DIMS):
                    # Every file has the same latitudes and longitudes: the first one's are taken.
                    if day == 0 or name not in ("latitude", "longitude"):
                        rows += [(name, path, *found) for found in chunks_of(file[name], day)]
        names = ("array", "location", "chunk", "offset", "length")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        yield pa.RecordBatch.from_pylist(found, schema=REFS)


def chunks_of(dataset, day):
    """Return the chunk index in the whole archive, the offset and the length of each chunk."""
    stored = dataset.id
    if dataset.chunks is None:  # stored in one piece
        return [([day], stored.get_offset(), stored.get_storage_size())]
    found = []
    for number in range(stored.get_num_chunks()):
        chunk = stored.get_chunk_info(number)
        index = [start // size for start, size in zip(chunk.chunk_offset, CHUNK, strict=True)]
        index[0] += day * SHAPE[0] // CHUNK[0]
        found.append((index, chunk.byte_offset, chunk.size))
    return found


REFS = pa.schema(
    [
        ("array", pa.string()),
        ("location", pa.string()),
        ("chunk", pa.list_(pa.int64())),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT / "repository")
    files = make_archive(OUTPUT / "archive")
    spark = start()

    archive = spark.createDataFrame(list(enumerate(files)), "day int, file string").repartition(2)
    refs = archive.mapInArrow(
        list_chunks,
        "array string, location string, chunk array<bigint>, offset bigint, length bigint",
    )
    refs = refs.withColumn("location", F.concat(F.lit("file://"), "location"))
    refs = refs.withColumn("kind", F.lit("virtual"))

    compressed = [
        {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}},
        {"name": "numcodecs.zlib", "configuration": {"level": 4}},
    ]
    sizes = (DAYS * SHAPE[0], *SHAPE[1:])
    arrays = {
        name: {"shape": [size], "chunks": [own], "dtype": kind, "dims": [name], "compressors": []}
        for name, size, own, kind in zip(
            DIMS, sizes, SHAPE, ("int64", "float64", "float64"), strict=True
        )
    }
    arrays["time"]["attributes"] = {"units": "hours since 2024-07-01", "calendar": "standard"}
    arrays["t2m"] = {
        "shape": sizes,
        "chunks": CHUNK,
        "dtype": "float32",
        "dims": DIMS,
        "compressors": compressed,
    }
    done = icechunk_spark.write(
        refs, path, mode="append", layout="refs", encoding=arrays, message="Five days, virtual"
    )
    print(f"{done.chunks} chunks of {len(files)} files are referenced, and none was copied")

    place = f"file://{(OUTPUT / 'archive').resolve()}/"
    virtual = spark.read.format("icechunk").option("virtual.authorize", place).load(path)
    virtual.groupBy(F.to_date("time").alias("day")).agg(
        F.count("*").alias("cells"), F.round(F.avg("t2m"), 3).alias("mean")
    ).orderBy("day").show()

    # The write has added the place to the configuration; the reference library wants to hear, as
    # well, that it may read there.
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(path),
        authorize_virtual_chunk_access={place: icechunk.credentials.LocalFileSystemAccess},
    )
    seen = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    originals = [xr.open_dataset(file)["t2m"].values for file in files]
    same = np.array_equal(seen["t2m"].values, np.concatenate(originals))
    print("the reference library reads the numbers that are in the files:", same)
    spark.stop()


if __name__ == "__main__":
    main()
