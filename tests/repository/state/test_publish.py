"""Racing writers replace the state whole, all end, and the log stays in order."""

import itertools
from dataclasses import replace

import pytest
from helpers.raised import raises
from helpers.sessions.model import group_document
from helpers.storage.faulty_repositories import faulty_repository

from icechunk_format.encoding.object_keys import branch_ref_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    StorageError,
)
from icechunk_format.repository import Repository
from icechunk_format.repository.state import publish
from icechunk_format.repository.state.transitions import set_config, set_metadata
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import CreateOnly, ReplaceIfUnchanged

pytestmark = pytest.mark.usefixtures("no_pauses")


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


def test_a_race_that_is_always_lost_ends(monkeypatch):
    monkeypatch.setattr(publish, "MAX_ATTEMPTS", 3)
    sound, _ = faulty_repository(2)
    storage = sound.storage
    numbers = itertools.count()

    def change(info):
        # Another writer comes in between, every time.
        publish.update_repo(storage, lambda i: set_metadata(i, {"other": next(numbers)}))
        return set_metadata(info, {"mine": True})

    with raises(ConflictError, attempts=3):
        publish.update_repo(storage, change)
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
    assert answer.declined is None
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

    with raises(CommitOutcomeUnknownError, key="repo"):
        publish.update_repo(Store(), lambda info: set_metadata(info, {"mine": True}))


def test_a_branch_file_race_that_is_always_lost_ends(monkeypatch):
    monkeypatch.setattr(publish, "MAX_ATTEMPTS", 3)
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
    with raises(ConflictError, attempts=3, branch="main"):
        publish.update_branch_ref(Rival(), "main", root, expected=tip, key=branch_ref_key("main"))
    assert sound.resolve() == tip


class Outrun:
    """A local disk, or what seems to be one, where a rival comes before the first replacement."""

    def __init__(self, storage, key, rival, *, is_certain):
        self._storage, self._key, self._rival = storage, key, rival
        self.lost_race_is_certain = is_certain and storage.lost_race_is_certain

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put(self, key, data, **kwargs):
        if key == self._key:
            rival, self._rival = self._rival, lambda: None
            rival()
        return self._storage.put(key, data, **kwargs)


class OutrunRepository(Repository):
    storage = None


@pytest.mark.parametrize(
    ("is_certain", "error"), [(True, ConflictError), (False, CommitOutcomeUnknownError)]
)
def test_a_lost_race_for_a_branch_that_was_reset_is_known_on_a_local_disk(
    tmp_path, is_certain, error
):
    sound = Repository.create(tmp_path / "r", spec_version=1)
    first = sound.resolve()
    session = sound.writable_session()
    session.create_group("/", group_document())
    session.commit("second")
    repository = OutrunRepository(sound.location, spec_version=1)
    repository.storage = Outrun(
        sound.storage,
        branch_ref_key("main"),
        lambda: sound.reset_branch("main", first),
        is_certain=is_certain,
    )
    session = repository.writable_session()
    session.set_attributes("/", {"n": 2})
    with raises(error):
        session.commit("outrun")
    assert sound.resolve() == first


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_lost_race_is_repeated_on_a_local_disk_though_the_log_is_too_short(tmp_path, is_certain):
    sound = Repository.create(tmp_path / "r")
    few = encode_flexbuffer({"num_updates_per_repo_info_file": 1})
    publish.update_repo(sound.storage, lambda info: set_config(info, few))

    def rival():
        for number in range(3):
            sound.create_tag(f"{number}", sound.resolve())

    storage = Outrun(sound.storage, "repo", rival, is_certain=is_certain)
    if is_certain:
        publish.update_repo(storage, lambda info: set_metadata(info, {"mine": True}))
    else:
        with raises(CommitOutcomeUnknownError, key="repo"):
            publish.update_repo(storage, lambda info: set_metadata(info, {"mine": True}))
    assert sound.metadata == ({"mine": True} if is_certain else {})


def test_a_lost_replacement_wrote_nothing_on_a_local_disk(tmp_path):
    storage = open_storage(Location(str(tmp_path)))
    old = storage.put("k", b"old")
    storage.put("k", b"new")
    assert storage.lost_race_is_certain
    assert storage.put("k", b"lost", condition=ReplaceIfUnchanged(version=old)) is None
    assert storage.get("k").data == b"new"
    # A link may have been made by an earlier attempt of a network file system.
    assert publish.put_if(storage, "k", b"lost", ReplaceIfUnchanged(version=old)) is False
    assert publish.put_if(storage, "k", b"lost", CreateOnly()) is None


class Interrupted:
    """Raises KeyboardInterrupt at a write of an object, or at the first read after one."""

    def __init__(self, storage, key, when):
        self._storage, self._key, self._when = storage, key, when

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put(self, key, data, **kwargs):
        if key != self._key or self._when == "before":
            if self._when == "before" and key.startswith("overwritten/"):
                raise KeyboardInterrupt
            return self._storage.put(key, data, **kwargs)
        if self._when == "not written":
            raise KeyboardInterrupt
        self._storage.put(key, data, **kwargs)
        if self._when == "written":
            raise KeyboardInterrupt
        self._when = "asked"
        raise StorageError("reset", outcome_unknown=True)

    def head(self, key):
        if self._when == "asked":
            raise KeyboardInterrupt
        return self._storage.head(key)


@pytest.mark.parametrize(
    ("when", "after"),
    [("before", {}), ("not written", {}), ("written", {"n": 1}), ("lost", {"n": 1})],
)
def test_an_interrupted_write_says_that_its_outcome_is_unknown(when, after):
    sound, _ = faulty_repository(2)
    storage = Interrupted(sound.storage, "repo", when)
    with pytest.raises(KeyboardInterrupt) as caught:
        publish.update_repo(storage, lambda info: set_metadata(info, {"n": 1}))
    says = "'repo'" in str(caught.value) and "may have landed or not" in str(caught.value)
    assert says == (when != "before")
    assert sound.metadata == after


def test_an_interrupted_branch_file_says_that_its_outcome_is_unknown():
    sound, _ = faulty_repository(1)
    root, key = list(sound.ancestry())[-1].id, branch_ref_key("main")
    with pytest.raises(KeyboardInterrupt, match="may have landed or not"):
        publish.update_branch_ref(
            Interrupted(sound.storage, key, "written"),
            "main",
            root,
            expected=sound.resolve(),
            key=key,
        )
    assert sound.resolve() == root
