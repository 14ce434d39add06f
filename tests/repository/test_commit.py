"""Commits when stores fail and when others commit: what landed is said, and nothing is lost.

Every single request of a commit fails once in every way; many processes commit to one folder.
"""

import itertools
import multiprocessing
from dataclasses import replace

import pytest
from faulty_storage import Fault, FaultyStorage
from session_model import array_document, group_document, stored_contents

from icechunk_format.errors import (
    AlreadyExistsError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.repository import commit as commit_module
from icechunk_format.repository import publish
from icechunk_format.repository.create import create_repository
from icechunk_format.repository.objects import metadata_cache
from icechunk_format.repository.repo_changes import set_config, set_metadata
from icechunk_format.repository.repository import Repository
from icechunk_format.spec import repo_info
from icechunk_format.spec.repo_updates import Availability, NewCommitUpdate, RepoStatusChangedUpdate
from icechunk_format.spec.values import encode_flexbuffer
from icechunk_format.storage.location import Location
from icechunk_format.storage.memory import MemoryStorage

_numbers = itertools.count(1)


class FaultyRepository(Repository):
    """A repository at a storage that fails."""

    faulty: FaultyStorage

    @property
    def storage(self):
        return self.faulty


def faulty_repository(spec_version):
    url = f"memory://commit-{next(_numbers)}"
    sound = Repository.create(Location(url), spec_version=spec_version)
    session = sound.writable_session()
    session.create_group("/", group_document())
    session.create_array("/a", array_document((8,), (1,)), shape=(8,), num_chunks=(8,))
    session.set_chunk("/a", [0], b"base")
    session.commit("base")
    faulty = FaultyRepository(Location(url), spec_version=spec_version)
    faulty.faulty = FaultyStorage(MemoryStorage(url.removeprefix("memory://")))
    return sound, faulty


def begin(repository):
    session = repository.writable_session()
    session.set_chunks("/a", [[0], [1]], [b"changed", b"x" * 600])
    session.create_group("/g", group_document())
    return session


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(commit_module, "_FIRST_PAUSE", 0.0)


def requests_of_a_commit(spec_version):
    _, repository = faulty_repository(spec_version)
    session = begin(repository)
    repository.faulty.requests.clear()
    metadata_cache().clear()
    session.commit("measured")
    return list(repository.faulty.requests)


def fail_at(repository, fault, numbers):
    repository.faulty.requests.clear()
    repository.faulty.fault = fault
    repository.faulty.at = frozenset(numbers)
    metadata_cache().clear()


def heal(repository):
    repository.faulty.at = frozenset()


EXPECTED_KEYS = ["a/c/0", "a/c/1", "a/zarr.json", "g/zarr.json", "zarr.json"]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", Fault)
def test_every_request_of_a_commit_may_fail_once(spec_version, fault):
    for number, (verb, key) in enumerate(requests_of_a_commit(spec_version)):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        fail_at(repository, fault, [number])
        is_the_decision = verb == "put" and (key == "repo" or key.startswith("refs/"))
        try:
            result = session.commit("tried")
        except StorageError:
            # Said to have failed, so it must have failed; and it can be tried again.
            assert not is_the_decision or fault is Fault.REFUSED, (number, verb, key)
            assert sound.resolve() == base
            heal(repository)
            result = session.commit("tried")
        assert sound.resolve() == result.snapshot_id, (number, verb, key)
        messages = [info.message for info in sound.ancestry()]
        assert messages == ["tried", "base", "Repository initialized"], (number, verb, key)
        contents = stored_contents(sound, result.snapshot_id)
        assert sorted(contents) == EXPECTED_KEYS
        assert contents["a/c/0"] == b"changed"
        if spec_version == 2:
            updates = [update.details for update in sound.operations()]
            assert sum(isinstance(update, NewCommitUpdate) for update in updates) == 2


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_outcome_is_unknown_only_if_nobody_can_look(spec_version):
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    for fault, landed in ((Fault.RESPONSE_LOST, True), (Fault.REQUEST_LOST, False)):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        # The answer is lost, and so is every attempt to look at the store afterwards.
        fail_at(repository, fault, range(decision, decision + 100))
        with pytest.raises(CommitOutcomeUnknownError, match="landed or not"):
            session.commit("tried")
        assert (sound.resolve() != base) == landed


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", [Fault.RESPONSE_LOST, Fault.REPEATED])
def test_what_fails_after_a_write_in_doubt_does_not_make_it_a_failure(spec_version, fault):
    """The answer to the decision is lost, the store is there again, and then fails once more."""
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    for later in (1, 2, 3):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        fail_at(repository, fault, [decision, decision + later])
        try:
            result = session.commit("tried")
        except CommitOutcomeUnknownError:
            pass
        else:
            assert sound.resolve() == result.snapshot_id
        assert sound.resolve() != base


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_commit_whose_answer_was_lost_and_that_others_built_on_is_not_repeated(spec_version):
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    sound, repository = faulty_repository(spec_version)
    session = begin(repository)
    fail_at(repository, Fault.RESPONSE_LOST, [decision])
    put = repository.faulty.put

    def put_then_others(key, *args, **kwargs):
        try:
            return put(key, *args, **kwargs)
        except StorageError:
            other = sound.writable_session()
            other.create_group("/other", group_document())
            other.commit("other")
            raise

    repository.faulty.put = put_then_others
    result = session.commit("tried")
    assert result.rebased == 0
    messages = [info.message for info in sound.ancestry()]
    assert messages == ["other", "tried", "base", "Repository initialized"]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", Fault)
def test_every_request_of_a_creation_may_fail_once(spec_version, fault):
    number = 0
    while True:
        url = f"memory://commit-{next(_numbers)}"
        storage = FaultyStorage(MemoryStorage(url[9:]), fault, frozenset([number]))
        try:
            create_repository(storage, spec_version=spec_version)
        except StorageError:
            if not Repository.exists(url):
                storage = FaultyStorage(MemoryStorage(url[9:] + "-again"))
                create_repository(storage, spec_version=spec_version)
                url += "-again"
        assert Repository.open(url).spec_version == spec_version
        assert len(list(Repository.open(url).ancestry())) == 1
        if number >= len(storage.requests):
            break
        number += 1
    assert number > 3


def test_a_creation_says_when_nobody_can_tell():
    for fault in (Fault.REQUEST_LOST, Fault.RESPONSE_LOST):
        storage = FaultyStorage(MemoryStorage(f"commit-{next(_numbers)}"))
        create_repository(storage)
        decision = len(storage.requests) - 1
        failing = frozenset(range(decision, decision + 10))
        storage = FaultyStorage(MemoryStorage(f"commit-{next(_numbers)}"), fault, failing)
        with pytest.raises(CommitOutcomeUnknownError, match="may exist or not"):
            create_repository(storage)


def test_a_creation_needs_an_empty_place():
    place = MemoryStorage(f"commit-{next(_numbers)}")
    with pytest.raises(InvalidInputError, match="spec version 3"):
        create_repository(place, spec_version=3)
    place.put("some/file", b"x")
    with pytest.raises(AlreadyExistsError, match="is not empty: some/file is there"):
        create_repository(place)
    place.delete_many(["some/file"])
    create_repository(place)
    with pytest.raises(AlreadyExistsError, match="a repository at"):
        create_repository(place)


# -- many writers ------------------------------------------------------------------------------

WRITERS, COMMITS = 8, 3


def write_rows(directory, writer, barrier):
    repository = Repository.open(directory)
    barrier.wait()
    for number in range(COMMITS):
        session = repository.writable_session()
        session.set_chunk("/a", [writer * COMMITS + number], b"%d-%d" % (writer, number))
        session.commit(f"{writer}-{number}")


@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_that_commit_to_one_folder_lose_nothing(tmp_path, spec_version):
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    total = WRITERS * COMMITS
    session.create_array("/a", array_document((total,), (1,)), shape=(total,), num_chunks=(total,))
    session.commit("base")
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WRITERS)
    processes = [
        context.Process(target=write_rows, args=(str(tmp_path), writer, barrier))
        for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    contents = stored_contents(repository, repository.resolve())
    assert {key: data for key, data in contents.items() if "/c/" in key} == {
        f"a/c/{writer * COMMITS + number}": b"%d-%d" % (writer, number)
        for writer in range(WRITERS)
        for number in range(COMMITS)
    }
    messages = [info.message for info in repository.ancestry()]
    assert len(messages) == total + 2
    assert len(set(messages)) == total + 2
    times = [info.flushed_at for info in repository.ancestry()]
    assert times == sorted(set(times), reverse=True)
    if spec_version == 2:
        updates = list(repository.operations())
        assert len(updates) == total + 2
        assert [u.updated_at for u in updates] == sorted(
            {u.updated_at for u in updates}, reverse=True
        )


# -- the log and the race for it ---------------------------------------------------------------


def test_a_long_log_continues_in_backups():
    sound, _ = faulty_repository(2)
    config = encode_flexbuffer({"num_updates_per_repo_info_file": 3})
    publish.update_repo(sound.storage, lambda info: set_config(info, config))
    for number in range(10):
        sound.create_tag(f"tag-{number}", sound.resolve())
    state = repo_info.decode(sound.storage.get("repo").data)
    assert len(state.latest_updates) == 3
    assert state.repo_before_updates is not None
    updates = list(sound.operations())
    assert len(updates) == 13
    assert updates[0].backup_path is None
    assert all(update.backup_path is not None for update in updates[1:])
    for update in updates[1:]:
        assert sound.storage.head(f"overwritten/{update.backup_path}") is not None


def test_a_log_from_the_future_is_not_continued():
    sound, _ = faulty_repository(2)
    fetched = sound.storage.get("repo")
    state = repo_info.decode(fetched.data)
    newest = replace(state.latest_updates[0], updated_at=publish.now_in_microseconds() + 10**10)
    updates = (newest, *state.latest_updates[1:])
    sound.storage.put("repo", repo_info.encode(replace(state, latest_updates=updates)))
    with pytest.raises(InvalidInputError, match="in the future of this machine's clock"):
        sound.create_tag("late", sound.resolve())
    # Small differences between clocks are none.
    soon = publish.now_in_microseconds() + 10**8
    updates = (replace(newest, updated_at=soon), *state.latest_updates[1:])
    sound.storage.put("repo", repo_info.encode(replace(state, latest_updates=updates)))
    sound.create_tag("in time", sound.resolve())
    assert next(sound.operations()).updated_at == soon + 1


def test_a_race_that_is_always_lost_ends():
    sound, _ = faulty_repository(2)
    storage = sound.storage
    numbers = itertools.count()

    def change(info):
        # Another writer comes in between, every time.
        publish.update_repo(storage, lambda i: set_metadata(i, {"other": next(numbers)}))
        return set_metadata(info, {"mine": True})

    with pytest.raises(ConflictError, match="changed by others 3 times"):
        publish.update_repo(storage, change, max_attempts=3)
    assert sound.metadata == {"other": 2}


def test_an_old_state_shown_while_a_write_is_in_doubt_proves_nothing():
    sound, _ = faulty_repository(2)
    storage = sound.storage
    old = storage.get("repo")
    publish.update_repo(storage, lambda info: set_metadata(info, {"n": 1}))

    class Store:
        """Loses the answer to the first write, and then shows what was long ago, once."""

        def __init__(self):
            self.answers = ["lost", "old"]

        def __getattr__(self, name):
            return getattr(storage, name)

        def put(self, key, data, **kwargs):
            done = storage.put(key, data, **kwargs)
            if key == "repo" and self.answers[0] == "lost":
                self.answers.pop(0)
                raise StorageError("reset", outcome_unknown=True)
            return done

        def get(self, key, **kwargs):
            if self.answers == ["old"]:
                self.answers = [""]
                return old
            return storage.get(key, **kwargs)

    seen = []

    def change(info):
        seen.append(info.metadata)
        if info.metadata != {"n": 1}:
            return "what is there is not what this change is for"
        return set_metadata(info, {"n": 2})

    answer = publish.update_repo(Store(), change)
    assert isinstance(answer, publish.Published)
    assert seen == [{"n": 1}]
    assert sound.metadata == {"n": 2}


def test_a_log_that_is_too_short_to_tell_says_so():
    sound, _ = faulty_repository(2)
    storage = sound.storage
    few = encode_flexbuffer({"num_updates_per_repo_info_file": 1})
    publish.update_repo(storage, lambda info: set_config(info, few))

    class Store:
        def __getattr__(self, name):
            return getattr(storage, name)

        def put(self, key, data, **kwargs):
            # It lands, others follow at once, and the log in ``repo`` names only the last of them.
            written = storage.put(key, data, **kwargs)
            if key != "repo":
                return written
            for number in range(3):
                publish.update_repo(storage, lambda i, n=number: set_metadata(i, {"other": n}))
            raise StorageError("reset", outcome_unknown=True)

    with pytest.raises(CommitOutcomeUnknownError, match="landed or not"):
        publish.update_repo(Store(), lambda info: set_metadata(info, {"mine": True}))


def test_a_branch_file_race_that_is_always_lost_ends():
    sound, _ = faulty_repository(1)
    storage = sound.storage
    tip = sound.resolve()

    class Rival:
        def __getattr__(self, name):
            return getattr(storage, name)

        def put(self, key, data, **kwargs):
            storage.put(key, storage.get(key).data + b" ")
            return storage.put(key, data, **kwargs)

    root = list(sound.ancestry())[-1].id
    with pytest.raises(ConflictError, match="changed by others"):
        publish.update_branch_ref(Rival(), "main", root, expected=tip)
    assert sound.resolve() == tip


# -- clocks ------------------------------------------------------------------------------------


def test_a_clock_that_is_wrong_by_much_is_refused(monkeypatch):
    sound, _ = faulty_repository(2)
    base = sound.resolve()
    session = begin(sound)
    now = publish.now_in_microseconds()
    for shift, word in ((3_600_000_000, "ahead of"), (-3_600_000_000, "")):
        monkeypatch.setattr(commit_module, "now_in_microseconds", lambda s=shift: now + s)
        if shift > 0:
            with pytest.raises(InvalidInputError, match=f"3600 s {word} the clock"):
                session.commit("from another time")
            assert sound.resolve() == base
    # A clock that is behind cannot make a version older than its parent.
    session.commit("late")
    times = [info.flushed_at for info in sound.ancestry()]
    assert times[0] == times[1] + 1


# -- branches and tags -------------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repository(request):
    return faulty_repository(request.param)[0]


def test_branches_come_move_and_go(repository):
    base = repository.resolve()
    root = list(repository.ancestry())[-1].id
    repository.create_branch("dev", str(base))
    with pytest.raises(AlreadyExistsError, match="'dev' exists already"):
        repository.create_branch("dev", base)
    with pytest.raises(ConflictError, match="is at snapshot"):
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
    with pytest.raises(InvalidInputError, match="'main' cannot be deleted"):
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
    with pytest.raises(ConflictError, match="cannot be moved forward"):
        repository.fast_forward("main", "audit")


def test_tags_come_and_their_names_never_come_back(repository):
    base = repository.resolve()
    repository.create_tag("v1", base)
    with pytest.raises(AlreadyExistsError, match="'v1' exists already"):
        repository.create_tag("v1", base)
    repository.delete_tag("v1")
    assert repository.tags() == {}
    assert repository.deleted_tags() == ("v1",)
    with pytest.raises(AlreadyExistsError, match="never given out again"):
        repository.create_tag("v1", base)
    with pytest.raises(NotFoundError):
        repository.delete_tag("v1")


def test_names_of_refs(repository):
    base = repository.resolve()
    if repository.spec_version == 2:
        repository.create_branch("a/b ü", base)
        repository.create_tag("a/b ü", base)
        assert "a/b ü" in repository.branches()
        with pytest.raises(InvalidInputError, match="cannot be the name"):
            repository.create_branch("", base)
        return
    for name in ("", "a/b", "."):
        with pytest.raises(InvalidInputError, match="cannot name a branch or tag"):
            repository.create_branch(name, base)
    with pytest.raises(InvalidInputError, match="do not agree on how it is spelled"):
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


def test_settings_belong_to_spec_version_2(repository):
    if repository.spec_version == 1:
        with pytest.raises(UnsupportedError, match="knows no metadata"):
            repository.set_metadata({"a": 1})
        return
    repository.set_metadata({"a": [1, {"b": None}]})
    assert repository.metadata == {"a": [1, {"b": None}]}
    repository.set_feature_flag(4, False)
    assert repository.feature_flags() == {4: False}
    with pytest.raises(ReadOnlyError, match="creating tags is switched off"):
        repository.create_tag("t", repository.resolve())
    repository.set_status(Availability.READ_ONLY, "audit")
    assert repository.status.reason == "audit"
    assert isinstance(next(repository.operations()).details, RepoStatusChangedUpdate)


# -- the other operations, request by request ---------------------------------------------------


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
