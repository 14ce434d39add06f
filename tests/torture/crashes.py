"""Kills a process at the requests of a call, and compares what is left with runs that ended.

The states that may be seen come from a run that is not killed, and what the same call does
afterwards comes from a run that is made twice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.sessions.model import stored_contents
from torture.calls import CALLS, World, soon
from torture.processes import (
    Server,
    Stage,
    changes_something,
    dying,
    in_child,
    staged,
    tried,
)

from icechunk_format import Repository
from icechunk_format.maintenance import collect_garbage, verify
from icechunk_format.repository.files import metadata_cache
from icechunk_format.workflows.mirroring import DeltaTarget

REPOSITORIES = (
    *("repository", "new", "mapped", "reduced", "rechunked", "archive", "copied", "created"),
)

# The log of operations has a copy that was interrupted after its first update, with a backup.
LOGGED = ("copied/overwritten",)


@dataclass
class Row:
    """The outcomes of the kills of one call."""

    name: str
    spec_version: int
    requests: int = 0
    crashes: int = 0
    followed: int = 0
    states: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def digest(found: object) -> str:
    return hashlib.sha1(repr(found).encode()).hexdigest()[:12]


_digests: dict[tuple[str, str], str] = {}


def shown_by(world: World, repository: Repository, snapshot: Any) -> tuple[tuple[str, ...], str]:
    """Return the messages of a history and a digest of every byte of its newest version."""
    messages = tuple(info.message for info in repository.ancestry(snapshot=snapshot))
    key = (str(repository.location), str(snapshot))
    if key not in _digests:
        files = (f"file://{world.files}/",)
        found = stored_contents(repository, snapshot, files)
        named = {name: without_record(data) for name, data in found.items()}
        _digests[key] = digest(sorted(named.items()))
    return messages, _digests[key]


def without_record(data: bytes) -> bytes:
    """Return a document without what a followed result notes, since that has random ids."""
    if b"icechunk_spark_" not in data:
        return data
    document = json.loads(data)
    attributes = document["attributes"].items()
    kept = {key: value for key, value in attributes if not key.startswith("icechunk_spark_")}
    return json.dumps(document | {"attributes": kept}).encode()


def state_of(world: World) -> dict[str, Any]:
    """Return what a reader sees: each ref of each repository, configuration, rows of the table.

    What a version holds is read once in a process, unless ``_digests`` is cleared.
    """
    metadata_cache().clear()
    found: dict[str, Any] = {}
    for name in REPOSITORIES:
        repository = Repository.find(world.at(name))
        if repository is None:
            continue
        found[f"{name} is there"] = repository.spec_version
        found[f"{name} config"] = digest(repository.config)
        for kind in ("branches", "tags"):
            for ref, tip in getattr(repository, kind)().items():
                # The branch of an interrupted copy goes with the next copy.
                if not ref.startswith("copying/"):
                    found[f"{name} {kind} {ref}"] = shown_by(world, repository, tip)
    found |= table_of(world)
    return found


def table_of(world: World) -> dict[str, Any]:
    if not Path(world.folder, "table").exists():
        return {}
    table = DeltaTarget.of(f"{world.folder}/table").open(None)
    if table is None:
        return {}
    rows = table.to_pyarrow_table().to_pylist()
    return {"table": digest(sorted(map(repr, rows)))}


def versions_of(world: World) -> dict[str, list[Any]]:
    """Return what each branch shows at each of its versions."""
    found = {}
    for name in REPOSITORIES:
        repository = Repository.find(world.at(name))
        for branch in () if repository is None else repository.branches():
            history = list(repository.ancestry(branch=branch))
            shown = [shown_by(world, repository, info.id) for info in history]
            found[f"{name} branches {branch}"] = shown
    return found


def errors_of(world: World) -> list[str]:
    """Return the errors that ``verify`` finds."""
    found = []
    for name in REPOSITORIES:
        if Repository.find(world.at(name)) is not None:
            rows = verify(world.at(name)).to_pylist()
            found += [f"{name}: {row['message']}" for row in rows if row["severity"] == "error"]
    return found


def unused_after_collection(
    stage: Stage, clean: tuple[dict[str, int], ...] = ()
) -> tuple[list[str], dict[str, int]]:
    """Collect; return what ``verify`` says of unused objects, and the number of objects by kind.

    If as many objects are left as in a run whose objects were verified, they are not verified.
    """
    world, said = stage.world, []
    places = [world.at(name) for name in REPOSITORIES if Repository.find(world.at(name))]
    for place in places:
        collect_garbage(place, soon(), trim_overwritten_older_than=soon())
    count: Counter[str] = Counter()
    for name, keys in stage.keys().items():
        is_repository = world.at(name) in places
        for key in keys:
            kind = key.split("/")[0]
            # A staged file may be in any folder.
            kind = "staged" if "/.storage-" in f"/{key}" else kind
            if is_repository:
                count[f"{name}/{kind}"] += 1
    for place in () if dict(count) in clean else places:
        said += [
            f"{place.url}: {row['kind']} {row['message']}" for row in verify(place).to_pylist()
            if row["severity"] == "error" or row["kind"] == "unreferenced"
        ]  # fmt: skip
    return said, dict(count)


@dataclass
class Outcome:
    """A state, and what comes of the same call and a collection after it."""

    state: dict[str, Any]
    errors: list[str]
    error: str | None = None
    again: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    message: str = ""


def followed(stage: Stage, name: str, *clean: dict[str, int]) -> Outcome:
    """Look at the state, make the call, look again, and collect."""
    outcome = Outcome(state_of(stage.world), errors_of(stage.world))
    outcome.error, outcome.message, _ = tried(name, stage.world)
    outcome.again = state_of(stage.world)
    outcome.said, outcome.objects = unused_after_collection(stage, clean)
    _digests.clear()
    if tips(state_of(stage.world)) != tips(outcome.again):
        outcome.said.append("the collection changed what refs show")
    return outcome


def tips(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the history that an expiration shortens."""
    return {key: found[1] if isinstance(found, tuple) else found for key, found in state.items()}


