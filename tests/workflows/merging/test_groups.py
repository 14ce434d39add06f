"""Merges of branches that both grow arrays, against the cells that each branch changed.

The law: every cell that the source changed since the common ancestor has the source's value, every
other cell that of the target; a cell that both changed differently is a conflict.

More merges, or one of them::

    MERGES=3000 python -m pytest tests/workflows/merging/test_groups.py -s -k law
    MERGE_SEED=123 MERGES=1 python -m pytest tests/workflows/merging/test_groups.py -s -k law
"""

import itertools
import os
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.rival_writes import in_order
from helpers.grids.written_cells import dataset_at
from helpers.raised import raises

from icechunk_format import Repository
from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.groups.changing import ChunkValues
from icechunk_format.maintenance import verify
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.changes import ConflictKind
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.merging import groups
from icechunk_format.workflows.running import in_process

MERGES = int(os.environ.get("MERGES", "40"))
FIRST_SEED = int(os.environ.get("MERGE_SEED", "1"))
KINDS = {
    "float64": (pa.float64(), {}, np.nan),
    "int32": (pa.int32(), {}, 0),
    "int32 with a missing value": (pa.int32(), {"_FillValue": -1}, -1),
    "string": (pa.string(), {}, ""),
    "string with a missing value": (pa.string(), {"missing_value": "none"}, "none"),
}


