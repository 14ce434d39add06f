"""Public names that users import, wherever their modules lie."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from icechunk_spark import IcechunkDataSource, read, register, unregister, write",
        "from icechunk_spark.options import OPTIONS, option_table_markdown",
        "import icechunk_spark; icechunk_spark.options.OPTIONS",
        "from icechunk_spark import maintenance; maintenance.collect_garbage",
        "from icechunk_spark.maintenance import copy, expire_snapshots, rewrite_manifests, verify",
        "from pyspark_icechunk import DefaultSource",
    ],
)
def test_a_public_name_is_importable_first(statement):
    subprocess.run([sys.executable, "-c", statement], check=True)
