"""After each run a copy is the table of its snapshot, whatever was committed since the last run."""

from __future__ import annotations

import tempfile

import pyarrow as pa
from helpers.examples import by_day
from helpers.grids.changing_grid import ChangingGrid
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.options.read import ReadRequest
from icechunk_format.tables import open_dataset, requested_scan, requested_table
from icechunk_format.tables.reading import run_scan
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.running import in_process

KEY = [("x", "ascending"), ("y", "ascending")]
CHOICES = [
    {},
    {"missingChunks": "skip"},
    {"isel": "x=1:4"},
    {"where": "y > 60"},
    {"where": "a > 60"},
    {"variables": ("b",)},
]


def rows_of(grid: ChangingGrid, snapshot_id: str, selection: Selection) -> pa.Table:
    """Return the rows that a reader of the snapshot gets."""
    dataset = open_dataset(grid.repository, snapshot_id, "/")
    read = selection.of_read(ReadRequest(path=""))
    plan = requested_scan(read, dataset, requested_table(read, dataset))
    batches = [batch for task in plan.tasks for batch in run_scan(plan.context, task)]
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


@settings(max_examples=by_day(8), deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(CHOICES), st.booleans(), st.sampled_from([1, 4, 12, 60])
)
def test_copies_of_random_histories(seed, choice, every_snapshot, rows):
    grid = ChangingGrid(seed)
    selection = Selection.of({"variables": ("a", "b"), "rowsPerPartition": rows, **choice})
    grid.commit()
    with tempfile.TemporaryDirectory() as folder:
        request = MirrorRequest(
            read=ReadRequest(path=grid.repository.location.url),
            target=DeltaTarget.of(folder + "/copy"),
            selection=selection,
            every_snapshot=every_snapshot,
        )
        snapshots = {}
        for _ in range(4):
            done = bring_up_to_date(request, in_process)
            snapshots[done.version] = done.snapshot_id
            for _ in range(grid.random.randint(0, 3)):
                for _ in range(grid.random.randint(1, 3)):
                    grid.change()
                if grid.session.has_changes:
                    grid.commit()
        for version, snapshot_id in snapshots.items():
            table = request.target.open(version)
            assert table is not None
            expected = rows_of(grid, snapshot_id, selection)
            found = pa.table(table.to_pyarrow_table())
            assert found.num_rows == expected.num_rows
            found = found.select(expected.schema.names).cast(expected.schema)
            assert found.sort_by(KEY).equals(expected.sort_by(KEY))
