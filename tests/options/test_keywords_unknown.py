"""Wrong keywords and arguments by position lead to those that the function has."""

from __future__ import annotations

import inspect
from unittest.mock import MagicMock

import pytest
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.declare import CHANGING
from icechunk_format.options.keywords import keyword_options
from icechunk_spark import maintenance

FUNCTIONS = {
    name: found
    for module in (icechunk_spark, maintenance)
    for name in module.__all__
    if inspect.isfunction(found := getattr(module, name))
    and any(one.name == "options" for one in inspect.signature(found).parameters.values())
}


def arguments_of(function):
    """Return values for the arguments of a function without a default."""
    found = inspect.signature(function).parameters.values()
    return {one.name: MagicMock() for one in found if one.default is one.empty and one.kind != 4}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_keyword_is_refused_with_those_of_the_function(name):
    function = FUNCTIONS[name]
    with raises(InvalidInputError, option="qqq", nearest=None) as caught:
        function(**arguments_of(function), qqq=1)
    text = str(caught.value)
    assert text.startswith(f"{name} has no argument 'qqq': it takes ")
    known = [one for one in inspect.signature(function).parameters if one != "options"]
    if name not in ("register", "write"):
        assert text.rpartition(" takes ")[2].split(", ")[: len(known)] == known


def test_progress_leads_to_the_function_that_shows_it():
    with pytest.raises(InvalidInputError, match=r"'progress': icechunk_spark\.register\(spark, p"):
        icechunk_spark.reduce(MagicMock(), "p", "mean", progress=True)


@pytest.mark.parametrize(
    ("name", "wrong", "near"),
    [
        ("virtualize", "dim", "concat_dim"),
        ("reduce", "dim", "over"),
        ("reduce", "groupby", "by"),
        ("reduce", "resample", "by"),
        ("virtualize", "dims", "concat_dim"),
        ("zonal", "stats", "statistics"),
        ("zonal", "time", "sel"),
        ("read", "latitude", "sel"),
        ("sample", "keeps", "keep"),
        ("rechunk", "chunk", "chunks"),
        ("rechunk", "vars", "variables"),
        ("map_blocks", "block", "blocks"),
        ("map_blocks", "func", "function"),
        ("read_blocks", "var", "variables"),
        ("delete", "createBranches", "create_branch"),
        ("read", "variable", "variables"),
        ("write", "chunk", "chunks"),
    ],
)
def test_an_unknown_keyword_leads_to_the_nearest_of_the_function(name, wrong, near):
    function = FUNCTIONS[name]
    with raises(InvalidInputError, option=wrong, nearest=near) as caught:
        function(**arguments_of(function), **{wrong: 1})
    assert f"{name} has no argument '{wrong}': did you mean '{near}'?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *[("estimate", "dims"), ("view", "message"), ("rechunk", "where"), ("delete", "tag")],
        *[("map_blocks", "layout"), ("read_blocks", "message"), ("zonal", "missing_chunks")],
        *[("expire_snapshots", "tag"), ("freshness", "group")],
    ],
)
def test_an_option_of_other_calls_is_refused_by_the_name_of_the_function(name, option):
    function = FUNCTIONS[name]
    with raises(InvalidInputError, match=f"does not apply to {name}: it is for", call=name):
        function(**arguments_of(function), **{option: "x"})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_beyond_those_by_position_are_refused(name):
    function = FUNCTIONS[name]
    found = inspect.signature(function).parameters.values()
    ordered = [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]
    with raises(InvalidInputError, function=name, found=len(ordered) + 1) as caught:
        function(*[MagicMock()] * (len(ordered) + 1))
    assert f"call {name}({', '.join(ordered)}" in str(caught.value)


def test_missing_and_repeated_arguments_are_named():
    with raises(InvalidInputError, match=r"read needs the argument 'path': call read\(spark, path"):
        icechunk_spark.read("s3://bucket/r")
    with raises(InvalidInputError, match=r"needs the argument 'to': .*, function, to=\.\.\.\)"):
        icechunk_spark.map_blocks(MagicMock(), "r", len)
    with raises(InvalidInputError, match=r"sample needs the argument 'on': call .*, on=\{'lat"):
        icechunk_spark.sample(MagicMock(), "r")
    with raises(InvalidInputError, match="'path' is given twice", option="path"):
        icechunk_spark.read(MagicMock(), "r", path="r")
    with raises(InvalidInputError, match="to_xarray has no argument 'dim'", nearest="dims"):
        icechunk_spark.to_xarray(MagicMock(), dim=["x"])


@pytest.mark.parametrize("call", [*CHANGING, "read_blocks"])
def test_the_signature_has_the_declared_options(call):
    """Type checkers see the signature, which is written out; the parser sees the declaration."""
    parameters = inspect.signature(FUNCTIONS[call]).parameters
    options = keyword_options(call)
    own = [name for name in parameters if name not in {one.keyword for one in options}]
    left = {one.keyword for one in options} - set(parameters)
    names = ("credentials", "virtual_credentials")
    assert left == {"storage_client", "virtual_authorize", *names}
    assert own[-1] == "options"
    for option in options:
        if option.keyword in parameters:
            default = parameters[option.keyword].default
            assert default in (None, option.default), f"{call} has another {option.keyword}"
