"""Every key of the option encoding is used or refused."""

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

ROWS = pa.table({"x": [0, 1], "v": np.array([0.5, 1.5])})


@pytest.mark.parametrize(
    "encoding",
    [
        {"scale_factor": 0},
        {"scale_factor": 1e-320},
        {"scale_factor": float("inf")},
        {"scale_factor": True},
        {"add_offset": "1"},
        {"add_offset": float("nan")},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        {"shape": [2]},
        {"dims": ["x"]},
        {"order": "ascending"},
        {"_Unsigned": "maybe"},
        {"_Unsigned": "true"},
        {"calendar": "mayan"},
        {"calendar": "noleap"},
        {"fill_value": 99999999999999999999999},
        {"dtype": "string", "scale_factor": 2.0},
    ],
    ids=str,
)
def test_a_key_that_would_be_ignored_is_refused(tmp_path, encoding):
    options = WriteOptions(dims=("x",), encoding={"v": encoding})
    with raises(InvalidInputError, match="encoding of 'v'|column 'v'"):
        write_table(str(tmp_path / "r"), ROWS, options)
    assert not (tmp_path / "r").exists()


def test_an_order_of_labels_must_be_known(tmp_path):
    options = WriteOptions(dims=("x",), encoding={"x": {"order": "Q"}})
    with raises(InvalidInputError, match="ascending, descending or unsorted", key="order"):
        write_table(str(tmp_path / "r"), ROWS, options)


def test_values_that_packing_makes_infinite_are_refused(tmp_path):
    rows = ROWS.set_column(1, "v", pa.array([1e300, 1.0]))
    options = WriteOptions(dims=("x",), encoding={"v": {"scale_factor": 1e-300}})
    with raises(InvalidInputError, match="is too large for scale_factor=1e-300"):
        write_table(str(tmp_path / "r"), rows, options)


@pytest.mark.parametrize("names", [{"TIME": [3], "LAT": [1.0]}, {"TIME": [3], "lat": [1.0]}])
def test_dimensions_in_another_case_are_named(tmp_path, names):
    place = str(tmp_path / "r")
    first = pa.table({"time": [1], "lat": [1.0], "v": [1.0]})
    write_table(place, first, WriteOptions(dims=("time", "lat")))
    with raises(InvalidInputError, match="write it as 'time'", column="TIME", existing="time"):
        write_table(place, pa.table({**names, "v": [1.0]}), WriteOptions(mode="append"))