class History:
    """A repository with two branches that write, and the cells that each of them has."""

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        self.numbers = itertools.count(1)
        self.kind = chance.choice(list(KINDS))
        self.type, encoding, self.missing = KINDS[self.kind]
        self.labels = chance.choice([int, "day {:02d}".format])
        self.place = new_place()
        self.names = chance.choice([("v",), ("v", "u")])
        self.encoding = encoding
        times = sorted(chance.sample(range(0, 10, 2), chance.randint(1, 4)))
        xs = sorted(chance.sample(range(0, 6, 2), chance.randint(1, 3)))
        self.chunks = {"time": chance.randint(1, 4), "x": chance.randint(1, 4)}
        self.shards = {d: n * 2 for d, n in self.chunks.items()} if chance.random() < 0.2 else {}
        self.cells = {"main": {}}
        first = self.drawn("main", itertools.product(times, xs), self.names)
        options = WriteOptions(
            dims=("time", "x"),
            chunks=self.chunks,
            shards=self.shards,
            encoding=dict.fromkeys(self.names, encoding) if encoding else {},
        )
        write_table(self.place, first, options)
        self.axes = {"main": (set(times), set(xs))}
        self.base, self.base_times = dict(self.cells["main"]), set(times)
        self.cells["dev"], self.axes["dev"] = dict(self.base), (set(times), set(xs))
        repository = Repository.open(self.place)
        repository.create_branch("dev", repository.resolve())

    def drawn(self, branch, cells, names):
        """Return rows of cells, which the branch has from now on."""
        cells = list(cells)
        rows = {
            "time": pa.array([self.labels(time) for time, _ in cells]),
            "x": pa.array([float(x) for _, x in cells]),
        }
        for name in names:
            # Both branches may give a cell the same value.
            seen = [self.same(name, cell) for cell in cells]
            self.cells[branch].update({(name, *c): v for c, v in zip(cells, seen, strict=True)})
            rows[name] = pa.array(seen, self.type)
        return pa.table(rows)

    def same(self, name, cell):
        number = next(self.numbers)
        if self.chance.random() < 0.3:
            number = 1000 + 100 * cell[0] + 10 * cell[1] + len(name)
        return str(number) if self.kind.startswith("string") else number

    def write(self, branch, repository):
        chance = self.chance
        pools = [
            sorted({*old, *chance.sample(range(12), 2)}) if chance.random() < grows else sorted(old)
            for old, grows in zip(self.axes[branch], (0.8, 0.1), strict=True)
        ]
        labels = [sorted(chance.sample(pool, chance.randint(1, len(pool)))) for pool in pools]
        cells = list(itertools.product(*labels))
        if chance.random() < 0.3 and "missing" in self.kind + str(self.missing):
            cells = sorted(chance.sample(cells, chance.randint(1, len(cells))))
        before = dict(self.cells[branch])
        rows = self.drawn(branch, cells, (chance.choice(self.names),))
        options = WriteOptions(mode="append", branch=branch, dims=("time", "x"), min_density=0)
        try:
            write_table(self.place, rows, options)
        except InvalidInputError:
            self.cells[branch] = before
            return
        for old, at in zip(self.axes[branch], (0, 1), strict=True):
            old.update(cell[at] for cell in cells)

    def clear(self, branch, repository):
        """Delete a chunk, so that its cells are missing."""
        if self.shards or self.kind == "string":
            return
        dataset = dataset_at(self.place, branch=branch)
        variable = dataset.variables["v"]
        at = [self.chance.randrange(count) for count in variable.metadata.grid.num_chunks]
        session = repository.writable_session(branch)
        session.delete_chunks("/v", [at])
        session.commit("Delete a chunk", allow_empty=True)
        lower, upper = variable.metadata.grid.box_of(at)
        times, xs = (
            dataset.read(dim)[low:high]
            for dim, low, high in zip(("time", "x"), lower, upper, strict=True)
        )
        numbers = {self.labels(n): n for n in range(12)}
        for time, x in itertools.product(times.tolist(), xs.tolist()):
            self.cells[branch].pop(("v", numbers[time], int(x)), None)

    def describe(self, branch, repository):
        repository.set_attributes("/v", {branch: next(self.numbers)}, branch=branch)

    def edit(self, branch):
        repository = Repository.open(self.place)
        step = self.chance.choices([self.write, self.clear, self.describe], [8, 1, 1])[0]
        step(branch, repository)

    def expected(self, resolve):
        """Return the cells after the merge, and those that both changed differently."""
        ours, theirs = self.cells["dev"], self.cells["main"]
        merged, both = dict(theirs), set()
        for cell in {*ours, *self.base}:
            if ours.get(cell) == self.base.get(cell) or ours.get(cell) == theirs.get(cell):
                continue
            if theirs.get(cell) != self.base.get(cell):
                both.add(cell)
                if resolve == "theirs":
                    continue
            merged[cell] = ours.get(cell)
        return {cell: value for cell, value in merged.items() if value is not None}, both

    def fill_values(self):
        """Return cells of new labels that one side wrote and the other may have filled.

        In an array without a missing value, a stored chunk has a value in every cell.
        """
        if self.kind not in ("int32", "string"):
            return set()
        sides = ("dev", "main"), ("main", "dev")
        return {
            cell
            for side, other in sides
            for cell in self.cells[other].keys() - self.cells[side].keys()
            if {cell[1]} & self.axes[side][0] - self.base_times
            or {cell[2]} & self.axes[side][1] - {x for _, _, x in self.base}
        }

    def run(self, resolve):
        for branch in self.chance.choices(["dev", "main"], k=self.chance.randint(2, 6)):
            self.edit(branch)
        repository = Repository.open(self.place)
        objects = {o.key for o in repository.storage.list("")}
        preview = repository.merge("dev", dry_run=True)
        assert {o.key for o in repository.storage.list("")} == objects
        tip = repository.resolve()
        merged, both = self.expected(resolve)
        unsure = self.fill_values()
        kinds = {conflict.kind.name for conflict in preview.conflicts}
        try:
            repository.merge("dev", resolve=resolve)
        except ConflictError as error:
            found = set(error.facts["kinds"])
            return self.judged(both or unsure, kinds & found, resolve)
        finally:
            assert resolve is not None or not kinds or repository.resolve() == tip
        assert resolve is not None or not both, both
        if "CHUNKS_WRITTEN_TWICE" in kinds:
            return "chunks resolved"
        assert unsure or bool(both) == bool(preview.conflicts), (both, preview.conflicts)
        found = in_order(self.place)
        times, xs = (sorted(a | b) for a, b in zip(*self.axes.values(), strict=True))
        assert found["time"].tolist() == [self.labels(time) for time in times]
        for name in self.names:
            cells = [merged.get((name, *at), self.missing) for at in itertools.product(times, xs)]
            expected = np.array(cells, found[name].dtype).reshape(len(times), len(xs))
            for i, j in itertools.product(range(len(times)), range(len(xs))):
                if preview.conflicts and (name, times[i], xs[j]) in unsure:
                    expected[i, j] = found[name][i, j]
            np.testing.assert_array_equal(found[name], expected)
        severities = {row["severity"] for row in verify(self.place).to_pylist()}
        assert severities <= {"info"}
        assert repository.merge("dev").commit is None
        return "merged"

    def judged(self, both, kinds, resolve):
        if kinds & {"METADATA_UPDATED_TWICE", "CHUNKS_WRITTEN_TWICE"}:
            return "conflict of chunks or metadata"
        if "LABELS_NOT_MERGED" in kinds:
            # Cells that neither side has, in an array without a missing value.
            assert self.kind in ("int32", "string")
            return "labels that cannot be joined"
        assert both, kinds
        assert resolve is None, kinds
        return "conflict of cells"


