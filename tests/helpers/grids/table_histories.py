"""Random changes of two branches of one table, beside a model that holds their cells by label.

Each change and each merge is read by the reference and xarray. ``three_way`` is the law of merges:
each cell stays at its label, and a change of the same thing by both sides is refused.
"""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import icechunk
import pyarrow as pa
import xarray as xr
import zarr

from icechunk_format import ConflictError, Repository
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.rechunking import (
    RechunkRequest,
    one_process,
    rechunk_arrays,
)
from icechunk_format.workflows.running import in_process


@dataclass
class Array:
    """A variable: cells by label as readers see them, attributes, and scale of stored values."""

    name: str
    cells: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    scale: float = 1.0


@dataclass
class State:
    """The labels and the variables of a branch; the key of a variable survives a renaming."""

    labels: set
    arrays: dict

    def names(self):
        return {array.name: array for array in self.arrays.values()}


class Refused(Exception):
    """Both sides changed the same thing."""


def chosen(base, ours, theirs):
    """Return the value that a three-way merge gives."""
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    raise Refused


def three_way(base, ours, theirs):
    """Return the merged state; raise Refused if both sides changed the same thing."""
    labels = {
        label
        for label in base.labels | ours.labels | theirs.labels
        if chosen(*(label in side.labels for side in (base, ours, theirs)))
    }
    arrays = {}
    for key in {**base.arrays, **ours.arrays, **theirs.arrays}:
        was, mine, other = (side.arrays.get(key) for side in (base, ours, theirs))
        if mine is None or other is None:
            left = mine or other
            # A variable that one side dropped, and the other created or changed.
            if left is None or left == was:
                continue
            if was is not None:
                raise Refused
            was = Array(left.name, scale=left.scale)
            mine, other = mine or was, other or was
        elif was is None:
            # Both sides have the node of one commit that came after the base, as by a pick.
            was = Array(mine.name, scale=mine.scale)
        arrays[key] = merged_array(was, mine, other, labels)
    names = [array.name for array in arrays.values()]
    if len(set(names)) < len(names):
        raise Refused
    return State(labels, arrays)


def merged_array(was, mine, other, labels):
    cells = {}
    scale = chosen(was.scale, mine.scale, other.scale)
    rescaled = [mine.scale != other.scale and side.scale != was.scale for side in (mine, other)]
    for label in {*was.cells, *mine.cells, *other.cells}:
        # A change of the scale changes no stored value.
        stored = [
            None if (value := side.cells.get(label)) is None else value / side.scale
            for side in (was, mine, other)
        ]
        written = [stored[i] != stored[0] for i in (1, 2)]
        if any(written[i] and rescaled[1 - i] and stored[1 + i] is not None for i in (0, 1)):
            raise Refused  # One side wrote a cell, and the other changed the meaning of its value.
        value = chosen(*stored)
        if value is None:
            continue
        if label not in labels:
            if any(
                one and label in side.cells
                for one, side in zip(written, (mine, other), strict=True)
            ):
                raise Refused  # One side removed the label, the other wrote its cell.
            continue
        side = next((s for one, s in zip(written, (mine, other), strict=True) if one), None)
        cells[label] = value * (scale if side is None else side.scale)
    keys = {*was.attributes, *mine.attributes, *other.attributes}
    attributes = {
        key: value
        for key in keys
        if (value := chosen(*(side.attributes.get(key) for side in (was, mine, other)))) is not None
    }
    name = chosen(was.name, mine.name, other.name)
    return Array(name, cells, attributes, scale)


def run_seeds(run, number, first_seed, *, variables):
    """Call `run(seed, outcomes)` for each seed; assert that none failed.

    Two variables of the environment replace the number of seeds and the first one. Returns the
    number and the outcomes. Notes of an error stand before its message.
    """
    icechunk.set_logs_filter("off")
    number, first_seed = (
        int(os.environ.get(name, default))
        for name, default in zip(variables, (number, first_seed), strict=True)
    )
    outcomes, failed = Counter(), []
    for seed in range(first_seed, first_seed + number):
        try:
            run(seed, outcomes)
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            failed.append(f"{seed}: {notes} {type(error).__name__}: {str(error)[:400]}")
    print(f"{number} {variables[0].lower()} from {first_seed}: {dict(outcomes)}")
    assert not failed, "\n".join(failed)
    return number, outcomes


