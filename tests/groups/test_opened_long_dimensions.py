"""A dimension without labels may be absurdly long: its positions are not made at once."""

import json

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises
from helpers.sessions.model import group_document

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.selection.sel_isel import resolve_sel


@pytest.fixture
def dataset_of(tmp_path):
    def make(size, chunk):
        repository = Repository.create(str(tmp_path / f"{size}-{chunk}"))
        session = repository.writable_session()
        session.create_group("/", group_document())
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [size],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 7,
            "codecs": [{"name": "bytes"}],
            "attributes": {},
            "dimension_names": ["x"],
        }
        shape = {"shape": [size], "num_chunks": [-(-size // chunk)], "dimension_names": ["x"]}
        session.create_array("/v", json.dumps(document).encode(), **shape)
        return open_dataset(repository, session.commit("long").snapshot_id)

    return make


@pytest.fixture
def longest(monkeypatch):
    """Return the lengths of all arrays of positions that are made."""
    made, arange = [], np.arange

    def counted(*given, **how):
        made.append(len(arange(*given, **how)))
        return arange(*given, **how)

    monkeypatch.setattr(np, "arange", counted)
    return made


@pytest.mark.parametrize("where", ["x % 2 = 0", "x % 2 = 0 OR x < 5"])
def test_conditions_on_too_many_positions_are_refused(dataset_of, where):
    size = 2**40
    dataset = dataset_of(size, size)
    with raises(InvalidInputError, dim="x", found=size):
        dataset.choose(dataset.table("cells"), where=where)
    chosen = dataset.choose(dataset.table("cells"), isel="x=3:5")
    assert chosen.dims["x"].count == 2


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("x < 5", 5),
        ("x = 1099511627775", 1),
        ("x BETWEEN 10 AND 19 AND x % 2 = 0", 5),
        ("x IN (3, 1000000000000)", 2),
        ("x >= 5 AND x IS NOT NULL", 2**40 - 5),
        ("x = -1", 0),
    ],
)
def test_comparisons_with_positions_list_no_other_positions(dataset_of, where, count):
    dataset = dataset_of(2**40, 2**40)
    chosen = dataset.choose(dataset.table("cells"), where=where)
    assert chosen.dims["x"].count == count
    assert chosen.residual is None


SELECTORS = [
    ("x=0:10", (0, 11)),
    ("x=..", None),
    ("x=7", (7, 8)),
    ("x=1e6..1e7", (10**6, 10**7 + 1)),
    ({"x": slice(-5, 2.5)}, (0, 3)),
    ({"x": slice(None, float("inf"))}, None),
    ({"x": slice(5, 4)}, (0, 0)),
]


@pytest.mark.parametrize("size", [2**25, 2**40])
@pytest.mark.parametrize(("sel", "span"), SELECTORS, ids=str)
def test_ranges_of_positions_stay_ranges(dataset_of, longest, size, sel, span):
    dataset = dataset_of(size, size)
    found = dataset.choose(dataset.table("cells"), sel=sel).dims["x"]
    assert (found.start, found.stop) == (span or (0, size))
    assert found.indices is None
    assert max(longest, default=0) < 1000


@pytest.mark.parametrize(
    "selecting", [{"where": "x < 5"}, {"where": "x % 1000000 = 3"}, {"where": "x <> 5 OR x = 5"}]
)
def test_a_condition_makes_positions_in_pieces(dataset_of, longest, selecting):
    size = 2**23
    dataset = dataset_of(size, size)
    found = dataset.choose(dataset.table("cells"), **selecting).dims["x"]
    assert found.count == {"x < 5": 5, "x % 1000000 = 3": 9}.get(selecting["where"], size)
    assert max(longest, default=0) <= 2**18


@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_positions_are_selected_as_labels_of_the_same_values(dataset_of, size):
    dataset = dataset_of(size, 3)
    table = dataset.table("cells")
    values = pa.array(range(size))
    for number in [-3, -1, -0.5, 0, 0.5, 1, 2.5, 6, 6.5, size - 1, size - 0.5, size, 1e300]:
        for sel in ({"x": number}, {"x": [0, number]}, {"x": slice(number, 5)}, f"x={number}:"):
            for method in (None, "nearest"):
                outcomes = []
                for labels in (values, range(size)):
                    try:
                        found = resolve_sel(sel, {"x": size}, lambda _, v=labels: v, method=method)
                        outcomes.append(found["x"])
                    except InvalidInputError as error:
                        outcomes.append(error.message)
                assert outcomes[0] == outcomes[1], (sel, method)
    for where in ("x > 2", "x % 2 = 0", "x IS NULL", "x <> 1"):
        chosen = dataset.choose(table, where=where).dims["x"]
        assert chosen.positions().tolist() == [
            at
            for at in range(size)
            if {"x > 2": at > 2, "x % 2 = 0": at % 2 == 0, "x <> 1": at != 1}.get(where)
        ]


def test_a_summary_makes_only_the_ends_of_blocks(dataset_of, longest):
    size = 2**20
    dataset = dataset_of(size, size)
    plan = dataset.plan(dataset.table("summary"))
    [batch] = [batch for task in plan.tasks for batch in run_scan(plan.context, task)]
    [row] = batch.to_pylist()
    assert (row["x_first"], row["x_last"], row["v_count"]) == (0, size - 1, size)
    assert max(longest) < 1000


def test_a_chunk_that_cannot_be_decoded_is_refused(dataset_of):
    dataset = dataset_of(2**40, 2**40)
    plan = dataset.plan(dataset.table("cells"))
    with pytest.raises(UnsupportedError):
        list(run_scan(plan.context, plan.tasks[0]))
