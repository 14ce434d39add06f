"""Arrays that Hypothesis draws, a selection of them, and bounds that even they exceed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.synthetic_datasets import ArrayToWrite
from hypothesis import strategies as st

from icechunk_format.grid import cover as regions
from icechunk_format.groups import pipeline
from icechunk_format.groups import shards as shard_reads
from icechunk_format.tables.reading import plan as planning
from icechunk_format.tables.reading import run as running
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.reading.layouts import batches as cell_batches
from icechunk_format.tables.reading.layouts import blocks
from icechunk_format.tables.reading.layouts import chunk_refs as refs_layout
from icechunk_format.tables.reading.layouts import statistics as block_statistics
from icechunk_format.tables.table import table as tables

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_BOUNDS: dict[str, Any] = {"read_ahead_bytes": 1 << 26}


@st.composite
def small_bounds(draw):
    """Draw the bounds of a read; as often as not those that reads really have."""
    if draw(st.booleans()):
        return DEFAULT_BOUNDS
    return {
        "read_ahead_bytes": draw(st.integers(1, 2_000)),
        "block_cells": draw(st.sampled_from([1, 7, 1 << 20])),
        "batch_rows": draw(st.integers(1, 40)),
        "blocks_ahead": draw(st.integers(1, 3)),
        "task_bytes": draw(st.sampled_from([1, 500, 1 << 27])),
        "whole_labels": draw(st.sampled_from([0, 1 << 20])),
        "segment_cells": draw(st.sampled_from([1, 5, 2048])),
        "painted_cells": draw(st.sampled_from([1, 10, 2_000_000])),
        "small_shard": draw(st.sampled_from([0, 1 << 18])),
    }


@contextmanager
def bounded(bounds: dict[str, Any]) -> Iterator[None]:
    """Read with other bounds than those of the code; ``read_ahead_bytes`` is for the plan."""
    if bounds is DEFAULT_BOUNDS:
        yield
        return
    rows = bounds["batch_rows"]

    def join_thin(batches, schema, rows):
        return cell_batches.join_thin(batches, schema, rows=min(rows, bounds["batch_rows"]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cell_batches, "BATCH_ROWS", rows)
        patched.setattr(running, "join_thin", join_thin)
        patched.setattr(refs_layout, "BATCH_ROWS", rows)
        patched.setattr(blocks, "MOST_CELLS", bounds["block_cells"])
        patched.setattr(pipeline, "_MOST_BLOCKS_AHEAD", bounds["blocks_ahead"])
        patched.setattr(planning, "CHUNKS_TASK_BYTES", bounds["task_bytes"])
        patched.setattr(tables, "WHOLE_LABELS", bounds["whole_labels"])
        patched.setattr(block_statistics, "_PIECE_CELLS", bounds["segment_cells"])
        patched.setattr(block_statistics, "_LARGE_SEGMENT_CELLS", bounds["segment_cells"])
        patched.setattr(regions, "_MAX_PAINTED_CELLS", bounds["painted_cells"])
        patched.setattr(shard_reads, "_SMALL_SHARD_BYTES", bounds["small_shard"])
        yield


def rows_of(plan):
    batches = [b for task in plan.tasks for b in run_scan(plan.context, task)]
    assert all(batch.schema.equals(plan.arrow_schema) for batch in batches)
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


def numbers(*shape):
    return np.arange(1, int(np.prod(shape)) + 1, dtype="i4").reshape(shape)


@st.composite
def stored_arrays(draw, dims, sizes):
    chunks = tuple(draw(st.integers(1, n)) for n in sizes)
    shards = None
    if draw(st.booleans()):
        shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    outer = shards or chunks
    grid = [range(-(-n // c)) for n, c in zip(sizes, outer, strict=True)]
    places = list(np.ndindex(*[len(g) for g in grid]))
    missing = frozenset(draw(st.lists(st.sampled_from(places), max_size=len(places))))
    values = numbers(*sizes) + draw(st.integers(0, 5)) * 1000
    for place in missing:
        box = tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, outer, strict=True))
        values[box] = -7
    order = draw(st.permutations(range(len(dims))))
    array = ArrayToWrite(
        values=np.ascontiguousarray(values.transpose(order)),
        chunks=tuple(chunks[i] for i in order),
        shards=tuple(shards[i] for i in order) if shards else None,
        dims=tuple(dims[i] for i in order),
        fill_value=-7,
        missing=frozenset(tuple(place[i] for i in order) for place in missing),
        manifest_chunks=draw(st.sampled_from([None, 1, 2])),
    )
    return values, array


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    dims = ["z", "y", "x"][:ndim]
    sizes = [draw(st.integers(1, 6)) for _ in dims]
    a, b = draw(stored_arrays(dims, sizes)), draw(stored_arrays(dims, sizes))
    picked = []
    for size in sizes:
        kind = draw(st.sampled_from(["whole", "span", "step"]))
        start = draw(st.integers(0, size - 1))
        if kind == "whole":
            picked.append(slice(None))
        elif kind == "span":
            picked.append(slice(start, draw(st.integers(start, size))))
        else:
            picked.append(slice(start, None, draw(st.integers(1, 3))))
    return dims, sizes, a, b, picked


def isel_text(dims, picked):
    parts = []
    for dim, chosen in zip(dims, picked, strict=True):
        if chosen != slice(None):
            step = "" if chosen.step is None else f":{chosen.step}"
            parts.append(f"{dim}={chosen.start}:{'' if chosen.stop is None else chosen.stop}{step}")
    return "; ".join(parts) or None
