"""Writers, readers and keepers of refs, for a store that cannot be relied on.

Each notes what it was told: the commits that it was told to have landed, to have failed, or not to
be known, and the contents that it read. Afterwards the notes are compared with what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.errors import (
    AlreadyExistsError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    import random

    from icechunk_format.repository import Repository

BRANCHES = ("main", "main", "main", "dev")
SHAPES = {"/a": (12,), "/b": (5, 4), "/g/c": (6,)}


@dataclass
class Node:
    """A node of the model: its document, and its chunks by coordinate."""

    document: bytes
    shape: tuple[int, ...] | None = None
    chunks: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def copy(self) -> Node:
        return Node(self.document, self.shape, dict(self.chunks))


Contents = dict[str, Node]
Change = tuple[Any, ...]


def first_contents() -> list[Change]:
    """Return the changes of the first commit."""
    groups = [("group", path, group_document()) for path in ("/", "/g")]
    return groups + [
        ("array", path, array_document(shape, (1,) * len(shape)), shape)
        for path, shape in SHAPES.items()
    ]


def applied(contents: Contents, changes: list[Change]) -> Contents:
    """Return what contents become by changes."""
    nodes = {path: node.copy() for path, node in contents.items()}
    for kind, path, *rest in changes:
        if kind == "group" or kind == "array":
            nodes[path] = Node(*rest)
        elif kind == "set":
            nodes[path].chunks.update(rest[0])
        elif kind == "drop":
            for coords in rest[0]:
                nodes[path].chunks.pop(coords, None)
        elif kind == "document":
            node = nodes[path]
            node.document = rest[0]
            if len(rest) > 1:
                node.shape = rest[1]
                node.chunks = {
                    coords: data
                    for coords, data in node.chunks.items()
                    if all(i < n for i, n in zip(coords, node.shape, strict=True))
                }
        elif kind == "delete":
            for gone in [p for p in nodes if p == path or p.startswith(f"{path}/")]:
                del nodes[gone]
        elif kind == "move":
            for old in [p for p in nodes if p == path or p.startswith(f"{path}/")]:
                nodes[rest[0] + old[len(path) :]] = nodes.pop(old)
    return nodes


def keys_of(contents: Contents) -> dict[str, bytes]:
    """Return contents as the keys of a Zarr store."""
    keys = {}
    for path, node in contents.items():
        base = f"{path[1:]}/" if path != "/" else ""
        keys[f"{base}zarr.json"] = node.document
        for coords, data in node.chunks.items():
            keys[f"{base}{'/'.join(['c', *map(str, coords)])}"] = data
    return keys


def make(session: Any, change: Change) -> None:
    """Make one change in a session."""
    kind, path, *rest = change
    if kind == "group":
        session.create_group(path, rest[0])
    elif kind == "array":
        session.create_array(path, rest[0], shape=rest[1], num_chunks=rest[1])
    elif kind == "set":
        session.set_chunks(path, np.array(list(rest[0])), list(rest[0].values()))
    elif kind == "drop":
        session.delete_chunks(path, np.array(rest[0]))
    elif kind == "document":
        sizes = {"shape": rest[1], "num_chunks": rest[1]} if len(rest) > 1 else {}
        session.update_metadata(path, rest[0], **sizes)
    elif kind == "delete":
        session.delete(path)
    elif kind == "move":
        session.move(path, rest[0])


@dataclass
class Note:
    """A commit as its writer remembers it."""

    message: str
    branch: str
    changes: list[Change]
    base: str = ""
    amends: bool = False
    outcome: str = "failed"
    snapshot: str | None = None
    parent: str | None = None
    rebased: int = 0

    @property
    def replaces(self) -> str | None:
        """The version in whose place this one is, if it is there."""
        return self.base if self.amends else None


@dataclass
class Notes:
    """What all actors remember."""

    commits: list[Note] = field(default_factory=list)
    read: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    refs: dict[tuple[str, str], str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1


@dataclass
class Actor:
    """One who works with the repository, through its own handle."""

    name: str
    repository: Repository
    chance: random.Random
    notes: Notes
    rounds: int

    def some_coords(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        count = self.chance.randint(1, 4)
        return sorted({tuple(self.chance.randrange(n) for n in shape) for _ in range(count)})


class Writer(Actor):
    """Commits random changes; what fails is tried again, with the same session or a new one."""

    def run(self) -> None:
        for number in range(self.rounds):
            try:
                self.one_commit(f"{self.name}-{number}")
            except StorageError:
                self.notes.count("session not begun")

    def one_commit(self, message: str) -> None:
        branch = self.chance.choice(BRANCHES)
        session = self.repository.writable_session(branch)
        amends = self.repository.spec_version == 2 and self.chance.random() < 0.08
        note = Note(message, branch, [], base=str(session.snapshot_id), amends=amends)
        nodes = {node.path: node for node in session.nodes()}
        for change in self.changes(nodes, message):
            make(session, change)
            note.changes.append(change)
        self.notes.commits.append(note)
        resolve = self.chance.choice([None, "ours"])
        for _ in range(4):
            try:
                if amends:
                    done = session.amend(message)
                else:
                    done = session.commit(message, resolve=resolve)
            except CommitOutcomeUnknownError:
                note.outcome = "unknown"
                self.notes.count("outcome unknown")
                return
            except ConflictError:
                self.notes.count("conflict")
                return
            except InvalidInputError:
                # A version that moves nodes is not amended with other changes.
                amends = note.amends = False
                continue
            except StorageError:
                self.notes.count("commit failed")
                continue
            note.outcome, note.snapshot = "landed", str(done.snapshot_id)
            note.parent, note.rebased = str(done.parent_id), done.rebased
            return

    def changes(self, nodes: dict[str, Any], message: str) -> list[Change]:
        arrays = {path: node.array.shape for path, node in nodes.items() if node.array}
        groups = [path for path, node in nodes.items() if not node.array]
        made = [path for path in arrays if path not in SHAPES]
        if self.repository.spec_version == 2 and made and self.chance.random() < 0.06:
            return [("move", self.chance.choice(made), f"/g/moved-{message}")]
        changes: list[Change] = []
        for step in range(self.chance.randint(1, 3)):
            kind = self.chance.choices(
                ["set", "drop", "document", "resize", "array", "delete"], [12, 2, 1, 1, 2, 1]
            )[0]
            path = self.chance.choice(sorted(arrays))
            shape = arrays[path]
            if kind == "set":
                sizes = (3, 40, 700)
                changes.append(
                    ("set", path, {
                        coords: self.chance.randbytes(self.chance.choice(sizes))
                        for coords in self.some_coords(shape)
                    })
                )  # fmt: skip
            elif kind == "drop":
                changes.append(("drop", path, self.some_coords(shape)))
            elif kind == "document":
                path = self.chance.choice(groups)
                changes.append(("document", path, group_document(self.chance.randrange(10**6))))
            elif kind == "resize":
                if any(change[0] == "document" and change[1] == path for change in changes):
                    continue
                shape = (shape[0] + self.chance.randint(0, 3), *shape[1:])
                arrays[path] = shape
                document = array_document(shape, (1,) * len(shape), self.chance.randrange(10**6))
                changes.append(("document", path, document, shape))
            elif kind == "array":
                new = f"/g/{message}-{step}"
                arrays[new] = (4,)
                changes.append(("array", new, array_document((4,), (1,)), (4,)))
            elif kind == "delete" and made:
                path = made.pop()
                if not any(change[1] == path for change in changes):
                    changes.append(("delete", path))
                    del arrays[path]
        return changes or [("set", "/a", {(0,): self.chance.randbytes(9)})]


class Reader(Actor):
    """Reads whole versions, of a branch or anywhere in its history."""

    def run(self) -> None:
        for _ in range(self.rounds):
            try:
                history = list(self.repository.ancestry(branch=self.chance.choice(BRANCHES)))
                snapshot = self.chance.choice(history[:6]).id
                contents = stored_contents(self.repository, snapshot)
            except StorageError:
                self.notes.count("read failed")
            else:
                self.notes.read.append((str(snapshot), contents))


class Keeper(Actor):
    """Creates and deletes tags and branches of its own."""

    def run(self) -> None:
        for number in range(self.rounds):
            kind = self.chance.choice(["tag", "branch"])
            mine = [
                name for (k, name), state in self.notes.refs.items()
                if k == kind and state == "there" and name.startswith(self.name)
            ]  # fmt: skip
            if mine and self.chance.random() < 0.4:
                self.change(kind, self.chance.choice(mine), "gone")
            else:
                self.change(kind, f"{self.name}-{number}", "there")

    def change(self, kind: str, name: str, wanted: str) -> None:
        before = self.notes.refs.get((kind, name), "never")
        try:
            if wanted == "gone":
                getattr(self.repository, f"delete_{kind}")(name)
            else:
                tip = self.repository.resolve(branch="main")
                getattr(self.repository, f"create_{kind}")(name, tip)
        except CommitOutcomeUnknownError:
            self.notes.count("outcome unknown")
            self.notes.refs[kind, name] = "either"
        except StorageError:
            self.notes.count("ref not changed")
            self.notes.refs[kind, name] = before
        except NotFoundError:
            # An old state of the repository was shown, in which something was not there yet.
            self.notes.count("not seen yet")
            self.notes.refs[kind, name] = before
        except AlreadyExistsError as error:
            raise AssertionError(f"{kind} {name} is {before} and was to be {wanted}") from error
        else:
            self.notes.refs[kind, name] = wanted
