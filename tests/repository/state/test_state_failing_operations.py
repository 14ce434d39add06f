"""Every operation beside a commit reports what landed, whichever request fails.

Every single request fails once in every way; what an operation changed is compared as a whole.
"""

import itertools

import pytest
from helpers.storage.faulty_repositories import begin, fail_at, faulty_repository, heal
from helpers.storage.faulty_storage import Fault

from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.updates import Availability
from icechunk_format.errors import CommitOutcomeUnknownError, StorageError

pytestmark = pytest.mark.usefixtures("no_pauses")


def amend(repository):
    begin(repository).amend("tried")


def flush(repository):
    begin(repository).flush("tried")


# What an operation needs beforehand, what it does, and how the branches and tags look afterwards.
OPERATIONS = {
    "amend": (None, amend),
    "flush": (None, flush),
    "create branch": (None, lambda r: r.create_branch("new", r.resolve())),
    "delete branch": (
        lambda r: r.create_branch("old", r.resolve()),
        lambda r: r.delete_branch("old"),
    ),
    "reset branch": (None, lambda r: r.reset_branch("main", list(r.ancestry())[-1].id)),
    "fast forward": (
        lambda r: r.create_branch("behind", list(r.ancestry())[-1].id),
        lambda r: r.fast_forward("behind", "main"),
    ),
    "create tag": (None, lambda r: r.create_tag("new", r.resolve())),
    "delete tag": (lambda r: r.create_tag("old", r.resolve()), lambda r: r.delete_tag("old")),
    "metadata": (None, lambda r: r.set_metadata({"a": 1})),
    "status": (None, lambda r: r.set_status(Availability.READ_ONLY, "audit")),
    "feature flag": (None, lambda r: r.set_feature_flag(4, False)),
}
OF_VERSION_2 = {"amend", "metadata", "status", "feature flag"}
CASES = [(1, name) for name in OPERATIONS if name not in OF_VERSION_2]

CASES += [(2, name) for name in OPERATIONS]


def looks(repository):
    """Return all that the operations change, but for what is random or a time."""
    versions = [info.message for info in repository.ancestry()]
    names = {id: n for n, id in enumerate(info.id for info in repository.ancestry())}
    refs = [
        {name: names.get(id, "elsewhere") for name, id in found.items()}
        for found in (repository.branches(), repository.tags())
    ]
    listed = settings = None
    if repository.spec_version == 2:
        state = repo_info.decode(repository.storage.get("repo").data)
        listed = sorted(info.message for info in state.snapshots.values())
        settings = (repository.metadata, repository.feature_flags(), repository.status.availability)
    return versions, refs, repository.deleted_tags(), listed, settings


@pytest.mark.parametrize(("spec_version", "name"), CASES)
def test_every_request_of_an_operation_may_fail_once(spec_version, name):
    prepare, operate = OPERATIONS[name]

    def prepared():
        sound, repository = faulty_repository(spec_version)
        if prepare is not None:
            prepare(sound)
        return sound, repository

    sound, repository = prepared()
    before = looks(sound)
    operate(repository)
    after = looks(sound)
    assert (before == after) == (name == "flush" and spec_version == 1)
    requests = len(repository.faulty.requests)
    for fault, number in itertools.product(Fault, range(requests)):
        sound, repository = prepared()
        fail_at(repository, fault, [number])
        where = (fault, number, *repository.faulty.requests[number : number + 1])
        try:
            operate(repository)
        except CommitOutcomeUnknownError:
            pytest.fail(f"one fault, and nobody looked: {where}")
        except StorageError:
            # Said to have failed, so nothing may have changed; and it can be done again.
            assert looks(sound) == before, where
            heal(repository)
            operate(repository)
        assert looks(sound) == after, where


# A flush in version 1 decides nothing: the version is there when its files are.
@pytest.mark.parametrize(("spec_version", "name"), [c for c in CASES if c != (1, "flush")])
@pytest.mark.parametrize("fault", [Fault.RESPONSE_LOST, Fault.REQUEST_LOST])
def test_an_operation_says_when_nobody_can_tell(spec_version, name, fault):
    prepare, operate = OPERATIONS[name]
    sound, repository = faulty_repository(spec_version)
    if prepare is not None:
        prepare(sound)
    operate(repository)
    writes = [
        n for n, (verb, _) in enumerate(repository.faulty.requests) if verb in ("put", "delete")
    ]
    sound, repository = faulty_repository(spec_version)
    if prepare is not None:
        prepare(sound)
    before = looks(sound)
    fail_at(repository, fault, range(writes[-1], writes[-1] + 100))
    with pytest.raises(CommitOutcomeUnknownError, match="may have landed or not"):
        operate(repository)
    assert (looks(sound) == before) == (fault is Fault.REQUEST_LOST)
