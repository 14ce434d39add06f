"""A dimension without labels may be absurdly long: its positions are not made at once."""

import json

import pytest
from helpers.raised import raises
from helpers.sessions.model import group_document

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading.run import run_scan


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


@pytest.mark.parametrize("size", [2**29, 2**40])
@pytest.mark.parametrize(
    "selecting", [{"sel": "x=0:10"}, {"where": "x % 2 = 0"}, {"where": "x % 2 = 0 OR x < 5"}]
)
def test_conditions_on_too_many_positions_are_refused(dataset_of, size, selecting):
    dataset = dataset_of(size, size)
    with raises(InvalidInputError, dim="x", found=size):
        dataset.choose(dataset.table("cells"), **selecting)
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


def test_a_chunk_that_cannot_be_decoded_is_refused(dataset_of):
    dataset = dataset_of(2**40, 2**40)
    plan = dataset.plan(dataset.table("cells"))
    with pytest.raises(UnsupportedError):
        list(run_scan(plan.context, plan.tasks[0]))
