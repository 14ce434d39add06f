"""Copies need no options, and rows may be chunks or references."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.spark.written import reference_group
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import IcechunkError

pytestmark = pytest.mark.needs_reference


def described(group):
    """Return what a user of zarr sees of a group's arrays."""
    return {
        name: (
            array.shape,
            array.chunks,
            str(array.dtype),
            array.metadata.dimension_names,
            dict(array.attrs),
            repr(array.fill_value),
            [codec.to_dict() for codec in array.metadata.codecs],
        )
        for name, array in group.arrays()
    }


def test_a_copy_needs_no_options(spark, weather, tmp_path):
    """What was read from one repository is written to another as it was."""
    copy = str(tmp_path / "copy")
    frame = spark.read.format("icechunk").load(weather.path)
    frame.write.format("icechunk").save(copy)
    there, here = reference_group(weather.path), reference_group(copy)
    names = set(frame.columns)
    expected = {name: facts for name, facts in described(there).items() if name in names}
    assert described(here) == expected
    for name in names:
        np.testing.assert_array_equal(here[name][:], there[name][:], err_msg=name)


def test_a_part_read_is_written_back_in_place(spark, weather, tmp_path):
    copy = str(tmp_path / "copy")
    spark.read.format("icechunk").load(weather.path).write.format("icechunk").save(copy)
    before = reference_group(copy)["t2m"][:]
    part = spark.read.format("icechunk").option("isel", "time=1:3; latitude=2").load(copy)
    part.withColumn("t2m", F.expr("cast(coalesce(t2m, 0) + 1 AS float)")).write.format(
        "icechunk"
    ).mode("append").save(copy)
    expected = before.copy()
    expected[1:3, 2] = np.nan_to_num(expected[1:3, 2]) + 1
    np.testing.assert_array_equal(reference_group(copy)["t2m"][:], expected)


def test_chunks_go_back_as_chunks(spark, weather, tmp_path):
    copy = str(tmp_path / "copy")
    frame = spark.read.format("icechunk").load(weather.path)
    frame.write.format("icechunk").save(copy)
    chunks = (
        spark.read.format("icechunk").option("layout", "chunks").option("variables", "t2m")
    ).load(copy)

    def doubled(batches):
        import pyarrow as pa

        for batch in batches:
            rows = batch.to_pylist()
            for row in rows:
                row["data"] = (np.frombuffer(row["data"], row["dtype"]) * 2).tobytes()
            yield pa.RecordBatch.from_pylist(rows, schema=batch.schema)

    written = icechunk_spark.write(
        chunks.mapInArrow(doubled, chunks.schema), copy, mode="append", layout="chunks"
    )
    assert written.chunks == chunks.count()
    np.testing.assert_array_equal(
        reference_group(copy)["t2m"][:], reference_group(weather.path)["t2m"][:] * 2
    )


def test_chunks_of_an_array_that_is_not_there(spark, weather, tmp_path):
    chunks = (
        spark.read.format("icechunk").option("layout", "chunks").option("variables", "t2m")
    ).load(weather.path)
    with pytest.raises(IcechunkError, match="encoding"):
        icechunk_spark.write(chunks, str(tmp_path / "new"), mode="append", layout="chunks")


def test_references_make_a_virtual_dataset(spark, tmp_path):
    """Two files of raw numbers become one array, and no number is copied."""
    path = str(tmp_path / "virtual")
    values = np.arange(40, dtype="<f4").reshape(2, 20)
    for number, row in enumerate(values):
        (tmp_path / f"part{number}.raw").write_bytes(b"HEADER" + row.tobytes())
    rows = [
        ("v", [number, half], "virtual", (tmp_path / f"part{number}.raw").as_uri(), 6 + 40 * half)
        for number in range(2)
        for half in range(2)
    ]
    refs = spark.createDataFrame(
        rows, "array string, chunk array<bigint>, kind string, location string, offset bigint"
    ).withColumn("length", F.lit(40).cast("bigint"))
    encoding = {
        "v": {
            "shape": [2, 20],
            "chunks": [1, 10],
            "dtype": "float32",
            "dims": ["file", "x"],
            "compressors": [],
        }
    }
    icechunk_spark.write(refs, path, mode="append", layout="refs", encoding=json.dumps(encoding))
    prefix = tmp_path.as_uri() + "/"
    back = spark.read.format("icechunk").option("virtual.authorize", prefix).load(path)
    assert {(r.file, r.x): r.v for r in back.collect()} == {
        (i, j): float(values[i, j]) for i in range(2) for j in range(20)
    }
    listed = spark.read.format("icechunk").option("layout", "refs").load(path)
    assert listed.where("kind = 'virtual'").count() == 4
