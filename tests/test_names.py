"""Tests of names in messages."""

from __future__ import annotations

import pickle

import pytest

import icechunk_format
import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.names import by_likeness, choose, nearest, shortened, unknown
from icechunk_format.repository import Repository


def test_of_many_names_the_nearest_come_first():
    names = [f"branch-{n:04d}" for n in range(5000)]
    found = by_likeness("branch-0007", names, 10)
    assert found[0] == "branch-0007"
    assert len(found) == 10


def test_names_are_compared_without_case_and_a_beginning_counts_as_near():
    assert by_likeness("LAT", ["time", "longitude", "Latitude"]) == [
        "Latitude",
        "time",
        "longitude",
    ]
    assert by_likeness("", ["b", "a"]) == ["b", "a"]
    assert nearest("WHERE", ["where", "sel"]) == "where"
    assert nearest("x", ["where", "sel"]) is None


def test_an_unknown_name_is_listed_with_the_existing_ones():
    assert unknown("column", "temp", ["time", "temperature"]) == (
        "there is no column 'temp'; did you mean 'temperature'? There are: temperature, time"
    )
    assert unknown("column", "x", []) == "there is no column 'x'; there are: none"
    assert unknown("column", "x", [str(n) for n in range(30)]).endswith("18, 19, …")
    assert shortened(["a", "b", "c"], 2) == "a, b and 1 more"


def test_a_choice_is_one_of_the_allowed_values():
    assert choose("layout", "cells", ("cells", "refs")) == "cells"
    with pytest.raises(InvalidInputError) as raised:
        choose("layout", "rows", ("cells", "refs"))
    assert raised.value.facts == {
        "option": "layout",
        "found": "rows",
        "allowed": ("cells", "refs"),
    }


@pytest.mark.parametrize("word", ["revert", "rollback", "undo"])
def test_words_of_other_tools_lead_to_restore(word, tmp_path):
    repository = Repository.create(str(tmp_path / "r"))
    for owner in (repository, icechunk_format, icechunk_spark):
        with pytest.raises(AttributeError, match=r"is restored by Repository\.restore$"):
            getattr(owner, word)
    with pytest.raises(AttributeError, match=r"no attribute 'snapshotz'$") as caught:
        repository.snapshotz()
    assert (caught.value.name, caught.value.obj) == ("snapshotz", repository)
    assert pickle.loads(pickle.dumps(repository.location)) == repository.location
