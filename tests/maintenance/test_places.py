"""Every public function that takes a place takes a URL, a local path, a `Path` and a `Location`."""

from datetime import UTC, datetime

import pytest
from helpers.sessions.model import group_document

from icechunk_format import Location, Repository
from icechunk_format.drafts import open_draft
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.maintenance import (
    collect_garbage,
    copy,
    expire_snapshots,
    rewrite_manifests,
    verify,
)

FORMS = [str, lambda path: path, lambda path: path.as_uri(), lambda path: Location(str(path))]
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("form", FORMS, ids=["text", "Path", "URL", "Location"])
def test_a_place_may_be_given_in_any_form(tmp_path, form):
    place = form(tmp_path / "r")
    repository = Repository.create(place)
    assert Repository.open(place).location == repository.location
    assert Repository.find(place).location == repository.location
    assert Repository.exists(place)
    session = Repository.open(place).writable_session()
    session.create_group("/", group_document())
    session.commit("first")
    assert verify(place).num_rows
    assert rewrite_manifests(place).commit is None
    copy(place, form(tmp_path / "copied"))
    assert Repository.exists(tmp_path / "copied")
    expire_snapshots(place, older_than=LONG_AGO)
    collect_garbage(place, older_than=LONG_AGO)
    with pytest.raises(NotFoundError):
        open_draft(form(tmp_path / "nothing"))
    assert Location.of(place) == Location(tmp_path / "r") == repository.location


@pytest.mark.parametrize("place", [None, b"/r", 7, ["/r"]])
def test_what_is_no_place_is_named(place):
    for call in (Repository.open, Repository.exists, Repository.create, verify, Location):
        with pytest.raises(InvalidInputError, match="give a URL, a local path or a Location"):
            call(place)
