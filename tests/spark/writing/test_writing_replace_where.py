"""The option replaceWhere of a write with mode overwrite."""

import pytest
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository


@pytest.fixture
def hours(spark, tmp_path):
    path = str(tmp_path / "hours")
    icechunk_spark.write(
        rows(spark, 10), path, dims=["time", "latitude", "longitude"], chunks={"time": 6}
    )
    return path


def rows(spark, days, start=1, value="cast(id AS float)"):
    return spark.range(days * 4 * 15).selectExpr(
        f"timestamp_ntz '2024-07-{start:02}' + make_dt_interval(0, 6 * cast(id div 15 AS int))"
        " AS time",
        "10D * (id div 5 % 3) AS latitude",
        "1D * (id % 5) AS longitude",
        f"{value} AS t2m",
    )


@pytest.mark.each_spark
def test_a_day_is_written_again(spark, hours):
    day = rows(spark, 1, 4, "-1F").where("latitude < 20")
    region = "time >= '2024-07-04' AND time < '2024-07-05'"
    before = icechunk_spark.read(spark, hours, snapshot=str(Repository.open(hours).resolve()))
    day.write.format("icechunk").mode("overwrite").option("replaceWhere", region).save(hours)
    table = icechunk_spark.read(spark, hours)
    assert table.count() == 600
    assert table.where("t2m = -1").count() == 40
    assert table.where("t2m IS NULL").count() == 20
    assert table.where(f"NOT ({region})").exceptAll(before).count() == 0


def test_rows_outside_are_refused(spark, hours):
    with pytest.raises(InvalidInputError) as failure:
        icechunk_spark.write(
            rows(spark, 2, 4), hours, mode="overwrite", replace_where="date(time) = '2024-07-04'"
        )
    assert failure.value.facts["label"].startswith("2024-07-05")
    with raises(InvalidInputError, option="replaceWhere"):
        rows(spark, 1, 4).write.format("icechunk").mode("append").option(
            "replaceWhere", "time > '2024-07-01'"
        ).save(hours)


def test_the_time_zone_of_the_session(spark, hours):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        region = "time >= timestamp '2024-07-04 00:00:00'"
        late = rows(spark, 1, 4, "-1F").where("time >= timestamp '2024-07-04 00:00:00'")
        icechunk_spark.write(late, hours, mode="overwrite", replace_where=region)
        table = icechunk_spark.read(spark, hours)
        assert table.where(f"({region}) AND t2m IS NOT NULL AND t2m <> -1").count() == 0
        assert table.where("t2m = -1").count() == late.count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
