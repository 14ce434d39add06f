"""Blocks are divided into tasks of bounded bytes."""

import pytest
import zarr
from helpers.builder import reference_repository

from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.mapping import BlocksRequest

BLOCKS = 1_000
MB = 2**20


@pytest.fixture
def source(tmp_path):
    """Return a group of 1,000 missing chunks of 1 MB."""
    session = reference_repository(tmp_path / "r").writable_session("main")
    zarr.open_group(session.store).create_array(
        "v", shape=(BLOCKS, 512, 512), chunks=(1, 512, 512), dtype="f4",
        dimension_names=["time", "y", "x"],
    )  # fmt: skip
    session.commit("array")
    read = ReadRequest(path=str(tmp_path / "r"))
    return BlocksRequest(read=read, blocks=None, overlap=None).opened()


@pytest.mark.parametrize(("returns_rows", "most"), [(False, 64 * MB), (True, 16 * MB)])
def test_a_task_has_blocks_of_bounded_bytes(source, returns_rows, most):
    tasks = source.tasks(range(BLOCKS), 1, returns_rows=returns_rows)
    assert [number for own in tasks for number in own] == list(range(BLOCKS))
    assert max(len(own) for own in tasks) * MB == most


@pytest.mark.parametrize("returns_rows", [False, True])
def test_all_cores_have_tasks(source, returns_rows):
    tasks = source.tasks(range(40), 2, returns_rows=returns_rows)
    assert max(len(own) for own in tasks) == 5