def test_the_law_of_merges_that_grow_arrays_on_both_sides():
    outcomes, failed = Counter(), {}
    for seed in range(FIRST_SEED, FIRST_SEED + MERGES):
        resolve = (None, "ours", "theirs")[seed % 3]
        history = History(seed)
        try:
            outcomes[history.run(resolve)] += 1
        except Exception as error:
            failed[seed] = f"{history.kind}, {resolve}: {type(error).__name__} {str(error)[:300]}"
    print(dict(outcomes))
    assert not failed, "\n".join(f"{seed}: {what}" for seed, what in failed.items())
    if MERGES >= 40:
        assert outcomes["merged"] > MERGES // 4


class ShrinkingHistory(History):
    """A history whose branches delete and correct labels, of arrays with a missing value."""

    def __init__(self, seed):
        while True:
            super().__init__(seed)
            if self.kind not in ("int32", "string"):
                break
            seed += 10**6
        self.base_axes = tuple(set(labels) for labels in self.axes["main"])
        self.corrected = {"dev": {}, "main": {}}

    def remove(self, branch):
        at = self.chance.randrange(2)
        labels = self.axes[branch][at]
        if len(labels) < 2:
            return
        gone = self.chance.choice(sorted(labels))
        shown = repr(self.labels(gone)) if at == 0 else gone
        where = f"{('time', 'x')[at]} = {shown}"
        read = ReadRequest(path=str(self.place), branch=branch, where=where)
        options = WriteOptions(mode="append", branch=branch)
        delete_selected(DeleteRequest(read=read, options=options), in_process)
        labels.discard(gone)
        kept = self.cells[branch].items()
        self.cells[branch] = {cell: v for cell, v in kept if cell[1 + at] != gone}

    def correct(self, branch):
        """Write another time in the place of one, and nothing else."""
        labels = self.axes[branch][0]
        old, new = self.chance.choice(sorted(labels)), 12 + next(self.numbers) % 80
        if new in self.axes["main"][0] | self.axes["dev"][0]:
            return
        found = dataset_at(self.place, branch=branch)
        stored = found.read("time").copy()
        stored[stored == self.labels(old)] = self.labels(new)
        session = Repository.open(self.place).writable_session(branch)
        metadata = found.variables["time"].metadata
        ChunkValues(metadata=metadata, start=0, values=stored).store(session)
        session.commit("Correct a label")
        labels ^= {old, new}
        known = self.corrected[branch]
        known[new] = known.pop(old, old)
        self.cells[branch] = {
            (name, new if time == old else time, x): value
            for (name, time, x), value in self.cells[branch].items()
        }

    def edit(self, branch):
        step = self.chance.random()
        if step < 0.3:
            self.remove(branch)
        elif step < 0.4:
            self.correct(branch)
        else:
            super().edit(branch)

    def run(self):
        for branch in self.chance.choices(["dev", "main"], k=self.chance.randint(2, 5)):
            self.edit(branch)
        merged, both = self.expected(None)
        axes = [
            {at for at in {*was, *one, *other} if (at in one) + (at in other) > (at in was)}
            for was, one, other in zip(self.base_axes, *self.axes.values(), strict=True)
        ]
        for branch in ("dev", "main"):
            times = self.corrected[branch]
            for cell, value in self.cells[branch].items():
                name, time, x = cell
                # A cell that a correction alone has moved may be deleted.
                was = self.base.get((name, times.get(time, time), x))
                if value != was and ({time} - axes[0] or {x} - axes[1]):
                    both.add(cell)
        repository = Repository.open(self.place)
        tip = repository.resolve()
        try:
            repository.merge("dev")
        except ConflictError:
            assert Repository.open(self.place).resolve() == tip
            return "conflict" if both else "conflict, though different"
        assert not both, both
        found = in_order(self.place)
        times, xs = map(sorted, axes)
        assert found["time"].tolist() == [self.labels(time) for time in times]
        assert found["x"].tolist() == xs
        for name in self.names:
            cells = [merged.get((name, *at), self.missing) for at in itertools.product(times, xs)]
            expected = np.array(cells, found[name].dtype).reshape(len(times), len(xs))
            np.testing.assert_array_equal(found[name], expected)
        assert {row["severity"] for row in verify(self.place).to_pylist()} <= {"info"}
        return "merged"


