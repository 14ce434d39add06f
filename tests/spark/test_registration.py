"""Registering is cheap, may be repeated, and Spark finds the source without it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSource

import icechunk_spark
import pyspark_icechunk

pytestmark = [pytest.mark.core, pytest.mark.each_spark]

HEAVY = (
    "pyarrow",
    "numpy",
    "pandas",
    "sqlglot",
    "obstore",
    "fsspec",
    "numcodecs",
    "zstandard",
    "icechunk_format.tables.dataset",
    "icechunk_format.repository",
)


def test_public_names():
    of_tables = {
        "IcechunkDataSource",
        "read",
        "read_blocks",
        "rechunk",
        "reduce",
        "register",
        "to_xarray",
        "unregister",
        "write",
    }
    of_tables.add("view")
    of_workflows = {
        "Estimate",
        "Measures",
        "last_read_metrics",
        "estimate",
        "VirtualizeResult",
        "attach",
        "combine_summaries",
        "delete",
        "freshness",
        "map_blocks",
        "mirror",
        "mirrored",
        "sample",
        "tables",
        "virtualize",
    }
    assert set(icechunk_spark.__all__) == {*of_tables, *of_workflows, "zonal"}
    assert all(hasattr(icechunk_spark, name) for name in icechunk_spark.__all__)


def test_auto_lookup_finds_a_light_module():
    source = pyspark_icechunk.DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == "icechunk"
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_icechunk;"
        f" print([m for m in {HEAVY!r} if m in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", f"imported at lookup: {done.stdout}"


def test_executors_import_no_planner():
    """A task unpickles the reader: neither the SQL parser nor the planner belongs there."""
    modules = "icechunk_spark.reading.reader, icechunk_format.tables.reading.run"
    code = f"import sys, {modules}; print('sqlglot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_registering_again_is_fine(spark):
    icechunk_spark.register(spark)
    icechunk_spark.register(spark)
    icechunk_spark.register(spark.newSession())


def test_the_name_ignores_case(spark, last_line):
    assert "'path' is missing" in last_line(lambda: spark.read.format("IceChunk").load())


def test_another_failure_to_register_is_not_swallowed(spark):
    class Broken:
        dataSource = None

        def createDataFrame(self):
            pass

    with pytest.raises(AttributeError):
        icechunk_spark.register(Broken())