class History:
    """A repository with the branches main and dev, and the state that each of them has."""

    def __init__(self, folder, seed):
        self.chance = random.Random(seed)
        self.place = str(folder / str(seed))
        self.spec_version = 1 + seed % 2
        self.outcomes = Counter()
        self.count = 0
        chunk = self.chance.randint(1, 3)
        self.chunks = {"t": chunk}
        self.states = {"main": State(set(), {})}
        labels = sorted(self.chance.sample(range(0, 40, 4), self.chance.randint(2, 6)))
        self.write("main", labels, self.chance.sample("uvw", 2), mode="errorifexists")
        repository = Repository.open(self.place)
        repository.create_branch("dev", repository.resolve())
        self.states["dev"] = copy.deepcopy(self.states["main"])
        self.base = copy.deepcopy(self.states["main"])

    def number(self):
        self.count += 1
        return float(self.count)

    def write(self, branch, labels, names, mode="append"):
        state = self.states[branch]
        rows = {"t": pa.array(labels, pa.int64())}
        known = state.names()
        # An append keeps the chunks of existing arrays.
        chunks = {} if known.keys() & {*names} else self.chunks
        for name in names:
            array = known.get(name)
            if array is None:
                key = f"{name}{self.count}"
                array = state.arrays[key] = Array(name)
            values = [self.number() for _ in labels]
            array.cells.update(zip(labels, values, strict=True))
            rows[name] = pa.array(values)
        state.labels.update(labels)
        options = WriteOptions(
            mode=mode,
            branch=branch,
            spec_version=self.spec_version,
            dims=("t",),
            chunks=chunks,
            merge_schema=True,
        )
        write_table(self.place, pa.table(rows), options)

    # -- changes ----------------------------------------------------------------------------

    def correct(self, branch, state, array):
        count = self.chance.randint(1, min(2, len(state.labels)))
        self.write(branch, sorted(self.chance.sample(sorted(state.labels), count)), [array.name])

    def append(self, branch, state, array):
        last = max(state.labels)
        labels = [last + 1 + n for n in range(self.chance.randint(1, 2))]
        names = list(state.names()) if self.chance.random() < 0.6 else [array.name]
        self.write(branch, labels, names)

    def insert(self, branch, state, array):
        free = sorted({*range(max(state.labels))} - state.labels)
        if free:
            self.write(branch, [self.chance.choice(free)], list(state.names()))

    def delete(self, branch, state, array):
        if len(state.labels) < 3:
            return
        end = self.chance.random() < 0.5
        label = max(state.labels) if end else self.chance.choice(sorted(state.labels))
        read = ReadRequest(path=self.place, branch=branch, where=f"t = {label}")
        options = WriteOptions(mode="append", branch=branch)
        delete_selected(DeleteRequest(read=read, options=options), in_process)
        state.labels.discard(label)
        for each in list(state.arrays.values()):
            each.cells.pop(label, None)
            self.replaced(state, each)

    def replaced(self, state, array):
        """Make a renamed variable another one: a new array is known by its path only."""
        [key] = [key for key, found in state.arrays.items() if found is array]
        if key in self.base.arrays and self.base.arrays[key].name != array.name:
            self.count += 1
            state.arrays[f"{array.name} again {self.count}"] = state.arrays.pop(key)

    def replace_last(self, branch, state, array):
        self.delete(branch, state, array)
        self.append(branch, state, array)

    def describe(self, branch, state, array):
        key = self.chance.choice(["a1", "a2"])
        if key in array.attributes and self.chance.random() < 0.5:
            del array.attributes[key]
            self.open().set_attributes(f"/{array.name}", {}, remove=[key], branch=branch)
            return
        array.attributes[key] = self.number()
        self.open().set_attributes(f"/{array.name}", {key: array.attributes[key]}, branch=branch)

    def scale(self, branch, state, array):
        factor = 2.0 if array.scale == 1.0 else 1.0
        self.open().set_attributes(f"/{array.name}", {"scale_factor": factor}, branch=branch)
        array.cells = {t: v * factor / array.scale for t, v in array.cells.items()}
        array.scale = factor

    def rename(self, branch, state, array):
        free = sorted({*"uvwxyz"} - state.names().keys())
        if self.spec_version == 2 and free:
            name = self.chance.choice(free)
            self.open().rename(f"/{array.name}", f"/{name}", branch=branch)
            array.name = name

    def drop(self, branch, state, array):
        if len(state.arrays) > 1:
            self.open().drop(f"/{array.name}", branch=branch)
            state.arrays = {k: a for k, a in state.arrays.items() if a is not array}

    def add(self, branch, state, array):
        free = sorted({*"uvwxyz"} - state.names().keys())
        some = sorted(
            self.chance.sample(
                sorted(state.labels), min(self.chance.randint(1, 2), len(state.labels))
            )
        )
        if free:
            self.write(branch, some, [self.chance.choice(free)])

    def stored_chunks(self, branch, array):
        stored = icechunk.Repository.open(icechunk.local_filesystem_storage(self.place))
        return zarr.open_array(stored.readonly_session(branch).store, path=array.name).chunks

    def rechunk(self, branch, state, array):
        before = self.stored_chunks(branch, array)
        request = RechunkRequest(
            read=ReadRequest(path=self.place, branch=branch, variables=(array.name,)),
            target=Location.of(self.place),
            options=WriteOptions(mode="append", branch=branch),
            chunks={"t": self.chance.randint(1, 4)},
            shards=None,
            encoding={},
            memory=1 << 26,
        )
        rechunk_arrays(request, one_process, cores=None, dry_run=False)
        # The chunks that it has leave an array as it is.
        if self.stored_chunks(branch, array) != before:
            self.replaced(state, array)

    CHANGES = (
        *(correct, correct, correct, append, append, append, insert, delete, replace_last),
        *(describe, describe, scale, rename, drop, add, add, rechunk),
    )

    # -- running ----------------------------------------------------------------------------

    def open(self):
        return Repository.open(self.place)

    def change(self, branch):
        step, state = self.chance.choice(self.CHANGES), self.states[branch]
        if not state.arrays:
            return
        step(self, branch, state, self.chance.choice(list(state.arrays.values())))
        self.check(branch, step.__name__)

    def check(self, branch, step):
        """Assert that the reference reads the state of a branch."""
        state = self.states[branch]
        stored = icechunk.Repository.open(icechunk.local_filesystem_storage(self.place))
        session = stored.readonly_session(branch)
        found = xr.open_zarr(session.store, consolidated=False, chunks=None).load()
        labels = found["t"].values.tolist()
        assert sorted(labels) == sorted(state.labels), (step, branch)
        assert set(found.data_vars) - {"cov"} == state.names().keys(), (step, branch)
        for name, array in state.names().items():
            values = zip(labels, found[name].values.tolist(), strict=True)
            cells = {label: value for label, value in values if value == value}
            assert cells == array.cells, (step, branch, name)
            attributes = found[name].attrs
            known = {key: value for key, value in attributes.items() if key in ("a1", "a2")}
            assert known == array.attributes, (step, branch, name)

    def merge(self, source, target):
        before = self.open().resolve(branch=target)
        states = self.base, self.states[source], self.states[target]
        try:
            expected = three_way(*map(copy.deepcopy, states))
        except Refused:
            expected = None
        try:
            done = self.open().merge(source, target)
        except ConflictError:
            assert self.open().resolve(branch=target) == before
            self.outcomes["refused" if expected is None else "refused, though different"] += 1
            return
        assert expected is not None, ("merged, though both sides changed the same", states)
        self.states[target] = expected
        self.check(target, f"merge {source}")
        self.outcomes["merged"] += 1
        if done.commit is not None:
            self.base = copy.deepcopy(self.states[source])

    def run(self):
        for _ in range(2):
            for branch in self.chance.choices(["main", "dev"], k=self.chance.randint(2, 4)):
                self.change(branch)
            sides = self.chance.choice([("dev", "main"), ("main", "dev")])
            self.merge(*sides)
            self.merge(*reversed(sides))
