"""An executor without a package raises an error that names the package and the remedy."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from icechunk_format.errors import UnsupportedError
from icechunk_spark.compatibility import PAGE
from icechunk_spark.jobs.errors import raised_in_jobs, raised_in_tasks
from icechunk_spark.jobs.packages import serialized
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks


class Plan:
    tasks = ("one", "two")
    context = None


def reader() -> IcechunkReader:
    return IcechunkReader(Plan(), pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize("made", [reader(), IcechunkTasks(reader())], ids=["source", "function"])
@pytest.mark.parametrize("missing", ["icechunk_spark", "pyarrow"])
def test_a_worker_without_a_package_names_it_and_the_page(made, missing, tmp_path):
    """The bytes are opened in a process that cannot import the package, as by Spark's worker."""
    file = tmp_path / "function"
    file.write_bytes(cloudpickle.dumps(made))
    code = (
        f"import pickle, sys; sys.modules[{missing!r}] = None;"
        f" pickle.loads(open({str(file)!r}, 'rb').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: the Python of an executor (")
    assert f"lacks the package '{missing}" in last
    assert PAGE in last


def test_functions_of_tasks_are_as_before():
    again = pickle.loads(pickle.dumps(IcechunkTasks(reader())))
    assert len(again) == 2
    assert [again._task(number).value for number in range(2)] == ["one", "two"]
    again = cloudpickle.loads(cloudpickle.dumps(reader()))
    assert again._target.names == ["x"]


def test_packed_objects_keep_their_class_and_state():
    class Kept:
        pass

    opened, arguments = serialized(Kept, {"a": 1})
    assert vars(opened(*arguments)) == {"a": 1}


@pytest.mark.parametrize("context", [raised_in_jobs, raised_in_tasks])
@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ("ModuleNotFoundError: No module named 'icechunk_spark'", True),
        ("ModuleNotFoundError: No module named 'icechunk_format.tables'", True),
        ("ModuleNotFoundError: No module named 'obstore'", True),
        ("ModuleNotFoundError: No module named 'sklearn'", False),
        ("ModuleNotFoundError: No module named 'numpyro'", False),
    ],
)
def test_a_failed_job_names_the_package_that_is_missing(context, line, is_ours):
    report = f"Job aborted\nTraceback (most recent call last):\n  File ...\n{line}\n\n\tat org.x"
    with pytest.raises((PySparkException, UnsupportedError)) as caught, context("writing x"):
        raise PySparkException(report)
    assert isinstance(caught.value, UnsupportedError) == is_ours
    if is_ours:
        assert line.split("'")[1] in str(caught.value)
        assert PAGE in str(caught.value)
