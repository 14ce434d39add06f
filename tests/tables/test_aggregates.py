"""Partial aggregates are divided by what their tasks decode."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.sessions.model import group_document

from icechunk_format.options.parse import parse_read_options
from icechunk_format.repository import Repository
from icechunk_format.tables import requested_dataset, requested_table, selecting
from icechunk_format.tables.aggregates import MeasureRequest, plan_partials, rows_of_tasks
from icechunk_format.tables.reading.layouts.segments import Measure
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

SHAPE = (24, 720, 1440)


@pytest.fixture
def tasks_of(tmp_path):
    """Return the number of tasks of an average over maps that were never written."""
    repository = Repository.create(str(tmp_path / "maps"))
    session = repository.writable_session()
    session.create_group("/", group_document())
    document = build_array_metadata(
        shape=SHAPE,
        data_type=data_type_from_numpy(np.dtype("f4")),
        chunk_shape=(1, *SHAPE[1:]),
        dimension_names=["time", "y", "x"],
    )
    session.create_array(
        "/t2m",
        document.to_bytes(),
        shape=SHAPE,
        num_chunks=(SHAPE[0], 1, 1),
        dimension_names=["time", "y", "x"],
    )
    session.commit("maps")

    def count(cores: int, column: str | None = "t2m", **options: str) -> int:
        request = parse_read_options({"path": str(tmp_path / "maps"), **options})
        dataset = requested_dataset(request, None)
        table = requested_table(request, dataset)
        plan = plan_partials(
            request,
            dataset,
            table,
            dims=[],
            measures=[MeasureRequest(column, Measure(wanted=frozenset({"total"})))],
            selection=dataset.choose(table, **selecting(request, "UTC")),
            time_zone="UTC",
            cores=cores,
        )
        assert sum(task.rows for task in plan.tasks) > 0
        return len(plan.tasks)

    return count


def test_a_small_box_of_large_chunks_uses_all_cores(tasks_of):
    box = {"isel": "y=0:9; x=0:10"}
    assert tasks_of(2, **box) == tasks_of(2) == 2
    assert tasks_of(4, **box) == tasks_of(4) == 4


def test_few_chunks_are_one_task(tasks_of):
    assert tasks_of(4, isel="time=0:3") == 1


def test_counts_are_one_task_and_options_decide(tasks_of):
    assert tasks_of(4, column=None) == 1
    assert tasks_of(2, rowsPerPartition=str(SHAPE[1] * SHAPE[2])) == SHAPE[0]


@pytest.mark.parametrize(
    ("cells", "cores", "decoded", "rows"),
    [
        (1_000, 2, 0, 1_000),
        (25_000_000, 2, 25_000_000, 12_500_000),
        (250_000, 2, 25_000_000, 125_000),
        (250_000, 64, 25_000_000, 35_715),
        (10**9, 2, 10**9, 31_250_000),
        (0, 2, 0, 0),
    ],
)
def test_rows_of_tasks(cells, cores, decoded, rows):
    assert rows_of_tasks(cells, cores, decoded) == rows
