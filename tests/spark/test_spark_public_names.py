"""Public names can be imported first, wherever their modules lie."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from icechunk_spark import IcechunkDataSource, read, register, unregister, write",
        "from icechunk_spark import VirtualizeResult, virtualize",
        "from icechunk_spark import freshness, mirror, mirrored",
        "from icechunk_spark import Estimate, Measures, estimate, last_read_metrics",
        "from icechunk_spark import sample",
        "from icechunk_spark import zonal",
        "from icechunk_format.options import OPTIONS",
        "from icechunk_spark import maintenance; maintenance.collect_garbage",
        "import icechunk_spark; icechunk_spark.maintenance.collect_garbage",
        "import icechunk_format; icechunk_format.maintenance.collect_garbage",
        "from icechunk_spark.maintenance import copy, expire_snapshots, rewrite_manifests, verify",
        "from pyspark_icechunk import DefaultSource",
    ],
)
def test_a_public_name_is_importable_first(statement):
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_a_driver_that_plans_a_read_imports_at_most_150_modules(weather):
    code = f"""
import sys
from icechunk_spark import IcechunkDataSource
source = IcechunkDataSource({{"path": {weather.path!r}, "group": "/"}})
assert source.reader(source.schema()).partitions()
ours = [name for name in sys.modules if name.startswith(("icechunk_format", "icechunk_spark"))]
print(sum(not hasattr(sys.modules[name], "__path__") for name in ours))
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(found.stdout) <= 150


def test_a_plan_without_a_condition_imports_neither_a_parser_nor_a_client():
    code = (
        "import sys, icechunk_spark.reading.plan;"
        " print(sorted({'pandas', 'sqlglot', 'obstore', 's3fs'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