def run_whole(stage: Stage, name: str) -> tuple[list[tuple[str, str]], dict[str, list[Any]]]:
    """Bring the world back, and make the call; return its requests and the versions after it."""
    stage.restore()
    error, message, requests = tried(name, stage.world)
    assert error is None, message
    return requests, versions_of(stage.world)


# Their clients have threads, which a fork stops: a process that is forked uses none of them.
WITH_CLIENTS = ("mirror", "virtualize")


def warm(stage: Stage, name: str) -> None:
    """Make the call once on a local disk, so that what is forked has loaded what it takes."""
    if not name.startswith(WITH_CLIENTS):
        local = replace(stage, world=replace(stage.world, url=stage.world.folder, options={}))
        replace(local, bucket=None).restore()
        tried(name, local.world)


def points(requests: list[tuple[str, str]], is_local: bool, most: int | None) -> list[Any]:
    """Return the requests and places at which to die: all, or about so many.

    After a read is before the next request.
    """
    every = []
    for number, request in enumerate(requests):
        every.append((number, "before"))
        if is_local and request[0] in ("put", "copy"):
            every.append((number, "within"))
        if changes_something(request) or number == len(requests) - 1:
            every.append((number, "after"))
    if most is None:
        return every
    # Reads change nothing: a process that dies at them leaves what the last write left.
    close = [one for one in every if one[1] != "before" and changes_something(requests[one[0]])]
    close = close or every  # the table of a mirror is not written through a storage of ours
    decisive = [
        one for one in close if requests[one[0]][1].split("/")[1] in ("repo", "refs", "config.yaml")
    ]
    step = max(1, -(-len(close) // most))
    return sorted({*close[::step], *decisive[-2:]})


def killed(
    server: Server, stage: Stage, name: str, number: int, place: str
) -> list[tuple[str, str]] | None:
    """Kill a call at a request; return its requests, or None if it has fewer.

    Only a few calls differ by a request, so that the last one is not always reached.
    """
    note = Path(f"{stage.world.folder}-requests")
    for _ in range(5):
        server(stage.restore)
        if in_child(tried, name, stage.world, dying(number, place, note)) is None:
            return [(verb, key) for verb, key in json.loads(note.read_text())]
    return None


def crashes_of(
    root: Path,
    name: str,
    spec_version: int,
    most: int | None,
    bucket: dict[str, str] | None = None,
    chunks: str = "native",
) -> Row:
    """Kill a process at requests of a call; return what came of it.

    What is left is followed once for the kills after the same writes that leave the same files.
    """
    call, row = CALLS[name], Row(name, spec_version)
    stage = staged(root, (name,), spec_version, bucket, chunks)
    known: dict[Any, Outcome] = {}
    with Server() as server:
        requests, versions = server(run_whole, stage, name)
        once: Outcome = server(followed, stage, name)
        server(stage.restore)
        before: Outcome = server(followed, stage, name)
        row.requests = len(requests)
        row.wrong += [f"not killed: {problem}" for problem in before.errors + before.said]
        row.wrong += [f"made twice: {problem}" for problem in once.errors + once.said]
        warm(stage, name)
        for number, place in points(requests, bucket is None, most):
            done = killed(server, stage, name, number, place)
            if done is None:
                continue
            row.crashes += 1
            writes = sum(map(changes_something, done[: number + (place == "after")]))
            left = writes, server(stage.left)
            if left not in known:
                known[left] = server(followed, stage, name, before.objects, once.objects)
            what, wrong = judged(known[left], before, once, versions, is_in_steps=call.steps)
            row.states[what] += 1
            where = f"{place} request {number} {' '.join(done[number])} ({what})"
            row.wrong += [f"{where}: {problem}" for problem in wrong]
    row.followed = len(known)
    shutil.rmtree(root)
    return row


def judged(
    found: Outcome, before: Outcome, once: Outcome, versions: dict[str, Any], *, is_in_steps: bool
) -> tuple[str, list[str]]:
    """Return the name of the state that was found, and what is wrong."""
    wrong = [*found.errors, *found.said]
    if found.state == before.state:
        what, expected = "as it was", before
    elif found.state == once.state:
        what, expected = "whole", once
    else:
        what, expected = "between", before
        odd = {
            key: shown for key, shown in found.state.items()
            if shown not in (before.state.get(key), once.state.get(key))
            and shown not in versions.get(key, ())
            # Settings of a repository that is not whole yet.
            and not (key.endswith(" config") and key not in before.state)
        }  # fmt: skip
        gone = before.state.keys() & once.state.keys() - found.state.keys()
        if not is_in_steps or odd or gone:
            wrong.append(f"neither as it was nor whole: {odd or found.state} {sorted(gone)}")
    if found.error != expected.error:
        wrong.append(f"made again: {found.error} {found.message}, not {expected.error}")
    if tips(found.again) != tips(expected.again):
        names = sorted(k for k in expected.again if expected.again[k] != found.again.get(k))
        wrong.append(f"made again, these differ: {names}")
    # A collection changes nothing that is shown.
    known = (before.objects, once.objects) if before.state == once.state else (expected.objects,)
    left = {key: min(count, known[-1].get(key, count)) if key in LOGGED else count
            for key, count in found.objects.items()}  # fmt: skip
    if what != "between" and left not in known:
        wrong.append(f"these objects are left, not those: {differing(left, known[-1])}")
    return what, wrong


def differing(one: dict[str, int], other: dict[str, int]) -> dict[str, tuple[int, int]]:
    pairs = {key: (one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
