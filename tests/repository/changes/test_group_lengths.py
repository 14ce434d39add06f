"""Arrays of a group that fit together on each side fit together after a rebase and a merge."""

from types import SimpleNamespace

import pytest
from helpers.builder import new_repository
from helpers.raised import raises
from helpers.sessions.model import array_document, group_document

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.repository.changes import ChangeSet, changed_groups
from icechunk_format.repository.changes.group_lengths import (
    Disagreement,
    arrays_of,
    new_disagreements,
)


def put(session, path, **lengths):
    """Create or resize an array of chunks of one element."""
    shape, dims = tuple(lengths.values()), tuple(lengths)
    document = array_document(shape, (1,) * len(shape), dimension_names=dims)
    if session.node(path) is None:
        session.create_array(path, document, shape=shape, num_chunks=shape, dimension_names=dims)
    else:
        session.update_metadata(path, document, shape=shape, num_chunks=shape)


def begun(**lengths):
    repository = new_repository()
    session = repository.writable_session()
    for path in ("/", "/g", "/h"):
        session.create_group(path, group_document())
    put(session, "/g/v", **lengths or {"t": 5, "x": 2})
    session.commit("base")
    repository.create_branch("dev", repository.resolve())
    return repository


def recreate(session, path, **lengths):
    session.delete(path)
    put(session, path, **lengths)


def check_lengths(repository):
    tip = repository.snapshot(repository.resolve())
    assert {tip.node(path).array.shape[0] for path in ("/g/u", "/g/v")} == {6}