def test_the_law_of_merges_that_delete_labels():
    outcomes, failed = Counter(), {}
    for seed in range(FIRST_SEED, FIRST_SEED + MERGES):
        history = ShrinkingHistory(seed)
        try:
            outcomes[history.run()] += 1
        except Exception as error:
            failed[seed] = f"{history.kind}: {type(error).__name__} {str(error)[:300]}"
    print(dict(outcomes))
    assert not failed, "\n".join(f"{seed}: {what}" for seed, what in failed.items())
    if MERGES >= 40:
        assert outcomes["merged"] > MERGES // 4


def days(*numbers, offset=0.0):
    """Return rows of some days of July 2024, three cells each."""
    cells = list(itertools.product(numbers, range(3)))
    times = [datetime(2024, 7, day, tzinfo=UTC) for day, _ in cells]
    return pa.table(
        {
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "x": pa.array([x for _, x in cells]),
            "t": pa.array([day * 10.0 + x + offset for day, x in cells]),
        }
    )


def begun(*numbers, **branches):
    """Return a repository of some days in chunks of two, with a branch dev; append to branches."""
    place = new_place()
    write_table(place, days(*numbers), WriteOptions(dims=("time", "x"), chunks={"time": 2}))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    for branch, rows in branches.items():
        append(repository, branch, rows)
    return repository


def append(repository, branch, rows, **options):
    given = WriteOptions(mode="append", branch=branch, **options)
    return write_table(repository.location, rows, given)


def first_column(repository):
    return in_order(repository.location)["t"][:, 0].tolist()


def test_a_conflict_names_cells_author_and_time():
    repository = begun(1, 2)
    append(repository, "dev", days(3, 4, 5))
    append(repository, "main", days(5, 4, 6, offset=1), metadata={"author": "Ada"}, message="Mine")
    [conflict] = repository.merge("dev", dry_run=True).conflicts
    assert conflict.kind is ConflictKind.CELLS_WRITTEN_TWICE
    assert "6 cells at time=2024-07-04" in conflict.labels
    assert "2024-07-05" in conflict.labels
    assert "'Mine' by Ada, 20" in str(conflict)
    with pytest.raises(ConflictError, match="2024-07-05"):
        repository.merge("dev")
    repository.merge("dev", resolve="ours")
    assert first_column(repository) == [10, 20, 30, 40, 50, 61]


def test_a_conflict_of_chunks_names_labels():
    repository = begun(1, 2, 3, 4, 5, dev=days(3, offset=5), main=days(4, offset=6))
    [conflict] = repository.merge("dev", dry_run=True).conflicts
    assert conflict.kind is ConflictKind.CHUNKS_WRITTEN_TWICE
    assert conflict.labels == "time 2024-07-03 00:00:00..2024-07-04 00:00:00, x 0..2"


