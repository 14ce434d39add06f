"""replaceWhere leaves the cells that a deletion by its condition and a write of its rows leave.

The rows are those that Spark's own filter keeps, so one condition selects the same labels in Spark,
in a deletion and in a write, for labels of every type and in every zone.

``EXAMPLES=20`` runs twenty times as many.
"""

from __future__ import annotations

import datetime as dt
import random

import numpy as np
import pyarrow as pa
import pytest
from helpers.examples import by_day
from helpers.grids.written_cells import rows_of
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

HOURS = [dt.datetime(2024, 3, 9) + dt.timedelta(hours=2 * n) for n in range(30)]
STORED = {
    "float": pa.array([0.1 * n for n in range(-5, 20)], pa.float32()),
    "double": pa.array([0.1 * n for n in range(-5, 20)], pa.float64()),
    "timestamp_ntz": pa.array(HOURS, pa.timestamp("us")),
    "string": pa.array([f"{a}{b}" for a in "aBcé" for b in ("", "1", "b ", "'")], pa.string()),
}
# Stored labels, the type of the written ones, and the options of reads with that type.
KINDS = {
    "float": ("float", "float", {}),
    "float from double": ("float", "double", {}),
    "double": ("double", "double", {}),
    "timestamp_ntz": ("timestamp_ntz", "timestamp_ntz", {}),
    "timestamp": ("timestamp_ntz", "timestamp", {"timestamp_type": "utc"}),
    "string": ("string", "string", {}),
}
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
FUNCTIONS = {
    "float": ("floor(x) = {n}", "abs(x) < 0.5", "x + NULL > 1", "x = float('NaN')"),
    "double": ("floor(x) = {n}", "abs(x) < 0.5", "x + NULL > 1", "x <> double('NaN')"),
    "timestamp_ntz": (
        "date(x) = '2024-03-{d}'",
        "hour(x) IN (0, {n}, NULL)",
        "x >= '2024-03-{d}' AND x < '2024-03-11'",
        "x < TIMESTAMP '2024-03-10 0{n}:00:00'",
        "x >= TIMESTAMP_NTZ '2024-03-{d} 04:00:00'",
    ),
    "string": ("length(x) > {n}", "upper(x) < 'B'", "x LIKE '%b%'", "concat(x, NULL) = 'a'"),
}


def literal(chance, kind):
    if kind in ("float", "double"):
        label = chance.choice(STORED[kind].to_pylist())
        return chance.choice([f"{round(label, 1)}", f"{round(label, 1)}D", f"{label!r}D", "NULL"])
    if kind == "string":
        return "'" + chance.choice(STORED[kind].to_pylist()).replace("'", "\\'") + "'"
    return f"'{chance.choice(HOURS)}'"


def condition(chance, kind, depth=2):
    def inner():
        return condition(chance, kind, depth - 1)

    choice = chance.randrange(7 if depth else 4)
    if choice == 0:
        given = chance.choice(FUNCTIONS[kind])
        return given.format(n=chance.randrange(3), d=chance.choice(["09", "10", "11"]))
    if choice == 1:
        values = ", ".join(
            [literal(chance, kind) for _ in range(3)] + ["NULL"] * (chance.random() < 0.3)
        )
        return f"x {chance.choice(['IN', 'NOT IN'])} ({values})"
    if choice == 2:
        return f"x BETWEEN {literal(chance, kind)} AND {literal(chance, kind)}"
    if choice == 3:
        return f"x {chance.choice(COMPARISONS)} {literal(chance, kind)}"
    if choice == 4:
        return f"NOT ({inner()})"
    return f"({inner()}) {chance.choice(['AND', 'OR'])} ({inner()})"


def cells(path):
    """Return the cells that have a value."""
    found = rows_of(path)
    return {
        pair: value
        for *pair, value in zip(*(found[name].to_pylist() for name in ("x", "y", "v")), strict=True)
        if value is not None
        for pair in [tuple(pair)]
    }


def labels_in(frame):
    """Return labels as strings: PySpark would convert those of TIMESTAMP_NTZ."""
    return {row["x"] for row in frame.selectExpr("cast(x AS string) AS x").distinct().collect()}


@pytest.fixture
def zone(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("seed", range(by_day(1)))
@pytest.mark.parametrize("name", KINDS)
def test_a_replaced_region_is_a_deletion_and_a_write(spark, zone, tmp_path, name, seed):
    chance = random.Random(f"{name} {seed}")
    stored, written, how = KINDS[name]
    zone(chance.choice(ZONES))
    labels = STORED[stored]
    values = np.arange(2.0 * len(labels))
    table = pa.table(
        {
            "x": pa.concat_arrays([labels, labels]),
            "y": pa.array(np.repeat([0, 1], len(labels))),
            "v": pa.array(values, mask=np.array([chance.random() < 0.2 for _ in values])),
        }
    )
    paths = [str(tmp_path / part) for part in ("replaced", "deleted")]
    for path in paths:
        write_table(path, table, WriteOptions(dims=("x", "y"), chunks={"x": 4, "y": 1}))
    before = icechunk_spark.read(spark, paths[0], **how)
    label = before["x"].cast("string")
    everything = labels_in(before)
    inside = []
    while not inside:
        where = condition(chance, stored)
        inside = sorted(labels_in(before.where(where)))
    chosen = chance.sample(inside, chance.randint(1, len(inside)))
    rows = before.where(label.isin(chosen)).selectExpr(
        f"cast(x AS {written}) AS x", "y", "CASE WHEN y = 0 OR v > 9 THEN -v END AS v"
    )
    icechunk_spark.write(rows, paths[0], mode="overwrite", replace_where=where)
    selected = {"where": where}
    if how:
        # Deletions read TIMESTAMP_NTZ, so labels that Spark selects as TIMESTAMP are listed.
        micros = before.where(where).selectExpr("unix_micros(x) AS x").distinct().collect()
        selected = {"sel": {"x": [np.datetime64(row["x"], "us") for row in micros]}}
    icechunk_spark.delete(spark, paths[1], **selected)
    icechunk_spark.write(rows, paths[1], mode="append")
    found = cells(paths[0])
    assert found == cells(paths[1]), where
    outside = sorted(everything - set(inside))
    if outside:
        others = before.where(label.isin(outside[:1])).selectExpr(
            f"cast(x AS {written}) AS x", "y", "v"
        )
        with raises(InvalidInputError, option="replaceWhere"):
            icechunk_spark.write(others, paths[0], mode="overwrite", replace_where=where)
    assert cells(paths[0]) == found