PAIRS = {
    "append": (lambda s: put(s, "/g/v", t=6, x=2), True),
    "shrink": (lambda s: put(s, "/g/v", t=4, x=2), True),
    "recreate": (lambda s: recreate(s, "/g/v", t=4, x=2), True),
    "another dimension": (lambda s: put(s, "/g/v", t=5, x=3), False),
    "another group": (lambda s: put(s, "/h/v", t=6), False),
    "attributes": (lambda s: s.set_attributes("/g/v", {"units": "K"}), False),
    "dropped": (lambda s: s.delete("/g/v"), False),
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("change", PAIRS)
@pytest.mark.parametrize("how", ["rebase", "merge", "dry run"])
def test_a_new_array_beside_a_change_of_lengths(change, is_first, how):
    repository = begun()
    alter, conflicts = PAIRS[change]
    writers = [lambda s: put(s, "/g/u", t=5), alter]
    first, second = writers if is_first else writers[::-1]
    session = repository.writable_session("main" if how == "rebase" else "dev")
    second(session)
    rival = repository.writable_session()
    first(rival)
    rival.commit("first")
    if how != "rebase":
        session.commit("second")
    # Merges see labels before lengths, and give the new array the labels of an append.
    conflicts = conflicts and (how == "rebase" or change != "append")
    if how == "dry run":
        found = repository.merge("dev", dry_run=True).conflicts
        assert [c.kind.name for c in found] == ["LABELS_NOT_MERGED"] * conflicts
        return
    tip = repository.resolve()
    if not conflicts:
        if how == "rebase":
            session.commit("second")
        else:
            repository.merge("dev")
        if change == "append":
            check_lengths(repository)
        return
    kind = "LENGTHS_DIFFER" if how == "rebase" else "LABELS_NOT_MERGED"
    with raises(ConflictError, kinds=(kind,)):
        if how == "rebase":
            session.commit("second", resolve="ours")
        else:
            repository.merge("dev", resolve="ours")
    assert repository.resolve() == tip


def test_a_group_that_disagreed_before_is_left_alone():
    """The levels of a pyramid have one dimension of different lengths."""
    repository = begun()
    session = repository.writable_session()
    put(session, "/g/half", t=2)
    session.commit("a pyramid, on purpose")
    session = repository.writable_session()
    put(session, "/g/quarter", t=1)
    rival = repository.writable_session()
    put(rival, "/g/v", t=6, x=2)
    rival.commit("append")
    session.commit("another level")


def test_a_side_may_disagree_on_purpose():
    repository = begun()
    session = repository.writable_session()
    put(session, "/g/half", t=2)
    rival = repository.writable_session()
    put(rival, "/g/u", t=5)
    rival.commit("a variable")
    session.commit("the first level of a pyramid")


def test_a_repeated_dimension_has_one_length():
    repository = begun()
    session = repository.writable_session()
    session.create_array(
        "/h/cov",
        array_document((3, 2), (1, 1), dimension_names=("x", "x")),
        shape=(3, 2),
        num_chunks=(3, 2),
        dimension_names=("x", "x"),
    )
    assert [str(c.labels) for c in session.length_conflicts()] == [
        "x is 2 in /h/cov and 3 in /h/cov"
    ]


def test_dimensions_without_a_name_may_differ():
    repository = begun()
    session = repository.writable_session()
    for name, length in (("a", 3), ("b", 4)):
        session.create_array(
            f"/h/{name}",
            array_document((length,), (1,)),
            shape=(length,),
            num_chunks=(length,),
        )
    assert session.length_conflicts() == []


def test_a_rename_into_a_group_of_other_lengths_is_refused():
    repository = begun()
    session = repository.writable_session()
    put(session, "/h/u", t=4)
    session.commit("another length in another group")
    tip = repository.resolve()
    with raises(InvalidInputError, match="t is 5 in /g/v and 4 in /g/u"):
        repository.rename("/h/u", "/g/u")
    assert repository.resolve() == tip
    repository.rename("/h/u", "/h/w")
    repository.rename("/h", "/g/h")
    assert repository.snapshot(repository.resolve()).node("/g/h/w").array.shape == (4,)


def test_a_rename_beside_an_append_conflicts(monkeypatch):
    repository = begun()
    session = repository.writable_session()
    put(session, "/h/u", t=5)
    session.commit("the same length in another group")
    begin = repository.writable_session

    def raced(branch):
        begun_before = begin(branch)
        rival = begin(branch)
        put(rival, "/g/v", t=6, x=2)
        rival.commit("append")
        return begun_before

    monkeypatch.setattr(repository, "writable_session", raced)
    with raises(ConflictError, kinds=("LENGTHS_DIFFER",)):
        repository.rename("/h/u", "/g/u")


def test_a_level_of_a_pyramid_may_be_renamed():
    repository = begun()
    session = repository.writable_session()
    put(session, "/g/half", t=2)
    put(session, "/h/quarter", t=1)
    session.commit("a pyramid, on purpose")
    repository.rename("/g/half", "/g/coarse")
    repository.rename("/h/quarter", "/g/quarter")


def stub(path, shape=None):
    return SimpleNamespace(path=path, array=None if shape is None else SimpleNamespace(shape=shape))


def test_groups_are_changed_by_arrays_with_another_length_or_path():
    stored = {"a": stub("/a/v", (4,)), "b": stub("/b/v", (4,)), "g": stub("/e/g"), "h": stub("/h")}
    base = SimpleNamespace(nodes=SimpleNamespace(with_id=stored.get))
    changes = ChangeSet(
        created={"n": stub("/n/v", (1,)), "k": stub("/k/group"), "r": stub("/", (1,))},
        moved={
            "m": SimpleNamespace(to_path="/m/v", is_array=True),
            "o": SimpleNamespace(to_path="/o/g", is_array=False),
        },
        updated={
            "a": stub("/a/v", (5,)),
            "b": stub("/b/v", (4,)),
            "new": stub("/c/v", (4,)),
            "g": stub("/e/g"),
            "h": stub("/d/h", (3,)),
        },
    )
    assert changed_groups(changes, base) == {"/n", "/m", "/a", "/c", "/d"}


def arrays(**shapes):
    """Return arrays of the dimensions t, one without a name, and x."""
    names = ("t", None, "x")
    return {
        key: SimpleNamespace(shape=s, dimension_names=names[: len(s)]) for key, s in shapes.items()
    }


def test_named_dimensions_that_no_side_had_with_two_lengths_must_agree():
    now = arrays(a=(4, 2, 3), b=(4, 9, 3), c=(5, 2), d=(6, 2, 4))
    of_t, of_x = Disagreement("t", "c", 5, "a", 4), Disagreement("x", "d", 4, "a", 3)
    assert new_disagreements(now, []) == [of_t, of_x]
    assert new_disagreements(now, [arrays(a=(1, 1, 1)), {}]) == [of_t, of_x]
    assert new_disagreements(now, [{}, arrays(a=(1, 1, 1), b=(1, 1, 2))]) == [of_t]
    assert new_disagreements(now, [arrays(a=(1,), b=(2,)), arrays(a=(1, 1, 1), b=(1, 1, 2))]) == []
    assert new_disagreements(arrays(a=(4, 2, 3), b=(4, 9, 3)), [now]) == []
    assert str(of_t) == "t is 5 in c and 4 in a"
    unnamed = {key: SimpleNamespace(shape=(n,), dimension_names=None) for n, key in enumerate("ab")}
    assert new_disagreements(unnamed, []) == []
    nodes = SimpleNamespace(children=lambda path: [stub(f"{path}/g"), stub(f"{path}/v", (3,))])
    assert {key: array.shape for key, array in arrays_of(nodes, "/g").items()} == {"/g/v": (3,)}
