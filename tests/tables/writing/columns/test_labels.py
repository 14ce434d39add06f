"""Labels that give a row no single place are named as readers see them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf import variable_encoder
from icechunk_format.tables.writing import index_labels
from icechunk_format.zarr.data_types import data_type_from_numpy


@pytest.mark.parametrize(
    ("dtype", "attributes", "values", "shown"),
    [
        ("int32", {}, pa.array([3], pa.int32()), "the stored label 3 more"),
        (
            "int64",
            {"units": "days since 2024-01-01"},
            pa.array([dt.datetime(2024, 1, 4)], pa.timestamp("us")),
            "the stored label 2024-01-04 00:00:00 more",
        ),
    ],
)
def test_a_label_that_comes_twice_is_shown_as_it_reads(dtype, attributes, values, shown):
    encoder = variable_encoder(data_type_from_numpy(dtype), attributes, values.type, name="x")
    with raises(InvalidInputError, match=shown, dim="x"):
        index_labels(values, encoder, np.array([1, 3, 3, 5], dtype), dim="x")
