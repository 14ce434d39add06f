"""Options of a commit that functions of Python take are checked before a job runs."""

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.declare import CHANGING
from icechunk_format.options.write_request import parse_change


@pytest.mark.parametrize("call", CHANGING)
@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"txn_app_id": "loader"}, "txn_version"),
        ({"txn_version": "0"}, "txn_app_id"),
        ({"on_conflict": "retry"}, "onConflict"),
        ({"min_density": "0.1"}, "minDensity"),
        ({"layout": "chunks"}, "layout"),
    ],
)
def test_a_commit_that_cannot_be_made_is_refused(call, given, option):
    with raises(InvalidInputError) as caught:
        parse_change({"path": "r", **given}, call)
    assert caught.value.facts["option"] == option


@pytest.mark.parametrize("call", CHANGING)
def test_the_options_of_a_change_are_those_of_its_read_and_its_commit(call):
    given = {"branch": "dev", "group": "/a", "variables": "t2m", "message": "Tidy"}
    read, commit = parse_change({"path": "r", **given, "createBranch": "true"}, call)
    assert (read.branch, read.group, read.variables) == ("dev", "/a", ("t2m",))
    assert (commit.branch, commit.group, commit.message) == ("dev", "/a", "Tidy")
    assert commit.create_branch
    assert parse_change({"path": "r"}, call)[1].branch == "main"
