"""Options are keywords that completion, `help()` and type checkers know."""

from __future__ import annotations

import importlib.metadata
import inspect
import pydoc
from unittest.mock import MagicMock

import pandas
import pytest
import xarray
from helpers.raised import raises

import icechunk_spark
from icechunk_format.encoding.envelope import IMPLEMENTATION_NAME
from icechunk_format.errors import InvalidInputError
from icechunk_format.options import OPTIONS
from icechunk_format.options.keywords import keyword_options, with_option_help

FUNCTIONS = {"read": icechunk_spark.read, "write": icechunk_spark.write}
OF_THE_FUNCTIONS = {"read": ["spark", "path", "schema"], "write": ["df", "path", "mode", "dry_run"]}


@pytest.mark.parametrize("use", FUNCTIONS)
def test_the_keywords_are_the_options(use):
    options = keyword_options(use)
    names = list(inspect.signature(FUNCTIONS[use]).parameters)
    keywords = [option.keyword for option in options]
    assert names == [*OF_THE_FUNCTIONS[use], *keywords, "options"], (
        f"the signature of {FUNCTIONS[use].__name__} has not the options in the order of OPTIONS"
    )
    left = {option.name for option in OPTIONS if use in option.calls} - {o.name for o in options}
    assert left <= {"path", "maxUnplannedBytes", "storage.*", "virtual.storage.*"}


@pytest.mark.parametrize("use", FUNCTIONS)
def test_every_keyword_is_passed_on(use):
    for option in keyword_options(use):
        with pytest.raises(InvalidInputError) as caught:
            FUNCTIONS[use](MagicMock(), "/data/repo", **{option.keyword: object()})
        assert caught.value.facts == {"option": option.keyword}


def test_keywords_are_spelled_as_python_does():
    keywords = {option.name: option.keyword for option in OPTIONS}
    assert keywords["sel.method"] == "sel_method"
    assert keywords["rowsPerPartition"] == "rows_per_partition"
    assert keywords["from"] == "from_"
    assert all(keyword.isidentifier() for keyword in keywords.values())


@pytest.mark.parametrize("use", FUNCTIONS)
def test_help_tells_what_each_option_does(use):
    text = " ".join(pydoc.render_doc(FUNCTIONS[use], renderer=pydoc.plaintext).split())
    assert "(options)" not in text
    for option in keyword_options(use):
        told = option.write_help if use == "write" and option.write_help else option.help
        assert f" {option.keyword}: " in text
        assert " ".join(told.replace("`", "``").split()) in text


@pytest.mark.parametrize("indented", ["    ", ""])
def test_help_lists_the_options_whether_docstrings_are_indented_or_not(indented):
    head = 'The options of the page "Options" of the manual, which ``help()`` lists.'
    lines = ["Read.", "", "Parameters", "----------", "**options", f"    {head}", "    Others."]
    text = f"\n{indented}".join(lines)
    listed = with_option_help(text, "read")
    assert head not in listed
    assert (
        "\nbranch: name; default: ``main``\n    Branch whose newest snapshot is read.\n" in listed
    )
    assert listed.endswith("\n**options\n    Others.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"as_of": "soon"}, "option 'asOf' must be an ISO 8601 timestamp"),
        ({"as_of": "2024-01-01", "asOf": "2024-01-01"}, "'as_of' and 'asOf' are the same option"),
        ({"from_": "v1"}, "option 'from' does not apply to layout=cells"),
        ({"tag": "v1", "branch": "main"}, "exclude one another"),
        ({"tga": "v1"}, "did you mean 'tag'"),
        ({"pushdown": True}, "option 'where'"),
    ],
)
def test_keywords_of_read_are_options(options, says):
    with pytest.raises(InvalidInputError, match=says):
        icechunk_spark.read(MagicMock(), "/data/repo", **options)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (pandas.DataFrame({"x": [1]}), "pandas.DataFrame"),
        (xarray.Dataset(), "xarray.Dataset"),
        (None, "builtins.NoneType"),
    ],
)
def test_write_takes_dataframes_of_spark_alone(given, found):
    with raises(InvalidInputError, match=r"spark\.createDataFrame", argument="df") as caught:
        icechunk_spark.write(given, "/data/repo")
    assert caught.value.facts == {"argument": "df", "found": found}


def test_keywords_of_write_are_options():
    with raises(
        InvalidInputError,
        match="option 'minDensity' must be a number from 0 to 1",
        option="minDensity",
        value="2",
    ):
        icechunk_spark.write(None, "/data/repo", min_density=2)
    with raises(InvalidInputError, match="'txnVersion' as well", option="txnVersion"):
        icechunk_spark.write(None, "/data/repo", txn_app_id="nightly")


def test_the_version_is_that_of_the_distribution():
    assert icechunk_spark.__version__ == importlib.metadata.version("icechunk-spark")
    assert f"icechunk_spark-{icechunk_spark.__version__}" == IMPLEMENTATION_NAME