def test_chunks_that_fit_keep_their_files():
    repository = begun(1, 2, dev=days(3, 4, 5, 6), main=days(7, 8))
    chunks = {o.key for o in repository.storage.list("chunks/")}
    manifests = {o.key for o in repository.storage.list("manifests/")}
    repository.merge("dev")
    assert {o.key for o in repository.storage.list("chunks/")} == chunks
    assert len({o.key for o in repository.storage.list("manifests/")} - manifests) <= 2
    assert first_column(repository) == [10, 20, 30, 40, 50, 60, 70, 80]


def test_the_files_of_merged_chunks_are_counted():
    repository = begun(1, 2, 3)
    repository.update_config({"inline_chunk_threshold_bytes": 0})
    append(repository, "dev", days(4, 5))
    append(repository, "main", days(6))
    kinds = ("chunks", "manifests")

    def stored():
        found = {kind: list(repository.storage.list(f"{kind}/")) for kind in kinds}
        return np.array([[len(files), sum(o.size for o in files)] for files in found.values()])

    before = stored()
    commit = repository.merge("dev").commit
    counted = [[commit.files_written[kind], commit.bytes_written[kind]] for kind in kinds]
    assert counted == (stored() - before).tolist()
    assert commit.files_written["chunks"] > 1  # the labels are one chunk


def test_late_labels_of_both_sides_are_inserted():
    repository = begun(1, 10, 20, dev=days(5, 25), main=days(7, 15, 22))
    repository.merge("dev")
    stored = dataset_at(repository.location).read("t")[:, 0].tolist()
    assert stored == [10, 50, 70, 100, 150, 200, 220, 250]


def test_a_chunk_that_moves_from_a_new_label_was_not_written_there():
    place, kind = new_place(), WriteOptions(dims=("time", "x"), chunks={"time": 1}, mode="append")

    def write(branch, times, **values):
        rows = {"time": times, "x": [4] * len(times)}
        rows |= {name: pa.array([value] * len(times)) for name, value in values.items()}
        write_table(place, pa.table(rows), replace(kind, branch=branch))

    write("main", [6, 7], u=1, v=2)
    repository = Repository.open(place)
    repository.create_branch("other", repository.resolve())
    write("other", [1, 5], u=3)
    write("main", [1], v=4)
    assert not repository.merge("other").conflicts
    found = in_order(place)
    assert (found["u"].tolist(), found["v"].tolist()) == (
        [[3], [3], [1], [1]],
        [[4], [0], [2], [2]],
    )


def test_variables_and_attributes_of_both_sides_are_merged():
    repository = begun(1, 2)
    added = days(3).append_column("u", pa.array([1.0, 2.0, 3.0]))
    append(repository, "dev", added, merge_schema=True)
    repository.set_attributes("/t", {"units": "K"}, branch="main")
    assert {c.kind.name for c in repository.merge("dev", dry_run=True).conflicts}
    repository.set_attributes("/t", {"long_name": "temperature"}, remove=["units"])
    append(repository, "main", days(4))
    repository.merge("dev")
    dataset = dataset_at(repository.location)
    np.testing.assert_array_equal(dataset.read("u")[:, 0], [np.nan, np.nan, 1, np.nan])
    assert dataset.variables["t"].attributes["long_name"] == "temperature"
    repository.merge("main", into="dev")
    assert first_column(repository) == [10, 20, 30, 40]


@pytest.mark.parametrize("growing", [(), ("dev",), ("main",), ("dev", "main")], ids=str)
def test_different_attributes_of_both_sides_are_joined(growing):
    repository = begun(1, 2)
    repository.set_attributes("/t", {"title": "t", "history": "none"}, branch="dev")
    repository.merge("dev")
    for day, branch in enumerate(growing, 3):
        append(repository, branch, days(day))
    repository.set_attributes("/t", {"long_name": "heat"}, remove=["history"], branch="dev")
    repository.set_attributes("/t", {"comment": ["checked"], "title": "T"})
    repository.merge("dev")
    dataset = dataset_at(repository.location)
    found = dict(dataset.variables["t"].attributes)
    expected = {"long_name": "heat", "comment": ["checked"], "title": "T"}
    assert {name: found.get(name) for name in (*expected, "history")} == expected | {
        "history": None
    }
    assert dataset.read("t")[:, 0].tolist() == [10.0, 20.0, 30.0, 40.0][: 2 + len(growing)]
    assert repository.merge("dev").commit is None
    repository.set_attributes("/t", {"title": "mine"}, branch="dev")
    repository.set_attributes("/t", {"title": "yours"})
    with raises(ConflictError, kinds=("METADATA_UPDATED_TWICE",), paths=("/t",)):
        repository.merge("dev")


