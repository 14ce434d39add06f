"""A repository is created once, in an empty place, also when the store fails."""

import pytest
from helpers.builder import new_place
from helpers.raised import raises
from helpers.storage.faulty_storage import Fault, FaultyStorage

from icechunk_format.errors import (
    AlreadyExistsError,
    CommitOutcomeUnknownError,
    InvalidInputError,
    StorageError,
)
from icechunk_format.repository import Repository
from icechunk_format.repository.lifecycle.create import create_repository
from icechunk_format.storage.memory import MemoryStorage

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", Fault)
def test_every_request_of_a_creation_may_fail_once(spec_version, fault):
    number = 0
    while True:
        url = new_place()
        storage = FaultyStorage(MemoryStorage(url[9:]), fault, frozenset([number]))
        try:
            create_repository(storage, spec_version=spec_version)
        except StorageError:
            if not Repository.exists(url):
                storage = FaultyStorage(MemoryStorage(url[9:]))
                create_repository(storage, spec_version=spec_version)
        assert Repository.open(url).spec_version == spec_version
        assert len(list(Repository.open(url).ancestry())) == 1
        if number >= len(storage.requests):
            break
        number += 1
    assert number > 3


def test_a_creation_says_when_nobody_can_tell():
    for fault in (Fault.REQUEST_LOST, Fault.RESPONSE_LOST):
        storage = FaultyStorage(MemoryStorage(new_place()[9:]))
        create_repository(storage)
        decision = len(storage.requests) - 1
        failing = frozenset(range(decision, decision + 10))
        storage = FaultyStorage(MemoryStorage(new_place()[9:]), fault, failing)
        with raises(CommitOutcomeUnknownError, key="repo"):
            create_repository(storage)


def test_a_creation_needs_an_empty_place():
    place = MemoryStorage(new_place()[9:])
    with raises(InvalidInputError, match="spec version 3", found=3, allowed=(1, 2)):
        create_repository(place, spec_version=3)
    place.put("some/file", b"x")
    with raises(
        AlreadyExistsError, match="is not empty .it contains some/file.", found=("some/file",)
    ):
        create_repository(place)
    place.delete_many(["some/file"])
    create_repository(place)
    with raises(AlreadyExistsError, match="a repository at", kind="repository"):
        create_repository(place)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_of_two_creators_at_once_one_wins(spec_version):
    place = MemoryStorage(new_place()[9:])

    class Overtaken:
        def __getattr__(self, name):
            return getattr(place, name)

        def put_many(self, items):
            create_repository(place, spec_version=spec_version)
            place.put_many(items)

    with raises(AlreadyExistsError, kind="repository", location=place.root_url):
        create_repository(Overtaken(), spec_version=spec_version)
    [root] = Repository.open(place.root_url).ancestry()
    assert str(root.id) == "1CECHNKREP0F1RSTCMT0"
