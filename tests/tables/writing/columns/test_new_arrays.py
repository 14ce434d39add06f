"""The chunks of new arrays hold about 8 MiB, whole along the last dimensions."""

import pytest

from icechunk_format.tables.writing.columns.new_arrays import declared_missing, default_chunks
from icechunk_format.zarr.data_types import parse_data_type


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((), ()),
        ((0,), (1,)),
        ((3_000_000,), (1_048_576,)),
        ((100, 200), (100, 200)),
        ((10_000_000, 100), (10_485, 100)),
        ((5_000, 40_000), (1_024, 1_024)),
        ((10, 2_000_000), (10, 104_857)),
        ((10_000, 100, 200), (52, 100, 200)),
        ((30, 100, 200), (30, 100, 200)),
        ((7, 1_000, 1_000, 100), (1, 10, 1_000, 100)),
        ((7, 2_000, 3_000), (1, 1_024, 1_024)),
    ],
)
def test_default_chunks(shape, chunks):
    assert default_chunks(shape, parse_data_type("float64", node_path="/a")) == chunks


@pytest.mark.parametrize(
    ("attributes", "missing"),
    [
        ({}, None),
        ({"units": "K", "_FillValue": None}, None),
        ({"_FillValue": -9}, -9),
        ({"missing_value": -8}, -8),
    ],
)
def test_the_missing_value_that_attributes_declare(attributes, missing):
    int16 = parse_data_type("int16", node_path="/a")
    assert declared_missing(attributes, int16, "a") == missing
