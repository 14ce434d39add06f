"""Encodings of results do not round labels; they may round measurements."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_spark.mapping.encoding import encoded as encoded_result

TIMES = pd.to_datetime(["2024-01-01T00:00", "2024-01-01T00:02"]).values
DAYS = "days since 1858-11-17"


def encoded(labels, encoding, dim="x"):
    variable = xr.Variable((dim,), labels)
    found = encoded_result(
        variable, "x", "in a block", is_coordinate=True, encoding=encoding, times={}
    )
    return found.values


REFUSED = {
    "float32 days": (TIMES, {"dtype": "float32", "units": DAYS}),
    "packed": (np.array([10.0, 10.2]), {"dtype": "int16", "scale_factor": 0.5}),
    "float32": (np.array([16777216, 16777217.0]), {"dtype": "float32"}),
    "lead": (np.array([360000005], "m8[s]"), {"dtype": "float32", "units": "hours"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_labels_are_not_rounded(name):
    with raises(InvalidInputError, match="labels are not rounded", variable="x"):
        encoded(*REFUSED[name])


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_measurements_may_be_rounded(name):
    assert len(encoded(*REFUSED[name], dim="y"))


@pytest.mark.parametrize(
    ("labels", "encoding"),
    [
        (TIMES, {"dtype": "float64", "units": DAYS}),
        (TIMES, {"dtype": "int64", "units": "minutes since 1858-11-17"}),
        (np.array([10.0, 10.2]), {"dtype": "float32"}),
        (np.array([10.0, 10.2]), {"dtype": "int16", "scale_factor": 0.1}),
        (np.array([1, 2]), {"dtype": "int8"}),
        (np.array(["a", "b"]), {}),
    ],
)
def test_labels_that_are_held_are_stored(labels, encoding):
    assert len(encoded(labels, encoding)) == 2
