"""Runs one call within another one, at a request of each, and compares with both serial orders.

The first call stops before its n-th request, the second one runs up to its m-th request or to its
end, the first one goes on to its end, and then the second one. The first is a process of its own,
forked from the process of the second, which is warm.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.calls import CALLS
from torture.crashes import REPOSITORIES, digest, without_record
from torture.processes import Child, Stage, Watch, staged, tried

from icechunk_format import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.tables import open_dataset

# Those that create what others change, or that need a repository alone.
LEFT_OUT = ("map_blocks", "reduce", "virtualize", "virtualize with copies", "copy")
# Folders of files that never change.
DATA = ("chunks", "manifests", "snapshots", "transactions")
PREPARED = tuple(name for name, call in CALLS.items() if not call.alone and name not in LEFT_OUT)


def partners(spec_version: int) -> list[str]:
    """Return the calls that are paired."""
    return [name for name in PREPARED if spec_version in CALLS[name].versions]


# -- what users see -------------------------------------------------------------------------


# What the versions hold that were prepared, by spec version and snapshot.
_contents: dict[tuple[Path, str], str] = {}


def meaning_of(stage: Stage) -> dict[str, Any]:
    """Return cells by label and attributes of each ref, its messages, and each configuration."""
    metadata_cache().clear()
    found: dict[str, Any] = {}
    prepared, files = stage.prepared(), stage.files()
    changed = {name for name in {**prepared, **files} if prepared.get(name) != files.get(name)}
    is_kept = all(name in files for name in prepared if name.split("/")[1] in DATA)
    for name in REPOSITORIES:
        if name != "repository" and not any(one.startswith(f"{name}/") for one in changed):
            continue
        repository = Repository.find(stage.world.at(name))
        if repository is None:
            continue
        found[f"{name} config"] = digest(repository.config)
        for kind in ("branches", "tags"):
            for ref, tip in getattr(repository, kind)().items():
                # Positions in a message are those of the plan, which a lost race may change.
                messages = [
                    re.sub(r" \(.*\)$", "", info.message)
                    for info in repository.ancestry(snapshot=tip)
                ]
                key = stage.copy, str(tip)
                content = _contents.get(key) if is_kept else None
                content = content or content_of(repository, tip)
                if f"{name}/snapshots/{tip}" in prepared:
                    _contents[key] = content
                found[f"{name} {kind} {ref}"] = content, sorted(messages)
    return found


def content_of(repository: Repository, snapshot: Any) -> str:
    dataset = open_dataset(repository, snapshot)
    found: dict[str, Any] = {}
    for node in repository.snapshot(snapshot).nodes:
        document = json.loads(without_record(node.user_data))
        document.pop("shape", None)
        found[node.path] = document
    for name, variable in dataset.variables.items():
        values = dataset.read(name)
        # An array without labels is known by its positions.
        labels = [
            dataset.read(dim).tolist() if dim in dataset.variables else range(length)
            for dim, length in zip(variable.dims, values.shape, strict=True)
        ]
        cells = zip(itertools.product(*labels), values.ravel().tolist(), strict=True)
        found[f"cells of {name}"] = sorted(cell for cell in cells if cell[1] == cell[1])
    return digest(sorted(found.items()))


# -- two processes --------------------------------------------------------------------------


class Paused:
    """A call in a process of its own, which waits before a request."""

    def __init__(self, name: str, stage: Stage, at: int | None) -> None:
        self._reached, reached = os.pipe()
        go, self._go = os.pipe()

        def act() -> Any:
            watch = Watch()

            def wait(number: int) -> None:
                if number == at:
                    os.write(reached, b".")
                    os.read(go, 1)

            watch.before = wait
            error, message, requests = tried(name, stage.world, watch)
            return error, message, len(requests)

        self._child = Child(act)
        os.close(reached)
        os.close(go)

    def wait(self) -> bool:
        """Wait until it stops; return False if it ended."""
        return bool(os.read(self._reached, 1))

    def end(self) -> tuple[str | None, str, int]:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(self._go, b".")
        os.close(self._reached)
        os.close(self._go)
        result: tuple[str | None, str, int] = self._child.result()
        return result


def interleaved(stage: Stage, names: tuple[str, str], at: tuple[int, int | None]) -> Any:
    """Return both errors and what users see after an interleaving."""
    stage.restore()
    metadata_cache().clear()
    first = Paused(names[0], stage, at[0])
    first.wait()
    ends: list[tuple[str | None, str, int]] = []
    watch = Watch()

    def go_on(number: int) -> None:
        if number == at[1]:
            ends.append(first.end())

    watch.before = go_on
    error, message, _ = tried(names[1], stage.world, watch)
    one = ends[0] if ends else first.end()
    return (one[0], error), meaning_of(stage), (one[1], message)


@dataclass
class Known:
    """The results of calls alone and one after another."""

    stage: Stage
    orders: dict[tuple[str, ...], Any] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)

    def after(self, *names: str) -> tuple[tuple[str | None, ...], dict[str, Any]]:
        if names not in self.orders:
            self.stage.restore()
            metadata_cache().clear()
            ends = [tried(name, self.stage.world) for name in names]
            self.orders[names] = tuple(end[0] for end in ends), meaning_of(self.stage)
            if len(names) == 1:
                self.requests[names[0]] = len(ends[0][2])
        found: tuple[tuple[str | None, ...], dict[str, Any]] = self.orders[names]
        return found


@dataclass
class Report:
    """The outcomes of interleavings."""

    spec_version: int
    runs: int = 0
    pairs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def without_messages(state: dict[str, Any]) -> dict[str, Any]:
    return {key: one[0] if isinstance(one, tuple) else one for key, one in state.items()}


def judged(known: Known, names: tuple[str, str], found: Any) -> tuple[str, str | None]:
    """Return the name of the outcome, and what is wrong."""
    errors, state, told = found
    for first, second in ((0, 1), (1, 0)):
        expected, shown = known.after(names[first], names[second])
        ended = errors[first], errors[second]
        if ended == expected and state == shown:
            return "a serial order", None
        removed = ended == (None, None) and expected == (None, "NotFoundError")
        if removed and without_messages(state) == without_messages(shown):
            return "removed by both", None
        # In version 1, a tag is a file, and that of both is the same.
        is_tag = known.stage.world.spec_version == 1 and names == ("create_tag", "create_tag")
        if is_tag and ended == (None, None) and state == shown:
            return "created by both", None
    for loser, winner in ((0, 1), (1, 0)):
        if errors[loser] == "ConflictError":
            expected, shown = known.after(names[winner])
            if (errors[winner],) == expected and state == shown:
                return "ConflictError", None
    orders = (names, names[::-1])
    serial = {order: known.after(*order)[0] for order in orders}
    parts = {
        order: sorted(k for k in {**state, **known.after(*order)[1]}
                      if state.get(k) != known.after(*order)[1].get(k)) for order in orders
    }  # fmt: skip
    return "wrong", f"errors {errors}, serially {serial}; these differ: {parts}; {told}"


def run_interleavings(root: Path, spec_version: int, seed: int, number: int) -> Report:
    """Run random interleavings of random pairs."""
    report, chance = Report(spec_version), random.Random(seed)
    calls = partners(spec_version)
    known = Known(staged(root, tuple(calls), spec_version))
    seen = set()
    per_pair = 4
    while report.runs < number:
        names = chance.choice(calls), chance.choice(calls)
        known.after(names[0]), known.after(names[1])
        seen.add(names)
        for _ in range(min(per_pair, number - report.runs)):
            # Most races are between the first look at the branch and the commit.
            at = chance.randrange(known.requests[names[0]])
            within = chance.randrange(known.requests[names[1]])
            where = at, chance.choice((None, within))
            run_one(known, names, where, report)
    report.pairs = len(seen)
    return report


def run_one(known: Known, names: tuple[str, str], at: Any, report: Report) -> None:
    outcome, wrong = judged(known, names, interleaved(known.stage, names, at))
    report.runs += 1
    report.outcomes[outcome] += 1
    if wrong:
        report.wrong.append(f"v{report.spec_version} {names} at {at}: {wrong}")
