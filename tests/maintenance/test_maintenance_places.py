"""Every public function that takes a place takes a URL, a local path, a `Path` and a `Location`."""

from datetime import UTC, datetime, timedelta

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
    assert set(verify(place)["severity"].to_pylist()) == {"info"}
    assert rewrite_manifests(place).commit is None
    copied = copy(place, form(tmp_path / "copied"))
    assert (
        Repository.open(tmp_path / "copied").resolve() == copied.snapshot_id == repository.resolve()
    )
    later = datetime.now(UTC) + timedelta(seconds=5)
    repository.create_branch("old", repository.resolve())
    assert expire_snapshots(place, later, delete_expired_branches=True).deleted_branches == ("old",)
    repository.storage.put("chunks/ZZZZZZZZZZZZZZZZZZZG", b"litter")
    assert collect_garbage(place, older_than=LONG_AGO).chunks_deleted == 0
    assert collect_garbage(place, timedelta(days=30), dry_run=True).chunks_deleted == 0
    assert collect_garbage(place, "0min", dry_run=True).chunks_deleted == 1
    assert collect_garbage(place, older_than=later).chunks_deleted == 1
    with pytest.raises(NotFoundError):
        open_draft(form(tmp_path / "nothing"))
    assert Location.of(place) == Location(tmp_path / "r") == repository.location


@pytest.mark.parametrize("place", [None, b"/r", 7, ["/r"]])
def test_what_is_no_place_is_named(place):
    for call in (Repository.open, Repository.exists, Repository.create, verify, Location):
        with pytest.raises(InvalidInputError, match="give a URL, a local path or a Location"):
            call(place)
