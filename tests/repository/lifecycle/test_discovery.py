"""Opening a place without a repository reports what is there instead."""

import pickle

import pytest
from helpers.raised import raises

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage


def url_of(memory_repository, below=""):
    return f"{memory_repository.location.url}{below}"


def test_an_empty_place_is_called_empty(memory_repository):
    with raises(NotFoundError, match="nothing is stored", kind="repository"):
        Repository.open(url_of(memory_repository))
    assert not Repository.exists(url_of(memory_repository))


def test_the_name_of_a_metadata_table_is_checked_last(memory_repository):
    with raises(NotFoundError, match="as in #history", kind="repository"):
        Repository.open(url_of(memory_repository, "#branches"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["zarr.json", "t/zarr.json"], "plain Zarr version 3 store"),
        ([".zgroup", "t/.zarray"], "plain Zarr version 2 store"),
        (["data/a.nc"], "other files, such as 'data/a.nc'"),
        (["snapshots/1CECHNKREP0F1RSTCMT0"], "has files of a repository"),
        (["refs/branch.other/ref.json"], "has files of a repository of version 1"),
        (["refs/elsewhere"], "has files of a repository"),
        (["deep/down/repo", "deep/down/snapshots/x"], "is below it, in 'deep/down'"),
        (["old/refs/branch.main/ref.json"], "is below it, in 'old'"),
    ],
)
def test_what_is_there_instead_is_named(memory_repository, keys, message):
    for key in keys:
        memory_repository.storage.put(key, b"{}")
    with raises(NotFoundError, match=message, kind="repository"):
        Repository.open(memory_repository.location)


def test_a_path_to_a_group_inside_of_a_repository_leads_to_the_repository(memory_repository):
    memory_repository.chain(1).write_v2({"main": 1})
    with raises(NotFoundError, match="inside of the repository", kind="repository") as caught:
        Repository.open(url_of(memory_repository, "/weather/t2m"))
    last_line = str(caught.value).splitlines()[-1]
    assert url_of(memory_repository) in last_line
    assert "group=/weather/t2m" in last_line


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        (["r/main/ZZZZZZZZ.json", "s/0"], "import_draft"),
        (["state.json", "s/structure.parquet"], "import_draft"),
        (["refs/branch.other/ref.json", "snapshots/x"], "upgrade"),
    ],
)
def test_drafts_and_half_upgraded_repositories_say_what_makes_them_readable(
    memory_repository, keys, advice
):
    for key in keys:
        memory_repository.storage.put(key, b"{}")
    with pytest.raises(NotFoundError) as caught:
        Repository.open(memory_repository.location)
    last_line = str(caught.value).splitlines()[-1]
    assert advice in last_line
    assert memory_repository.location.url in last_line


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_exists(memory_repository, spec_version):
    memory_repository.chain(1)
    (memory_repository.write_v1 if spec_version == 1 else memory_repository.write_v2)({"main": 1})
    assert Repository.exists(memory_repository.location)
    for opened in (
        Repository.open(url_of(memory_repository)),
        Repository.find(url_of(memory_repository)),
    ):
        assert opened.spec_version == spec_version


def test_the_state_that_was_read_stays_as_it_was():
    repository = Repository.create("memory://as-read")
    view = repository.as_read()
    first = repository.resolve(branch="main")
    repository.create_branch("new", first)
    assert list(view.branches()) == ["main"]
    assert list(view.as_read().branches()) == ["main"]
    assert (
        list(repository.branches())
        == list(pickle.loads(pickle.dumps(view)).branches())
        == ["main", "new"]
    )
    assert view.snapshot(first).id == first


def test_a_damaged_repo_object_is_no_missing_repository(memory_repository):
    memory_repository.storage.put("repo", b"not a repository")
    with raises(FormatError, object_key="repo", field="header"):
        Repository.open(memory_repository.location)


def test_a_local_folder_that_does_not_exist(tmp_path):
    with raises(NotFoundError, kind="repository"):
        Repository.open(str(tmp_path / "nowhere"))
    assert not Repository.exists(str(tmp_path / "nowhere"))
    assert Repository.find(str(tmp_path / "nowhere")) is None
    assert not (tmp_path / "nowhere").exists()


def test_options_of_a_location_do_not_appear(tmp_path):
    location = Location(str(tmp_path), options={"follow_symlinks": "true"})
    open_storage(location).put("x", b"")
    with pytest.raises(NotFoundError) as caught:
        Repository.open(location)
    assert "true" not in str(caught.value)