@pytest.mark.parametrize("grows", [False, True])
def test_an_attribute_that_means_other_values_is_joined_beside_attributes_alone(grows):
    repository = begun(1, 2)
    repository.set_attributes("/t", {"scale_factor": 2.0}, branch="dev")
    repository.set_attributes("/t", {"comment": "checked"})
    if grows:
        append(repository, "main", days(3))
        with raises(ConflictError, kinds=..., paths=("/t",)):
            repository.merge("dev")
        return
    repository.merge("dev")
    found = dataset_at(repository.location).variables["t"].attributes
    assert (found["scale_factor"], found["comment"]) == (2.0, "checked")


def test_one_snapshot_that_appends_is_picked():
    repository = begun(1, 2)
    append(repository, "dev", days(3))
    picked = append(repository, "dev", days(4)).snapshot_id
    append(repository, "main", days(6))
    done = repository.cherry_pick(picked)
    assert not done.conflicts
    assert first_column(repository) == [10, 20, 40, 60]
    repository.merge("dev")
    assert first_column(repository) == [10, 20, 30, 40, 60]


def test_a_picked_edit_of_a_label_that_the_branch_lacks_is_a_conflict():
    repository = begun(1, 2)
    append(repository, "dev", days(3, 4))
    picked = append(repository, "dev", days(3, offset=5)).snapshot_id
    append(repository, "main", days(6, 7))
    for resolve in (None, "ours", "theirs"):
        with raises(ConflictError, kinds=("LABELS_NOT_MERGED",), paths=("/t",)):
            repository.cherry_pick(picked, resolve=resolve)
    append(repository, "main", days(3, offset=1))
    picked = repository.cherry_pick(picked, resolve="ours")
    assert [conflict.kind.name for conflict in picked.conflicts] == ["CELLS_WRITTEN_TWICE"]
    assert first_column(repository) == [10, 20, 35, 60, 70]


def test_labels_that_the_target_removed_are_a_conflict():
    repository = begun(1, 2, 3, 4)
    append(repository, "dev", days(5))
    session = repository.writable_session("main")
    node = session.node("/time")
    session.update_metadata(
        "/time", node.user_data.replace(b"[4]", b"[2]", 1), shape=(2,), num_chunks=(1,)
    )
    session.commit("shorter")
    assert repository.merge("dev", dry_run=True).conflicts


def test_a_branch_that_moves_meanwhile_is_merged_again(monkeypatch):
    repository = begun(1, 2, dev=days(3), main=days(4))
    real, rivals = groups.group_merges, iter([6, 7])

    def rivalled(*args):
        found = real(*args)
        if (day := next(rivals, None)) is not None:
            append(repository, "main", days(day))
        return found

    monkeypatch.setattr(groups, "group_merges", rivalled)
    repository.merge("dev")
    assert first_column(repository) == [10, 20, 30, 40, 60, 70]


def test_a_merge_that_is_killed_at_any_write_leaves_the_branch(monkeypatch):
    repository = begun(1, 2, 3, dev=days(4, 5), main=days(6))
    tip = repository.resolve()
    writes = []

    def counted(real, limit, *args, **kwargs):
        writes.append(args)
        if len(writes) > limit:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    storage = type(repository.storage)
    for limit in itertools.count():
        writes.clear()
        with monkeypatch.context() as patch:
            for name in ("put", "put_many"):
                patch.setattr(storage, name, partialmethod_of(counted, storage, name, limit))
            try:
                repository.merge("dev")
                break
            except KeyboardInterrupt:
                assert Repository.open(repository.location).resolve() == tip
    assert limit >= 3
    assert first_column(repository) == [10, 20, 30, 40, 50, 60]


def partialmethod_of(function, storage, name, limit):
    real = getattr(storage, name)
    return lambda *args, **kwargs: function(real, limit, *args, **kwargs)
