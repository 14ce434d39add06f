"""Raced writes against the serial order, cell by cell, over random cells, data types and labels.

A write is planned and stored, other writers commit, and the write commits. The same rows written
after those of the other writers must give the same cells, or the same error. With
``resolve="theirs"`` the other writers write once more at the end.

More races, or one of them::

    RACES=5000 python -m pytest tests/tables/writing/replanning/test_replanning_races.py -s
    RACE_SEED=123 RACES=1 python -m pytest tests/tables/writing/replanning/test_replanning_races.py
"""

import itertools
import os
import random
from collections import Counter

import pyarrow as pa
from helpers.builder import new_place
from helpers.grids.rival_writes import assert_equal_contents, begun
from helpers.grids.written_cells import values

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

RACES = int(os.environ.get("RACES", "60"))
FIRST_SEED = int(os.environ.get("RACE_SEED", "1"))
TYPES = {
    "float64": (pa.float64(), {}),
    "int32": (pa.int32(), {}),
    "int32 with a missing value": (pa.int32(), {"_FillValue": -1}),
    "string": (pa.string(), {}),
    "string with a missing value": (pa.string(), {"missing_value": "none"}),
}


class Race:
    """One race: the first cells, those of other writers, and those of the write."""

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        self.values = itertools.count(1)
        self.old = set()
        self.kind = chance.choice(list(TYPES))
        self.chunks = {"time": chance.randint(1, 4), "x": chance.randint(1, 4)}
        names = chance.choice([("v",), ("v",), ("v", "u")])
        times = sorted(chance.sample(range(0, 10, 2), chance.randint(1, 4)))
        xs = sorted(chance.sample(range(0, 6, 2), chance.randint(1, 3)))
        self.first = self.table(itertools.product(times, xs), names)
        self.old.update(itertools.product(times, xs))
        self.rivals = [self.drawn(times, xs, names) for _ in range(chance.choice([1, 1, 1, 2]))]
        self.ours = self.drawn(times, xs, names)
        self.resolve = chance.choice([None, "ours", "theirs"])
        self.mode = "overwrite" if chance.random() < 0.05 else "append"

    def drawn(self, times, xs, names):
        chance = self.chance
        pools = [sorted({*old, *chance.sample(range(12), 2)}) for old in (times, xs)]
        labels = [chance.sample(pool, chance.randint(1, min(3, len(pool)))) for pool in pools]
        cells = list(itertools.product(*map(sorted, labels)))
        if chance.random() < 0.5:
            cells = sorted(chance.sample(cells, chance.randint(1, len(cells))))
        return self.table(cells, (chance.choice(names),))

    def table(self, cells, names):
        arrow_type, _ = TYPES[self.kind]
        cells = list(cells)
        return pa.table(
            {
                "time": pa.array([time for time, _ in cells], pa.int64()),
                "x": pa.array([float(x) for _, x in cells]),
                **{n: pa.array([self.value(cell) for cell in cells], arrow_type) for n in names},
            }
        )

    def value(self, cell):
        """Return a value that no cell has; new cells without a missing value may have 0."""
        number = next(self.values)
        if self.kind == "int32" and cell not in self.old and self.chance.random() < 0.15:
            return 0
        return str(number) if self.kind.startswith("string") else number

    def options(self, resolve=None, mode="append"):
        return WriteOptions(mode=mode, dims=("time", "x"), min_density=0, resolve=resolve)

    def created(self):
        place = new_place()
        _, encoding = TYPES[self.kind]
        names = self.first.column_names[2:]
        options = WriteOptions(
            dims=("time", "x"),
            chunks=self.chunks,
            encoding=dict.fromkeys(names, encoding) if encoding else {},
        )
        write_table(place, self.first, options)
        return place

    def overlap(self):
        """Return the cells that both wrote."""
        theirs = {cell for table in self.rivals for cell in cells_of(table)}
        return theirs & cells_of(self.ours)

    def run(self):
        """Race, compare with the serial order, and return how the race ended."""
        together, apart = self.created(), self.created()
        try:
            finish = begun(together, self.ours, self.options(self.resolve, self.mode))
        except InvalidInputError:
            return "refused when planned"
        for place in (together, apart):
            for table in self.rivals:
                try:
                    write_table(place, table, self.options())
                except InvalidInputError:
                    return "refused to another writer"
        expected = tried(lambda: write_table(apart, self.ours, self.options(mode=self.mode)))
        found = tried(finish)
        if self.mode == "overwrite":
            assert found is ConflictError, found
            return "conflict of an overwrite"
        if found is ConflictError:
            assert self.resolve is None
            assert self.overlap()
            return "conflict"
        if found is None and expected is InvalidInputError:
            # Labels that were put in order share chunks with others than appended ones.
            assert has_moved_labels(together, apart)
            return "landed in order, would be refused behind"
        assert found is expected, (found, expected)
        if found is not None:
            return "refused as one that begins later"
        assert self.resolve is not None or not self.overlap(), self.overlap()
        if self.resolve == "theirs":
            for table in self.rivals:
                write_table(apart, table, self.options())
        assert_equal_contents(together, apart)
        return f"landed, resolve={self.resolve}"


def cells_of(table):
    name = table.column_names[2]
    return {(name, row["time"], row["x"]) for row in table.to_pylist()}


def has_moved_labels(place, before):
    old, new = ([values(at, dim) for dim in ("time", "x")] for at in (before, place))
    return any(was.tolist() != now[: len(was)].tolist() for was, now in zip(old, new, strict=True))


def tried(act):
    try:
        act()
    except (ConflictError, InvalidInputError) as error:
        return type(error)
    return None


def test_raced_writes_leave_what_the_serial_order_leaves():
    outcomes, failed = Counter(), {}
    for seed in range(FIRST_SEED, FIRST_SEED + RACES):
        try:
            outcomes[Race(seed).run()] += 1
        except AssertionError as error:
            failed[seed] = f"{Race(seed).kind}, {Race(seed).resolve}: {str(error)[:300]}"
    print(dict(outcomes))
    assert not failed, "\n".join(f"{seed}: {what}" for seed, what in failed.items())
    if RACES >= 60:
        assert sum(n for outcome, n in outcomes.items() if "landed" in outcome) > RACES // 4


def test_chunks_that_only_move_do_not_conflict():
    # Another writer inserts a label, so that a chunk of this array moves without a row.
    assert Race(354).run() == "landed, resolve=None"
