"""Options of a commit that functions of Python take are checked before a job runs."""

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.options.write_request import checked_commit


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"txn_app_id": "loader"}, "txn_version"),
        ({"txn_version": 0}, "txn_app_id"),
        ({"on_conflict": "retry"}, "on_conflict"),
    ],
)
def test_a_commit_that_cannot_be_made_is_refused(given, option):
    with raises(InvalidInputError, option=option):
        checked_commit(WriteOptions(**given))


def test_other_options_of_a_commit_stay_as_they_are():
    options = WriteOptions(txn_app_id="loader", txn_version=0, on_conflict="fail")
    assert checked_commit(options) is options
