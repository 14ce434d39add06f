"""Branches and tags are created, moved and deleted, under names that every store can hold."""

from contextlib import suppress

import pytest
from helpers.raised import raises
from helpers.storage.faulty_repositories import faulty_repository
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.repo_info.updates import Availability, RepoStatusChangedUpdate
from icechunk_format.encoding.repo_info.v1_branches_and_tags import encode_ref_json
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repository(request):
    return faulty_repository(request.param)[0]


def test_branches_come_move_and_go(repository):
    base = repository.resolve()
    root = list(repository.ancestry())[-1].id
    repository.create_branch("dev", str(base))
    with raises(AlreadyExistsError, kind="branch", name="dev"):
        repository.create_branch("dev", base)
    with raises(ConflictError, branch="dev"):
        repository.reset_branch("dev", root, from_=root)
    assert repository.branches()["dev"] == base
    repository.reset_branch("dev", root, from_=base)
    assert repository.branches()["dev"] == root
    repository.reset_branch("dev", base)
    repository.delete_branch("dev")
    assert list(repository.branches()) == ["main"]
    for act in (
        lambda: repository.delete_branch("dev"),
        lambda: repository.reset_branch("dev", base),
        lambda: repository.fast_forward("dev", "main"),
        lambda: repository.fast_forward("main", "dev"),
        lambda: repository.create_branch("x", "1CECHNKREP0F1RSTCMTG"),
    ):
        with pytest.raises(NotFoundError):
            act()
    with raises(InvalidInputError, name="main"):
        repository.delete_branch("main")


def test_an_audit_branch_is_published_by_moving_main_forward(repository):
    repository.create_branch("audit", repository.resolve())
    session = repository.writable_session("audit")
    session.set_chunk("/a", [5], b"checked")
    tip = session.commit("audited").snapshot_id
    assert repository.fast_forward("main", "audit") == tip
    assert repository.fast_forward("main", "audit") == tip
    assert repository.resolve() == tip
    for branch in ("main", "audit"):
        session = repository.writable_session(branch)
        session.set_chunk("/a", [6], branch.encode())
        session.commit(f"on {branch}")
    tips = [str(repository.resolve(branch=branch)) for branch in ("main", "audit")]
    with raises(ConflictError, branch="main", tip=tips[0], goal=tips[1]):
        repository.fast_forward("main", "audit")


def test_tags_come_and_their_names_never_come_back(repository):
    base = repository.resolve()
    repository.create_tag("v1", base)
    with raises(AlreadyExistsError, kind="tag", name="v1", deleted=False):
        repository.create_tag("v1", base)
    repository.delete_tag("v1")
    assert repository.tags() == {}
    assert repository.deleted_tags() == ("v1",)
    with raises(AlreadyExistsError, kind="tag", name="v1", deleted=True):
        repository.create_tag("v1", base)
    with pytest.raises(NotFoundError):
        repository.delete_tag("v1")


def test_names_of_refs(repository):
    base = repository.resolve()
    if repository.spec_version == 2:
        repository.create_branch("a/b ü", base)
        repository.create_tag("a/b ü", base)
        assert "a/b ü" in repository.branches()
        with raises(InvalidInputError, kind="branch", name=""):
            repository.create_branch("", base)
        return
    for name in ("", "a/b"):
        with raises(InvalidInputError, found=name):
            repository.create_branch(name, base)
    with raises(InvalidInputError, match="encode it differently", kind="tag", name="ü"):
        repository.create_tag("ü", base)


@pytest.mark.parametrize("name", ["ü", "%C3%BC"])
def test_oddly_spelled_branches_of_others_can_be_moved(name):
    sound, _ = faulty_repository(1)
    storage = sound.storage
    storage.put(f"refs/branch.{name}/ref.json", storage.get("refs/branch.main/ref.json").data)
    session = sound.writable_session("ü")
    session.set_chunk("/a", [5], b"odd")
    tip = session.commit("odd").snapshot_id
    assert sound.branches()["ü"] == tip
    assert [o.key for o in storage.list("refs/branch.") if "main" not in o.key] == [
        f"refs/branch.{name}/ref.json"
    ]
    sound.delete_branch("ü")
    assert list(sound.branches()) == ["main"]


@given(st.lists(st.text("%25EC3BF./aé~ \\\0", max_size=6), max_size=5))
@example(["", ".", "..", "%25", "%2525", "%", "%2F", "%00", "a%C3%A9", "aé", "main"])
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_branch_of_version_1_is_found_by_the_name_that_is_listed(spellings):
    sound, _ = faulty_repository(1)
    storage, tip = sound.storage, sound.resolve()
    for spelling in spellings:
        if "/" not in spelling:
            with suppress(InvalidInputError):  # what no store takes as a key
                storage.put(f"refs/branch.{spelling}/ref.json", encode_ref_json(tip))
    for _ in range(2):  # because two spellings may stand for one name
        for name in sound.branches():
            assert sound.resolve(branch=name) == tip
            if name != "main":
                sound.delete_branch(name)
    assert [found.key for found in storage.list("refs/")] == ["refs/branch.main/ref.json"]


def test_settings_belong_to_spec_version_2(repository):
    if repository.spec_version == 1:
        with raises(UnsupportedError, match="has no metadata", spec_version=1):
            repository.set_metadata({"a": 1})
        return
    repository.set_metadata({"a": [1, {"b": None}]})
    assert repository.metadata == {"a": [1, {"b": None}]}
    repository.set_feature_flag(4, False)
    assert repository.feature_flags() == {4: False}
    with raises(ReadOnlyError, flag=4):
        repository.create_tag("t", repository.resolve())
    repository.set_status(Availability.READ_ONLY, "audit")
    assert repository.status.reason == "audit"
    assert isinstance(next(repository.operations()).details, RepoStatusChangedUpdate)
