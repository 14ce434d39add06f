"""The cost of a task is what the store sees when the task runs."""

import pytest
from helpers.examples import by_day
from helpers.grids.drawn_arrays import DEFAULT_BOUNDS, bounded, cases, isel_text, small_bounds
from helpers.grids.synthetic_datasets import write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.groups import ArrayReader
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.memory import MemoryStorage
from icechunk_format.tables.reading import run_scan, task_cost


def counted(context, task):
    """Run a task in a new process, so to say; return its rows, requests, bytes and chunks."""
    seen, chunks = [], []
    read, decode = MemoryStorage._read, ArrayReader.decode_chunk

    def seen_read(self, request):
        fetched = read(self, request)
        if request.key.startswith("chunks/"):
            seen.append(len(fetched.data))
        return fetched

    def seen_decode(self, coords, payload):
        decoded = decode(self, coords, payload)
        chunks.append(decoded.nbytes if not decoded.dtype.hasobject else decoded.size * 64)
        return decoded

    metadata_cache().clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryStorage, "_read", seen_read)
        patched.setattr(ArrayReader, "decode_chunk", seen_decode)
        rows = sum(batch.num_rows for batch in run_scan(context, task))
    return rows, len(seen), sum(seen), len(chunks), sum(chunks)


@settings(deadline=None, max_examples=by_day(50))
@given(
    cases(),
    st.sampled_from(["cells", "chunks", "summary", "refs"]),
    st.sampled_from(["fill", "skip"]),
    st.sampled_from([2, 30, None]),
    st.sampled_from([None, ["a"]]),
    small_bounds(),
)
def test_a_task_reads_what_was_counted(case, layout, missing, rows_per_partition, only, bounds):
    dims, _, (_, array_a), (_, array_b), picked = case
    dataset = write_dataset("costs", {"a": array_a, "b": array_b})
    table = dataset.table(layout)
    plan = dataset.plan(
        table,
        columns=[c.name for c in table.columns if only is None or c.source != "b"],
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        missing_chunks=missing if layout != "refs" else "fill",
    )
    if bounds is not DEFAULT_BOUNDS:
        # One block at a time, so that kept chunks are lost in the same order.
        bounds = {**bounds, "blocks_ahead": 1}
    with bounded(bounds):
        for task in plan.tasks:
            cost = task_cost(plan.context, task)
            rows, requests, nbytes, chunks, decoded = counted(plan.context, task)
            assert (cost.requests, cost.stored_bytes) == (requests, nbytes)
            assert (cost.chunks, cost.decoded_bytes) == (chunks, decoded)
            assert cost.rows == rows or (layout, missing) == ("summary", "skip")
            if layout == "cells":
                assert cost.cells == rows
