"""Plans of arrays keep to the memory of a task, and count what they move."""

import math

import numpy as np
import pytest

from icechunk_format.encoding.ids import NodeId
from icechunk_format.grid.groups import edges_of, windows
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import ArrayTarget
from icechunk_format.repository import Repository
from icechunk_format.workflows.rechunking.plan import plan_array
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

from helpers.sessions.model import group_document  # isort: skip

GIB, MIB = 2**30, 2**20


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans an array without stored chunks, of 4-byte numbers."""

    def planned(shape, old, new, *, memory, cores):
        source, target = (
            build_array_metadata(
                shape=shape,
                data_type=data_type_from_numpy(np.dtype("f4")),
                chunk_shape=chunks,
                dimension_names=[f"d{axis}" for axis in range(len(shape))],
            )
            for chunks in (old, new)
        )
        session = Repository.create(
            str(tmp_path / str(len(list(tmp_path.iterdir()))))
        ).writable_session()
        session.create_group("/", group_document())
        session.create_array(
            "/t", source.to_bytes(), shape=shape, num_chunks=source.grid.num_chunks
        )
        made = ArrayTarget(
            name="t", path="/t", node_id=NodeId(bytes(NodeId.SIZE)), dims=(),
            metadata=target,
        )  # fmt: skip
        edges = [[edges_of(axis) for axis in one.grid.axes] for one in (source, target)]
        return plan_array(Variable(session.node("/t")), made, memory=memory, cores=cores), edges

    return planned


@pytest.mark.parametrize("seed", range(25))
def test_tasks_keep_to_memory(plan, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(100, 1500, 3))
    old, new = (tuple(int(rng.integers(20, n + 1)) for n in shape) for _ in range(2))
    memory, cores = int(rng.choice([64, 256, 512])) * MIB, int(rng.integers(1, 9))
    found, (source, target) = plan(shape, old, new, memory=memory, cores=cores)
    chunk = 4 * max(
        math.prod(int(np.diff(edges).max()) for edges in grid) for grid in (source, target)
    )
    common = windows(source, target)
    assert found.decoded_bytes == 4 * math.prod(shape)
    assert found.buffer_bytes <= max(memory, chunk)
    if found.kind == "direct":
        assert found.pieces == 0
        assert 4 * common.largest <= memory
        # No chunk of the source has elements in two groups.
        assert all(np.isin(a, b).all() for a, b in zip(found.groups.edges, source, strict=True))
        assert found.tasks == len(found.groups)
        return
    meeting = sum(
        1 for n in range(len(found.source)) for _ in found.groups.meeting(found.source.box(n))
    )
    assert found.pieces == meeting
    assert found.tasks == len(found.source) + len(found.groups)
    assert found.decoded_bytes / found.pieces >= 2048


def test_many_small_windows_are_direct_and_keep_all_cores_busy(plan):
    found, _ = plan((1000, 600, 800), (1, 600, 800), (10, 600, 800), memory=512 * MIB, cores=2)
    assert found.kind == "direct"
    assert 6 <= found.tasks <= 12  # three waves on two cores
    few, _ = plan((1000, 600, 800), (1, 600, 800), (10, 600, 800), memory=64 * MIB, cores=2)
    assert few.buffer_bytes <= 64 * MIB
    assert few.tasks > found.tasks


def test_a_chunk_larger_than_memory_is_a_group(plan):
    found, _ = plan((64, 1000, 1000), (64, 1000, 1000), (1, 1000, 1000), memory=MIB, cores=2)
    assert found.buffer_bytes == 4 * 64 * 1000 * 1000
