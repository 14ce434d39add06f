"""Releases of Spark that the package cannot use are refused with the remedy, also on import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import icechunk_spark
from icechunk_format.errors import UnsupportedError
from icechunk_spark.compatibility import PAGE, require_supported_spark


@pytest.mark.parametrize("version", ["3.5.6", "3.5.2-amzn-1", "3.5", "2.4.8"])
def test_older_releases_are_refused(version):
    with pytest.raises(UnsupportedError) as caught:
        require_supported_spark(version)
    text = str(caught.value)
    assert f"PySpark is {version}" in text
    assert PAGE in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "version",
    ["4.0.0", "4.0.2-amzn-0", "4.1.0+databricks.connect.18", "10.0", "client.1.13", "", None],
)
def test_newer_and_unknown_releases_pass(version):
    require_supported_spark(version)


def test_the_import_with_an_older_spark_names_the_remedy(tmp_path):
    """PySpark 3.5 lacks modules that the package imports, so the version is checked first."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.6'\n")
    for module in ("icechunk_spark", "pyspark_icechunk"):
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(
            "icechunk_format.errors.UnsupportedError: icechunk_spark needs Spark 4.0 or newer, and"
            " PySpark is 3.5.6: choose a release of the platform with Spark 4"
        )


def test_a_server_with_an_older_spark_is_refused():
    class Session:
        version = "3.5.4"

        def createDataFrame(self):
            pass

    with pytest.raises(UnsupportedError, match=r"the server is 3\.5\.4"):
        icechunk_spark.register(Session())
