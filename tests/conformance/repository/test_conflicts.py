"""Pairs of edits by two writers: the reference finds a conflict just where we find one.

For each edit that landed first, sessions of both libraries that began before are laid over it, one
for each other edit. Where both answers differ, the table below says which one conflicts, and why.
"""

import asyncio

import icechunk
import pytest
from helpers.reference.sessions import PROTOTYPE, open_reference, start
from helpers.sessions.model import array_document, group_document

from icechunk_format.errors import ConflictError

icechunk.set_logs_filter("off")


class Ours:
    """Edits in a session of ours, by keys as Zarr's store has them."""

    def __init__(self, session):
        self.session = session

    def chunk(self, path, place, data):
        self.session.set_chunk(path, [place], data)

    def delete_chunk(self, path, place):
        self.session.delete_chunks(path, [[place]])

    def new_array(self, path, length, version):
        document = array_document((length,), (1,), version)
        self.session.create_array(path, document, shape=(length,), num_chunks=(length,))

    def array(self, path, length, version):
        document = array_document((length,), (1,), version)
        self.session.update_metadata(path, document, shape=(length,), num_chunks=(length,))

    def new_group(self, path, version):
        self.session.create_group(path, group_document(version))

    def group(self, path, version):
        self.session.update_metadata(path, group_document(version))

    def delete(self, path):
        self.session.delete(path)

    def shift(self, path):
        self.session.shift(path, [1])

    def move(self, source, target):
        self.session.move(source, target)

    def conflicts(self):
        try:
            self.session.rebase()
        except ConflictError:
            return True
        return False


class Theirs:
    """The same edits in a session of the reference."""

    def __init__(self, session):
        self.session = session

    def set(self, key, data):
        asyncio.run(self.session.store.set(key, PROTOTYPE.buffer.from_bytes(data)))

    def chunk(self, path, place, data):
        self.set(f"{path[1:]}/c/{place}", data)

    def delete_chunk(self, path, place):
        asyncio.run(self.session.store.delete(f"{path[1:]}/c/{place}"))

    def array(self, path, length, version):
        self.set(f"{path[1:]}/zarr.json", array_document((length,), (1,), version))

    new_array = array

    def group(self, path, version):
        self.set(f"{path[1:]}/zarr.json", group_document(version))

    new_group = group

    def delete(self, path):
        asyncio.run(self.session.store.delete_dir(path[1:]))

    def shift(self, path):
        self.session.shift_array(path, [1])

    def move(self, source, target):
        self.session.move(source, target)

    def conflicts(self):
        try:
            self.session.rebase(icechunk.ConflictDetector())
        except icechunk.RebaseFailedError:
            return True
        return False


def recreate_array(edit, who):
    edit.delete("/g/a")
    edit.new_array("/g/a", 4, who)


def recreate_group(edit, who):
    edit.delete("/g")
    edit.new_group("/g", who)


EDITS = {
    "chunk 0": lambda edit, who: edit.chunk("/g/a", 0, b"%d" % who),
    "chunk 1": lambda edit, who: edit.chunk("/g/a", 1, b"%d" % who),
    "delete chunk 0": lambda edit, who: edit.delete_chunk("/g/a", 0),
    "shift": lambda edit, who: edit.shift("/g/a"),
    "attributes": lambda edit, who: edit.array("/g/a", 6, who),
    "grow": lambda edit, who: edit.array("/g/a", 8, who),
    "shrink": lambda edit, who: edit.array("/g/a", 2, who),
    "delete array": lambda edit, who: edit.delete("/g/a"),
    "recreate array": recreate_array,
    "group": lambda edit, who: edit.group("/g", who),
    "delete group": lambda edit, who: edit.delete("/g"),
    "recreate group": recreate_group,
    "new array": lambda edit, who: edit.new_array("/g/new", 4, who),
    "new group": lambda edit, who: edit.new_group("/g/new", who),
    "new apart": lambda edit, who: edit.new_array(f"/new{who}", 4, who),
    "move array": lambda edit, who: edit.move("/g/a", "/moved"),
    "move group": lambda edit, who: edit.move("/g", "/h"),
    "move other": lambda edit, who: edit.move("/b", "/g/new"),
    "other chunk": lambda edit, who: edit.chunk("/b", 0, b"%d" % who),
}

# By what landed first: what we refuse and the reference lets pass, although nodes without a group
# come of it, two nodes at one path, a moved node that is gone, a deleted node that returns, chunks
# that a smaller array loses, or an array that stays where it was to be deleted. It refuses nothing
# that we pass.
REFUSED_BY_US_ALONE = {
    "shift": {"shrink"},
    "delete array": {"recreate array", "move array", "move group"},
    "recreate array": {
        "delete array",
        "recreate array",
        "delete group",
        "recreate group",
        "move array",
        "move group",
    },
    "delete group": {
        "new array",
        "new group",
        "recreate array",
        "recreate group",
        "move array",
        "move group",
        "move other",
    },
    "recreate group": {
        "recreate array",
        "delete group",
        "recreate group",
        "move array",
        "move group",
    },
    "new array": {"delete group", "recreate group", "move group", "move other"},
    "new group": {"delete group", "recreate group", "move group", "move other"},
}


@pytest.mark.parametrize("first", EDITS)
def test_both_refuse_the_same_second_edits(first, tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path)
    sessions = {}
    for second, edit in EDITS.items():
        moves = second.startswith("move")
        begun = theirs.rearrange_session("main") if moves else theirs.writable_session("main")
        sessions[second] = Ours(repository.writable_session()), Theirs(begun)
        for session in sessions[second]:
            edit(session, 1)
    winner = Ours(repository.writable_session())
    EDITS[first](winner, 2)
    winner.session.commit(first)
    found = {
        second: tuple(session.conflicts() for session in pair) for second, pair in sessions.items()
    }
    differing = {second: pair for second, pair in found.items() if pair[0] != pair[1]}
    assert differing == dict.fromkeys(REFUSED_BY_US_ALONE.get(first, ()), (True, False))
