"""A destination is the newest snapshot of a branch, of main for a new branch, or a new place."""

import pytest
from helpers.raised import raises

from icechunk_format.errors import AlreadyExistsError, NotFoundError
from icechunk_format.groups.changing import open_destination
from icechunk_format.groups.changing.destination import branch_missing, check_new_location
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import VirtualAccess


def two_branches(place):
    """Make a repository whose branches main and dev have different snapshots; return these."""
    repository = Repository.create(place)
    tips = {}
    for branch in ("main", "dev"):
        if branch != "main":
            repository.create_branch(branch, repository.resolve())
        session = repository.writable_session(branch)
        session.create_group("/" if branch == "main" else "/g", b'{"node_type": "group"}')
        tips[branch] = session.commit(branch).snapshot_id
    return tips


@pytest.mark.parametrize(
    ("branch", "creates", "base"),
    [
        ("main", False, "main"),
        ("dev", False, "dev"),
        ("dev", True, "dev"),
        ("new", True, "main"),
    ],
)
def test_the_base_of_a_branch(place, branch, creates, base):
    tips = two_branches(place)
    options = WriteOptions(branch=branch, create_branch=creates)
    destination, found = open_destination(place, options)
    assert destination.base == tips[base]
    assert found is not None
    assert branch_missing(Repository.open(place), options) == (branch == "new")


def test_a_branch_that_is_not_there_must_be_asked_for(place):
    options = WriteOptions(branch="new")
    with raises(NotFoundError, kind="branch", name="new"):
        check_new_location(Location(place), options)
    check_new_location(Location(place), WriteOptions(branch="new", create_branch=True))
    check_new_location(Location(place), WriteOptions())
    two_branches(place)
    with raises(NotFoundError, kind="branch", name="new", match="createBranch=true"):
        branch_missing(Repository.open(place), options)
    match = "branches that exist: .*; set createBranch=true"
    with raises(NotFoundError, kind="branch", match=match):
        open_destination(place, options)


def test_a_new_place_must_be_empty_but_for_files_of_a_failed_write(tmp_path):
    open_destination(str(tmp_path), WriteOptions())
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "left").write_bytes(b"by a write that failed")
    open_destination(str(tmp_path), WriteOptions())
    (tmp_path / "notes.txt").write_text("of a user")
    with raises(AlreadyExistsError, found=("notes.txt",)):
        open_destination(str(tmp_path), WriteOptions())


def test_the_format_is_that_of_the_repository(place):
    repository = Repository.create(place, spec_version=1)
    destination, _ = open_destination(place, WriteOptions())
    assert destination.manifest_format.spec_version == 1
    assert destination.manifest_format.config == repository.config
    assert destination.location == Location(place)
    new, found = open_destination(f"{place}-new", WriteOptions(spec_version=1))
    assert (new.base, found, new.manifest_format.spec_version) == (None, None, 1)


def test_access_and_configuration_are_those_of_the_destination(place):
    access = VirtualAccess(("s3://b/",), {"region": "eu-west-1"})
    repository = Repository.create(place)
    repository.update_config({"inline_chunk_threshold_bytes": 7})
    for root in (place, f"{place}-new"):
        destination, _ = open_destination(root, WriteOptions(), access)
        assert destination.chunk_source.access == access
    assert open_destination(place, WriteOptions())[0].inline_threshold == 7
