"""Errors of several lines reach Spark's users on one line, with their types."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import PySparkException

from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError, StorageError
from icechunk_spark.jobs.errors import (
    errors_on_one_line,
    noted_error,
    noted_errors,
    raised_in_jobs,
)


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("there is no tag 'v2'\n  tags that exist: v1", kind="tag"),
        StorageError("the store failed\nit may have landed", outcome_unknown=True, key="repo"),
        FormatError("too short\nby 3 bytes", object_key="repo", file_type="repo"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_lines_are_joined(error):
    with pytest.raises(type(error)) as caught, errors_on_one_line():
        raise error
    parts = [line.strip() for line in error.message.splitlines()]
    assert str(caught.value) == "; ".join(parts)
    assert caught.value.facts == error.facts
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert str(travelled) == str(caught.value)


def test_lines_after_a_colon_are_joined_without_a_semicolon():
    with pytest.raises(InvalidInputError) as caught, errors_on_one_line():
        raise InvalidInputError("two sets:\n  (x): a\n  (y): b\nchoose one")
    assert str(caught.value) == "two sets: (x): a; (y): b; choose one"


def test_one_line_passes_untouched():
    error = NotFoundError("nothing here", kind="tag")
    with pytest.raises(NotFoundError) as caught, errors_on_one_line():
        raise error
    assert caught.value is error


def test_what_is_not_ours_passes_untouched():
    error = KeyError("a\nb")
    with pytest.raises(KeyError) as caught, errors_on_one_line():
        raise error
    assert caught.value is error


def test_the_error_of_a_report_becomes_its_last_line():
    report = (
        "[STREAM_FAILED] Query terminated\nTraceback (most recent call last):\n  File ...\n"
        "icechunk_format.errors.ConflictError: both changed\n\n=== Streaming Query ===\nPlan\n"
    )
    with pytest.raises(PySparkException) as caught, noted_errors():
        raise PySparkException(report)
    noted_error(caught.value)
    assert caught.value.__notes__ == ["icechunk_format.errors.ConflictError: both changed"]
    other = PySparkException("[OTHER]")
    assert not hasattr(noted_error(other), "__notes__")


@pytest.mark.parametrize(
    ("reason", "has_logs"),
    [("[OPERATION_CANCELED] Operation has been canceled", False), ("[OTHER] a loss", True)],
)
def test_a_job_that_was_cancelled_asks_for_no_logs(reason, has_logs):
    with pytest.raises(StorageError) as caught, raised_in_jobs("reducing into r"):
        raise PySparkException(f"org.apache.spark.SparkException: {reason}")
    assert "Nothing was committed" in str(caught.value)
    assert ("logs of the executors" in str(caught.value)) is has_logs
