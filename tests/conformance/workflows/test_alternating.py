"""The reference and we change two branches of one table in turn, and merge them.

A model holds labels, cells and attributes of each branch. The library that did not make a change
reads what was changed. Before and after merges, both libraries read everything. The law of merges
is that of ``test_merging``.

More turns, or the histories from one seed on::

    cd tests/conformance/workflows
    TURNS=100000 TURN_SEED=1 python -m pytest test_alternating.py -s -k night
"""

import os
import random
import shutil
from collections import Counter

import icechunk
import pytest
import zarr
from helpers.grids.table_histories import History
from helpers.grids.written_cells import dataset_at

BY_DAY, BY_NIGHT = 60, 10_000
pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


class Alternating(History):
    """A history whose changes are made by both libraries."""

    def __init__(self, folder, seed):
        self.turns = 0
        super().__init__(folder, seed)
        self.keys = self.keys_by_node("main")

    # -- which variable is which ------------------------------------------------------------

    def nodes(self, branch):
        """Return the ids of arrays by name."""
        repository = self.open()
        snapshot = repository.snapshot(repository.resolve(branch=branch))
        return {node.path[1:]: node.id for node in snapshot.nodes if node.array is not None}

    def keys_by_node(self, branch):
        nodes = self.nodes(branch)
        return {nodes[array.name]: key for key, array in self.states[branch].arrays.items()}

    def replaced(self, state, array):
        """Leave it to ``merge`` to find arrays that replaced others."""

    def merge(self, source, target):
        """Merge; a new array is known by its path only, others by what the base had."""
        at_path = {array.name: key for key, array in self.base.arrays.items()}
        for branch in (source, target):
            nodes, state = self.nodes(branch), self.states[branch]
            known = {self.keys.get(node) for node in nodes.values()}
            arrays = {}
            for array in state.arrays.values():
                key = self.keys.get(nodes[array.name])
                same_path = at_path.get(array.name)
                if key is None and same_path not in known:
                    key = same_path
                self.count += key is None
                arrays[key or f"{array.name} of {branch} {self.count}"] = array
            state.arrays = arrays
        base = self.base
        super().merge(source, target)
        if self.base is not base:
            self.keys = self.keys_by_node(source)

    # -- changes by the reference -----------------------------------------------------------

    def theirs(self):
        return icechunk.Repository.open(icechunk.local_filesystem_storage(self.place))

    def edited(self, branch, edit, message):
        """Commit what a function makes of the root group by zarr."""
        session = self.theirs().writable_session(branch)
        edit(zarr.open_group(session.store))
        session.commit(message)

    def their_correct(self, branch, state, array):
        labels = self.chance.sample(sorted(state.labels), min(2, len(state.labels)))
        values = {label: self.number() for label in labels}

        def edit(group):
            order = group["t"][:].tolist()
            for label, value in values.items():
                group[array.name][order.index(label)] = value / array.scale

        self.edited(branch, edit, "Their correction")
        array.cells.update(values)

    def their_append(self, branch, state, array):
        label = max(state.labels) + self.chance.randint(1, 3)
        values = {name: self.number() for name in state.names()}

        def edit(group):
            length = group["t"].shape[0]
            for name in ("t", *values):
                group[name].resize((length + 1,))
            group["t"][length] = label
            for name, value in values.items():
                group[name][length] = value / state.names()[name].scale

        self.edited(branch, edit, "Their append")
        state.labels.add(label)
        for name, value in values.items():
            state.names()[name].cells[label] = value

    def their_describe(self, branch, state, array):
        key, value = self.chance.choice(["a1", "a2"]), self.number()
        self.edited(branch, lambda group: group[array.name].attrs.put(
            {**group[array.name].attrs, key: value}
        ), "Their attribute")  # fmt: skip
        array.attributes[key] = value

    def their_drop(self, branch, state, array):
        if len(state.arrays) > 1:
            self.edited(branch, lambda group: group.__delitem__(array.name), "Their deletion")
            state.arrays = {key: one for key, one in state.arrays.items() if one is not array}

    def their_rename(self, branch, state, array):
        free = sorted({*"uvwxyz"} - state.names().keys())
        if self.spec_version == 2 and free:
            name = self.chance.choice(free)
            session = self.theirs().rearrange_session(branch)
            session.move(f"/{array.name}", f"/{name}")
            session.commit("Their move")
            array.name = name

    THEIRS = (
        *(their_correct, their_correct, their_correct, their_append, their_append),
        *(their_describe, their_drop, their_rename),
    )

    # -- running ----------------------------------------------------------------------------

    def run(self):
        for _ in range(2):
            for branch in self.chance.choices(["main", "dev"], k=self.chance.choice((2, 3, 4, 12))):
                self.change(branch)
            for branch in self.states:
                self.check(branch, "changes")
            sides = self.chance.choice([("dev", "main"), ("main", "dev")])
            self.merge(*sides)
            self.merge(*reversed(sides))
            self.turns += 2

    def change(self, branch):
        """Make a change by one library, then one by the other."""
        state = self.states[branch]
        for steps in self.chance.sample([self.CHANGES, self.THEIRS], 2):
            if state.arrays:
                step = self.chance.choice(steps)
                array = self.chance.choice(list(state.arrays.values()))
                step(self, branch, state, array)
                look = self.look if step in self.THEIRS else self.let_them_look
                look(branch, state, array, step.__name__)
                self.turns += 1

    def look(self, branch, state, array, step):
        """Read labels and one array by this library."""
        found = dataset_at(self.place, branch=branch)
        if array.name not in state.names():
            assert array.name not in found.variables, (step, branch)
            return
        array = state.names()[array.name]
        self.compare(found.read("t"), found.read(array.name), state, array, (step, branch))

    def let_them_look(self, branch, state, array, step):
        """Read labels, one array and its attributes by the reference."""
        found = zarr.open_group(self.theirs().readonly_session(branch).store, mode="r")
        if array.name not in state.names():
            assert array.name not in found, (step, branch)
            return
        array = state.names()[array.name]
        stored = found[array.name]
        self.compare(found["t"][:], stored[:], state, array, (step, branch))
        known = {key: value for key, value in stored.attrs.items() if key in ("a1", "a2")}
        assert known == array.attributes, (step, branch)

    def compare(self, labels, values, state, array, where):
        assert set(labels.tolist()) == state.labels, where
        pairs = zip(labels.tolist(), (values * array.scale).tolist(), strict=True)
        assert {t: value for t, value in pairs if value == value} == array.cells, where

    def check(self, branch, step):
        super().check(branch, step)
        found, state = dataset_at(self.place, branch=branch), self.states[branch]
        for name, array in state.names().items():
            self.compare(found.read("t"), found.read(name), state, array, (step, branch, name))


def run_turns(folder, first_seed, number):
    icechunk.set_logs_filter("off")
    outcomes, failed, turns, seed = Counter(), {}, 0, first_seed
    while turns < number:
        history = None
        try:
            history = Alternating(folder, seed)
            history.run()
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {str(error)[:400]}"
        if history is not None:
            outcomes, turns = outcomes + history.outcomes, turns + history.turns
            shutil.rmtree(history.place)
        seed += 1
    print(f"{turns} turns of {seed - first_seed} histories from {first_seed}: {dict(outcomes)}")
    assert not failed, "\n".join(f"{seed}: {problem}" for seed, problem in failed.items())
    return outcomes


def test_turns_with_the_reference_keep_each_cell_at_its_label(tmp_path):
    assert run_turns(tmp_path, 1001, BY_DAY)["merged"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_a_night_of_turns(tmp_path):
    first = int(os.environ.get("TURN_SEED", random.randrange(10**6)))
    run_turns(tmp_path, first, int(os.environ.get("TURNS", BY_NIGHT)))
