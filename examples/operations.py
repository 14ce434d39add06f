"""Runs a week of operations: files arrive, one is damaged, a day is redone, old snapshots expire.

Model output of seven days arrives as files, four a day. The fields are those of a climate model
over North America (``weather.py``): one model year represents one day, with an added daily cycle
and seeded noise. The grid is that of the model, the weather is synthetic. On each day

1. the new files become part of one dataset without being copied (``virtualize``),
2. a stream stores daily means in a second repository,
3. the means are averaged for each county (``zonal``),
4. a Delta table of the means is refreshed (``mirror``), and a tag keeps the state.

On Wednesday one file is damaged; the repaired file arrives on Thursday. Thursday's output is wrong
and is removed on Friday. On Saturday the day is redone on a branch, checked and merged, while
another writer commits to main. On Sunday old snapshots expire, garbage is collected, and the
repository is verified and copied. The picture shows the state of each day on each evening, read
from the tags.

Run it with ``python examples/operations.py [output folder]``. On a cluster, with everything on S3:
``--master spark://host:7077 --below s3://bucket/prefix`` (``make cluster`` does that).
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import fsspec
import numpy as np
import pandas as pd
import shapely
from bokeh_sampledata import us_counties
from matplotlib.patches import FancyBboxPatch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from weather import FIRST, field

import icechunk_spark
from icechunk_format import Repository
from icechunk_spark import maintenance

DAYS = [FIRST + timedelta(days=day) for day in range(7)]
PLAUSIBLE = (200, 330)  # kelvin, for a daily mean


class Week:
    """The locations of a week's data, and the daily steps."""

    def __init__(self, spark: SparkSession, base: str, local: Path, counties: DataFrame) -> None:
        self.spark, self.counties = spark, counties
        self.files, self.rerun = f"{base}/files", f"{base}/rerun"
        self.model, self.means, self.table = f"{base}/model", f"{base}/means", f"{base}/table"
        self.archive = f"{base}/archive"
        self.checkpoint = str(local / "checkpoint")
        self.places: tuple[str, ...] = ()
        # Options of deltalake for an S3 server other than AWS.
        on_s3 = base.startswith("s3://") and "AWS_ENDPOINT_URL" in os.environ
        self.delta = {"AWS_ALLOW_HTTP": "true"} if on_s3 else {}
        self.delta |= {name: os.environ[name] for name in os.environ if on_s3 and "AWS_" in name}

    def morning(self, day: datetime) -> None:
        """Add new files, update the means, the counties and the table, and create a tag."""
        done = icechunk_spark.virtualize(
            self.spark, f"{self.files}/*.nc", self.model, concat_dim="time", on_mismatch="skip"
        )
        self.places = tuple({*self.places, *done.places})
        report(f"{done.files_added} files added, {done.references} references, 0 bytes copied")
        for row in done.report.where("status = 'refused'").collect():
            report(f"left out: {Path(row.file).name}: {row.difference.partition(',')[0]}")
        self.follow()
        self.sum_up(day)
        copied = icechunk_spark.mirror(
            self.spark, self.means, self.table, group="daily", target_options=self.delta
        )
        report(f"table version {copied.version}: {copied.rows:,} rows written")
        self.tag(day)

    def follow(self) -> None:
        """Store the mean of each day that changed in the repository of the model."""
        reader = self.spark.readStream.format("icechunk")
        changes = reader.option("virtual.authorize", ",".join(self.places)).load(self.model)
        query = (
            changes.writeStream.foreachBatch(self.keep_means)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def keep_means(self, changed: DataFrame, batch: int) -> None:
        """Write the means of all days that a batch changes, in one commit."""
        days = [
            row.day for row in changed.select(F.to_date("time").alias("day")).distinct().collect()
        ]
        if days:
            first, end = min(days), max(days) + timedelta(days=1)
            rows = self.output(self.model, f"time >= '{first}' AND time < '{end}'")
            icechunk_spark.write(
                daily_means(rows), self.means, group="daily", mode="append",
                dims=["day", "latitude", "longitude"], chunks={"day": 1},
                message=f"Daily means of {', '.join(f'{day:%d %B}' for day in sorted(days))}",
                txn_app_id="daily means", txn_version=batch,
            )  # fmt: skip

    def output(self, path: str, where: str) -> DataFrame:
        """Read model output, whose chunks are in the files."""
        return icechunk_spark.read(self.spark, path, where=where, virtual_authorize=self.places)

    def sum_up(self, day: datetime) -> None:
        """Write the mean of a day for each county to the group `counties`."""
        found = icechunk_spark.zonal(
            self.counties, self.means, group="daily", variables=["t2m"],
            where=f"day = '{day:%Y-%m-%d}'", weights="area",
        )  # fmt: skip
        icechunk_spark.write(
            found.select("day", "county", F.col("t2m_mean").alias("t2m")), self.means,
            group="counties", mode="append", dims=["day", "county"],
            message=f"Counties on {day:%d %B}",
        )  # fmt: skip

    def take_out(self, day: datetime) -> None:
        """Replace the means of a day by NULL, so that its cells are missing."""
        daily = self.daily(where=f"day = '{day:%Y-%m-%d}'")
        worst = daily.agg(F.max("t2m")).first()[0]
        gone = daily.withColumn("t2m", F.lit(None).cast("double"))
        message = f"Take out {day:%d %B}: up to {worst:.0f} K"
        icechunk_spark.write(gone, self.means, group="daily", mode="append", message=message)
        report(message)
        self.sum_up(day)

    def redo(self, day: datetime) -> None:
        """Compute a day again on a branch, check it there, and merge it."""
        done = icechunk_spark.virtualize(
            self.spark, f"{self.rerun}/*.nc", f"{self.rerun}-repository", concat_dim="time"
        )
        self.places = tuple({*self.places, *done.places})
        repository = Repository.open(self.means)
        repository.create_branch("redo", repository.resolve(branch="main"))
        again = self.output(f"{self.rerun}-repository", f"time >= '{day:%Y-%m-%d}'")
        icechunk_spark.write(
            daily_means(again), self.means, group="daily", mode="append", branch="redo",
            message=f"{day:%d %B} again, from the rerun of the model",
        )  # fmt: skip
        # Meanwhile, another writer commits to main.
        session = repository.writable_session("main")
        session.create_group("/notes", {"title": "Notes of the team"})
        session.commit("Add a group for notes")

        redone = self.daily(branch="redo", where=f"day = '{day:%Y-%m-%d}'")
        low, high = redone.agg(F.min("t2m"), F.max("t2m")).first()
        if not PLAUSIBLE[0] < low <= high < PLAUSIBLE[1]:
            sys.exit(f"the rerun is wrong as well: {low:.0f} to {high:.0f} K")
        merged = repository.merge("redo", into="main", message=f"Redo {day:%d %B}")
        repository.delete_branch("redo")
        report(f"merged {day:%d %B}: {low:.0f} to {high:.0f} K ({merged.commit.snapshot_id})")
        self.sum_up(day)

    def tidy_up(self, kept_since: datetime) -> None:
        """Expire old snapshots, collect garbage, and verify and copy the repository."""
        expired = maintenance.expire_snapshots(self.spark, self.means, kept_since)
        collected = maintenance.collect_garbage(self.spark, self.means, kept_since)
        deleted = f"{collected.bytes_deleted:,} bytes deleted"
        report(f"{len(expired.released_snapshots)} snapshots expired, {deleted}")
        found = maintenance.verify(self.spark, self.means).where("severity <> 'info'").count()
        copied = maintenance.copy(self.spark, self.means, self.archive, branch="main")
        report(f"{found} problems; {copied.snapshots} snapshots and {copied.chunks} chunks copied")
        if found:
            sys.exit("the repository is damaged")

    def daily(self, **options: str) -> DataFrame:
        """Read the daily means."""
        return icechunk_spark.read(self.spark, self.means, group="daily", **options)

    def tag(self, day: datetime) -> None:
        """Tag the newest snapshot with the name of a weekday."""
        repository = Repository.open(self.means)
        repository.create_tag(f"{day:%A}", repository.resolve(branch="main"))

    def readable(self) -> pd.DataFrame:
        """Return the fields, the maximum and the mean of each day at the tag of each evening."""
        seen = []
        for day in DAYS:
            state = (
                self.daily(tag=f"{day:%A}")
                .groupBy("day")
                .agg(
                    F.max("fields").alias("fields"),
                    F.max("t2m").alias("high"),
                    F.avg("t2m").alias("mean"),
                )
            )
            seen.append(state.toPandas().assign(morning=day))
        return pd.concat(seen)


def report(text: str) -> None:
    print(f"    {text}", flush=True)


def daily_means(rows: DataFrame) -> DataFrame:
    """Return the mean of each cell and day, and its number of fields."""
    day = F.date_trunc("day", "time").cast("timestamp_ntz").alias("day")
    means = rows.groupBy(day, "latitude", "longitude")
    return means.agg(F.avg("t2m").alias("t2m"), F.count("t2m").cast("int").alias("fields"))


def arrive(
    folder: str,
    day: datetime,
    *,
    steps: tuple[int, ...] = (0, 1, 2, 3),
    wrong: bool = False,
    broken: int | None = None,
) -> None:
    """Put the files of a day into a folder; one may be damaged, or all may have wrong values."""
    system, path = fsspec.url_to_fs(folder)
    system.makedirs(path, exist_ok=True)
    for step in steps:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / f"{day:%Y-%m-%d}T{6 * step:02}.nc"
            data = field(day + timedelta(hours=6 * step)).to_dataset()
            if wrong:
                data["t2m"] += 90 * np.exp(-(((data.latitude - 42) / 8) ** 2))
            encoding = {"t2m": {"zlib": True, "chunksizes": data["t2m"].shape}}
            encoding["time"] = {"units": "hours since 2024-01-01", "dtype": "int64"}
            data.to_netcdf(file, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
            if step == broken:
                file.write_bytes(b"<html>503 Slow Down</html>")
            system.put_file(str(file), f"{path}/{file.name}")


def counties(spark: SparkSession, states: list[str] | None) -> DataFrame:
    """Return the number and the polygon of each county of the contiguous or given states."""
    found = pd.DataFrame(us_counties.records())
    chosen = found["state"].isin(states) if states else ~found["state"].isin(["AK", "HI", "PR"])
    found = found[chosen].assign(geometry=lambda rows: shapely.to_wkb(rows["geometry"]))
    found = found.assign(county=found["fips"].astype("int64"))[["county", "geometry"]]
    return spark.createDataFrame(found).cache()


def draw(seen: pd.DataFrame, file: Path) -> None:
    """Draw the state of each day on each evening."""
    looks = {
        "complete": (drawing.GREEN, "white"),
        "three of four files": (drawing.YELLOW, drawing.DARK),
        "wrong": (drawing.RED, "white"),
        "taken out": (drawing.MISSING, drawing.GREY),
        "redone": (drawing.BLUE, "white"),
    }
    happened = [
        "", "", "a file\nis damaged", "the file is\nrepaired", "a wrong day\nis taken out",
        "redone on\na branch,\nmerged", "expire,\ncollect,\nverify, copy",
    ]  # fmt: skip
    figure = drawing.figure(
        "What was readable when: a week of operations",
        "Mean temperature of each day (°C), as the tag of each evening shows it",
        height=5.4,
        source="Fields: Met Office climate model, with noise added",
    )
    axes = drawing.plain(figure.add_axes((0.115, 0.14, 0.875, 0.56)))
    wrong = set()
    for row in seen.sort_values("morning").itertuples():
        x, y = (row.morning - FIRST).days, (row.day - FIRST).days
        text = f"{row.mean - 273.15:.1f}"
        if pd.isna(row.mean):
            look, text = "taken out", "–"
        elif row.high > PLAUSIBLE[1]:
            look = "wrong"
            wrong.add(y)
        elif y in wrong:
            look = "redone"
        else:
            look = "complete" if row.fields == 4 else "three of four files"
        color, ink = looks[look]
        box = FancyBboxPatch((x, y), 0.88, 0.84, boxstyle="round,pad=0,rounding_size=0.1")
        box.set(facecolor=color, edgecolor="none")
        axes.add_patch(box)
        axes.text(x + 0.44, y + 0.44, text, ha="center", va="center", color=ink, fontsize=12.5)
    for x, (day, text) in enumerate(zip(DAYS, happened, strict=True)):
        axes.text(x + 0.44, -0.15, f"{day:%A}", ha="center", va="bottom", fontsize=10)
        axes.text(x + 0.44, -0.6, text, ha="center", va="bottom", fontsize=9.5, color="0.45")
    axes.set(xlim=(0, 7), ylim=(7, 0), yticks=np.arange(7) + 0.42, xticks=[])
    axes.set_yticklabels([f"{day.day} July" for day in DAYS])
    drawing.legend(figure, 0.09, {name: color for name, (color, _) in looks.items()})
    drawing.save(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="A week of operations.")
    parser.add_argument("output", nargs="?", type=Path)
    parser.add_argument("--master", default="local[2]", help="URL of a Spark master")
    parser.add_argument("--below", help="URL below which repositories are created, e.g. s3://a/b")
    parser.add_argument("--states", nargs="*", help="only the counties of these states")
    given = parser.parse_args()
    started = time.perf_counter()
    output = (given.output or Path("demo-output")).absolute() / "operations"
    pictures = output if given.output else Path(__file__).parents[1] / "docs" / "pictures"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    # Each run has its own folder below a given URL, so that nothing is deleted there.
    base = str(output)
    if given.below:
        base = f"{given.below.rstrip('/')}/{datetime.now(UTC):%Y%m%dT%H%M%S}"

    spark = (
        SparkSession.builder.master(given.master)
        .appName("operations")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    week = Week(spark, base, output, counties(spark, given.states))

    for day in DAYS:
        print(f"{day:%A, %d %B}", flush=True)
        name = f"{day:%A}"
        if name == "Thursday":
            arrive(week.files, DAYS[2], steps=(1,))  # the repaired file
            kept_since = datetime.now(UTC)
        elif name == "Friday":
            week.take_out(DAYS[3])
        elif name == "Saturday":
            arrive(week.rerun, DAYS[3])
            week.redo(DAYS[3])
        arrive(week.files, day, wrong=name == "Thursday", broken=1 if name == "Wednesday" else None)
        week.morning(day)
        if name == "Thursday":
            week.sum_up(DAYS[2])  # again, from four files
    week.tidy_up(kept_since)

    draw(week.readable(), pictures / "operations.png")
    print(f"finished in {time.perf_counter() - started:.0f} s")
    spark.stop()


if __name__ == "__main__":
    main()
