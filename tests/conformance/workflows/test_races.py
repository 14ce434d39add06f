"""Commits of each kind of change, while another writer commits a change of the same table.

The law: the commit leaves the table that a three-way merge of both changes gives, or it raises an
error and leaves the table of the other writer. So lengths and labels of arrays agree, cells stay at
their labels, removed arrays do not return, and a change of the meaning of values meets no cells
that were written under the old one. Changes that are made again after a lost race may also follow
the other one.

More races, or one of them::

    cd tests/conformance/workflows
    RACES=10000 RACE_SEED=1 python -m pytest test_races.py -s -k night
    RACES=1 RACE_SEED=123 python -m pytest test_races.py -s -k keep
"""

import copy
import random
import shutil

import icechunk
import pytest
import xarray as xr
from helpers.blocks import mapped
from helpers.grids.table_histories import History, Refused, run_seeds, three_way
from helpers.grids.written_cells import dataset_at

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.session import WriteSession
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

BY_DAY, BY_NIGHT = 32, 2_000
# Made again on the newest snapshot if they lose a race, so that they follow the other change. Two
# writes may add one variable: its cells are those of both.
AGAIN = ("delete", "blank", "rechunk", "add")
pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


class Race(History):
    """A change of main, and a change of another writer directly before its commit."""

    def __init__(self, folder, seed, monkeypatch):
        super().__init__(folder, seed)
        self.path = self.place
        self.patch = monkeypatch
        if seed % 3 == 0:
            self.add_covariance()
        before = copy.deepcopy(self.states["main"])
        try:
            self.change("main")
        except InvalidInputError:  # Labels are not inserted beside a covariance.
            self.states["main"] = before

    # -- more changes -----------------------------------------------------------------------

    def add_covariance(self):
        """Add an array that has the dimension twice; its cells must stay with their labels."""
        labels = dataset_at(self.place).read("t").tolist()
        stored = icechunk.Repository.open(icechunk.local_filesystem_storage(self.place))
        session = stored.writable_session("main")
        cells = [[self.covariance(one, other) for other in labels] for one in labels]
        found = xr.Dataset({"cov": (("t", "t"), cells)})
        chunk = self.chance.randint(1, 3)
        encoding = {"cov": {"chunks": (chunk, chunk), "_FillValue": float("nan")}}
        found.to_zarr(session.store, mode="a", zarr_format=3, consolidated=False, encoding=encoding)
        session.commit("Add cov")

    def covariance(self, one, other):
        return one * 1000.0 + other

    def poke(self, branch, state, array):
        """Write one chunk by its coordinates."""
        dataset = dataset_at(self.place, branch=branch)
        variable = dataset.variables[array.name]
        labels = dataset.read("t").tolist()
        session = self.open().writable_session(branch)
        at = self.chance.randrange(variable.metadata.grid.num_chunks[0])
        (low,), (high,) = variable.metadata.grid.box_of((at,))
        values = variable.metadata.fill_array(variable.metadata.grid.full_chunk_shape((at,)))
        for label, offset in zip(labels[low:high], range(high - low), strict=True):
            values[offset] = self.number()
            array.cells[label] = float(values[offset]) * array.scale
        payload = variable.metadata.chunk_codecs().encode(values)
        session.set_chunks(f"/{array.name}", [[at]], [payload])
        session.commit("Write a chunk")

    def blank(self, branch, state, array):
        """Delete a cell of an array."""
        label = self.chance.choice(sorted(state.labels))
        read = ReadRequest(
            path=self.place, branch=branch, variables=(array.name,), where=f"t = {label}"
        )
        options = WriteOptions(mode="append", branch=branch)
        delete_selected(DeleteRequest(read=read, options=options), in_process)
        array.cells.pop(label, None)

    def double(self, branch, state, array):
        """Replace an array by the result of a function of its blocks."""
        name = array.name
        mapped(self, lambda ds: ds[[name]] * 2, self.place, mode="overwrite", branch=branch)
        array.cells = {label: value * 2 for label, value in array.cells.items()}
        array.scale = 1.0

    def merged(self, branch, state, array):
        """Merge the other branch."""
        expected = three_way(self.base, self.states["dev"], state)
        self.open().merge("dev", branch)
        self.states[branch] = expected

    def picked(self, branch, state, array):
        """Pick a change of the other branch."""
        before, tip = copy.deepcopy(self.states["dev"]), self.open().resolve(branch="dev")
        self.change("dev")
        picked = self.open().resolve(branch="dev")
        expected = three_way(before, self.states["dev"], state)
        if picked != tip and self.open().snapshot_info(picked).parent_id == tip:
            self.open().cherry_pick(picked, branch)
            self.states[branch] = expected

    OTHERS = (
        *sorted({*History.CHANGES}, key=lambda c: c.__name__),
        *(poke, blank, double, merged, picked),
    )

    # -- running ----------------------------------------------------------------------------

    def run(self):
        # A replacement is two commits.
        made = [each for each in self.OTHERS if each is not History.replace_last]
        made, other = self.chance.choice(made), self.chance.choice(self.OTHERS)
        if Race.merged in (made, other):
            self.change("dev")
        base = copy.deepcopy(self.states["main"])
        theirs, real = [], WriteSession.commit

        def commit(session, *args, **kwargs):
            if not theirs and session.branch == "main":
                ours = self.states["main"]
                self.states["main"] = copy.deepcopy(base)
                theirs.append(None)
                try:
                    self.step(other)
                    theirs[0] = self.states["main"]
                except (IcechunkError, Refused):
                    theirs[0] = copy.deepcopy(base)
                self.states["main"] = ours
            return real(session, *args, **kwargs)

        self.name = f"{made.__name__} beside {other.__name__}"
        self.patch.setattr(WriteSession, "commit", commit)
        try:
            self.step(made)
        except (IcechunkError, Refused) as error:
            outcome = type(error).__name__
        else:
            outcome = "committed"
        self.patch.undo()
        if not theirs:
            return "no commit"
        ours, theirs = self.states["main"], theirs[0]
        try:
            expected = three_way(base, ours, theirs)
        except Refused:
            expected = None
        if outcome != "committed":
            self.states["main"] = theirs
            self.check("main", self.name)
            return "refused" if expected is None else "refused, though different"
        if expected is None:
            assert made.__name__ in AGAIN, ("committed, though both changed the same", self.name)
            self.check_cells(ours, theirs)
            return "made again"
        self.states["main"] = expected
        self.check("main", self.name)
        return "committed"

    def step(self, change):
        state = self.states["main"]
        if state.arrays:
            change(self, "main", state, self.chance.choice(list(state.arrays.values())))

    def check(self, branch, step):
        super().check(branch, step)
        self.check_covariance(branch)

    def check_covariance(self, branch):
        found = dataset_at(self.place, branch=branch)
        if "cov" in found.variables:
            labels, cells = found.read("t").tolist(), found.read("cov")
            assert cells.shape == (len(labels), len(labels)), self.name
            for row, one in zip(cells.tolist(), labels, strict=True):
                for value, other in zip(row, labels, strict=True):
                    assert value != value or value == self.covariance(one, other), self.name

    def check_cells(self, *states):
        """Assert that each cell has the value of one of some states at its label."""
        stored = icechunk.Repository.open(icechunk.local_filesystem_storage(self.place))
        session = stored.readonly_session("main")
        found = xr.open_zarr(session.store, consolidated=False, chunks=None).load()
        self.check_covariance("main")
        for name in {*found.data_vars} - {"cov"}:
            known = [state.names()[name].cells for state in states if name in state.names()]
            values = zip(found["t"].values.tolist(), found[name].values.tolist(), strict=True)
            for label, value in values:
                assert value != value or value in [cells.get(label) for cells in known], self.name


def run_races(folder, number, first_seed):
    """Run races; return their number, and how each ended."""

    def run(seed, outcomes):
        race = None
        with pytest.MonkeyPatch.context() as patch:
            try:
                race = Race(folder, seed, patch)
                outcomes[race.run()] += 1
                shutil.rmtree(race.place)
            except Exception as error:
                error.add_note(f"{getattr(race, 'name', '')}:")
                raise

    return run_seeds(run, number, first_seed, variables=("RACES", "RACE_SEED"))


def test_commits_beside_others_keep_each_cell_at_its_label(tmp_path):
    number, outcomes = run_races(tmp_path, BY_DAY, 1)
    if number >= BY_DAY:
        assert outcomes["committed"] >= number // 4
        assert outcomes["refused"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_a_night_of_races(tmp_path):
    run_races(tmp_path, BY_NIGHT, random.randrange(10**6))
