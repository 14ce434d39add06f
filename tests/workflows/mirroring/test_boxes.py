"""Files of a copy: their boxes, and which of them changed cells touch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import RegularAxis
from icechunk_format.groups import DimSelection
from icechunk_format.workflows.mirroring.boxes import (
    FileGroups,
    boxes_in_names,
    chunks_per_file,
    file_name,
    touched,
)

TOKEN = "0123456789abcdef"


def boxes(*given):
    return np.array(given, dtype=np.int64)


@st.composite
def some_boxes(draw, ndim, most):
    found = []
    for _ in range(draw(st.integers(0, most))):
        sides = [sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))) for _ in range(ndim)]
        found.append(sides)
    return np.array(found, dtype=np.int64).reshape(len(found), ndim, 2)


@settings(max_examples=50)
@given(st.data(), st.integers(1, 3))
def test_touched_is_what_comparing_each_pair_finds(data, ndim):
    ours = data.draw(some_boxes(ndim, 6))
    ours = ours[(ours[:, :, 0] < ours[:, :, 1]).all(axis=1)]
    changed = data.draw(some_boxes(ndim, 6))
    expected = [
        any((np.maximum(a[:, 0], b[:, 0]) < np.minimum(a[:, 1], b[:, 1])).all() for b in changed)
        for a in ours
    ]
    assert touched(ours, changed).tolist() == expected


def test_a_side_may_be_as_long_as_a_number_can_be():
    endless = boxes([[3, 5], [0, np.iinfo(np.int64).max]])
    assert touched(boxes([[0, 4], [0, 8]], [[5, 9], [0, 8]]), endless).tolist() == [True, False]


def test_a_million_changed_chunks_and_ten_thousand_files():
    firsts = np.arange(10_000, dtype=np.int64)
    files = np.stack([firsts * 100, firsts * 100 + 100], axis=1)[:, None]
    ones = np.arange(0, 1_000_000, dtype=np.int64)
    changed = np.stack([ones, ones + 1], axis=1)[:, None]
    changed = changed[(ones // 100) % 2 == 0]
    assert touched(files, changed).tolist() == [n % 2 == 0 for n in range(10_000)]


@settings(max_examples=50)
@given(st.data())
def test_missing_boxes_hold_each_selected_cell_that_no_kept_box_has(data):
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    axes = tuple(RegularAxis(size=n, step=data.draw(st.integers(1, 4))) for n in sizes)
    groups = FileGroups(
        axes=axes,
        steps=tuple(data.draw(st.integers(1, 3)) for _ in sizes),
        selections=tuple(
            DimSelection.of_indices(n, data.draw(st.lists(st.integers(0, n - 1))) if n else [])
            for n in sizes
        ),
    )
    everything = groups.missing(np.empty((0, len(sizes), 2), dtype=np.int64))
    assert groups.fit(everything).all()
    # Some files stay, some of them cut short as after an append.
    kept = everything[: data.draw(st.integers(0, len(everything)))].copy()
    if len(kept):
        kept[-1, 0, 1] = max(kept[-1, 0, 0] + 1, kept[-1, 0, 1] - 1)
    found = groups.missing(kept)
    times = np.zeros(sizes, dtype=int)
    for box in [*kept, *found]:
        times[tuple(slice(low, high) for low, high in box)] += 1
    assert times.max(initial=0) <= 1
    selected = np.ix_(*(selection.positions() for selection in groups.selections))
    assert (times[selected] == 1).all()
    assert groups.rows(np.concatenate([kept, found])).sum() == times[selected].size


def test_names_tell_boxes():
    box = boxes([0, 24], [5, 721])
    name = file_name(box, TOKEN)
    assert name == f"cells-0_24-5_721-{TOKEN}.parquet"
    assert boxes_in_names([name], 2).tolist() == [box.tolist()]
    assert boxes_in_names([file_name(box[:0], TOKEN)], 0).shape == (1, 0, 2)
    for other in ("part-0.parquet", f"cells-0_24-{TOKEN}.parquet", f"cells-all-{TOKEN}.parquet"):
        assert boxes_in_names([other], 2) is None


def test_files_have_whole_chunks_and_about_the_wanted_rows():
    def steps(shape, chunks, rows=None, row_bytes=28):
        axes = [RegularAxis(size=n, step=c) for n, c in zip(shape, chunks, strict=True)]
        return chunks_per_file(axes, row_bytes, rows)

    assert steps((365, 721, 1440), (1, 721, 1440)) == (1, 1, 1)
    assert steps((365, 72, 144), (1, 72, 144)) == (192, 1, 1)
    # A chunk of all times: files are cut along latitudes.
    assert steps((10_000, 100, 100), (10_000, 10, 10)) == (1, 1, 2)
    assert steps((100, 100, 100), (100, 10, 10)) == (2, 10, 10)
    # One day now, a year tomorrow: files do not stay as short as the first day.
    assert steps((1, 10, 10), (1, 10, 10), rows=1_000) == (10, 1, 1)
    # Wide rows.
    assert steps((365, 72, 144), (1, 72, 144), row_bytes=2800)[0] == 4
    assert steps((0, 10), (5, 5)) == (40_000, 2)


def test_too_many_files_are_refused():
    axes = (RegularAxis(size=10_000_000, step=1),)
    groups = FileGroups(axes=axes, steps=(1,), selections=(DimSelection.whole(10_000_000),))
    with pytest.raises(InvalidInputError, match="more than 1,000,000 files"):
        groups.missing(np.empty((0, 1, 2), dtype=np.int64))
