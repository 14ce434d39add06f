"""xarray shows missing values and holes of what we write."""

import base64

import icechunk
import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from helpers.grids.written_cells import dataset_at, rows_of

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

PACKED = {"dtype": "int16", "add_offset": 20.0, "scale_factor": 0.5, "_FillValue": -32768}


def opened(place, **options):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(place))
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks=None, **options)


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "a")


def column(values, kind):
    return pa.table({"x": np.arange(len(values)), "v": pa.array(values, kind)})


def write(place, values, kind, mode="errorifexists", **encoding):
    options = WriteOptions(mode=mode, dims=("x",), encoding={"v": encoding} if encoding else {})
    return write_table(place, column(values, kind), options)


def refused(place, values, kind, mode="errorifexists", **encoding):
    with pytest.raises(InvalidInputError) as caught:
        write(place, values, kind, mode, **encoding)
    return str(caught.value).splitlines()[-1]


def chunk_rows(layout):
    data = np.array([2, -32768, 4], "<i2").tobytes()
    rows = {"array": ["v"], "chunk": pa.array([[1]], pa.list_(pa.int64()))}
    if layout == "chunks":
        return pa.table({**rows, "data": [data]})
    return pa.table({**rows, "kind": ["inline"], "data": [data]})


@pytest.mark.parametrize("layout", ["chunks", "refs"])
def test_chunks_that_are_missing_are_missing_values(place, layout):
    described = {**PACKED, "shape": [9], "chunks": [3], "dims": ["x"], "codecs": ["bytes"]}
    if layout == "refs":
        described["compressors"] = None
        del described["codecs"]
    described["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    described.pop("compressors", None)
    options = WriteOptions(layout=layout, encoding={"v": described})
    write_table(place, chunk_rows(layout), options)
    assert dataset_at(place).variables["v"].metadata.fill_value == -32768
    expected = [np.nan] * 3 + [21.0, np.nan, 22.0] + [np.nan] * 3
    np.testing.assert_array_equal(opened(place).v.values, expected)
    found = rows_of(place).column("v").to_pylist()
    assert found == [None if np.isnan(value) else value for value in expected]


def test_a_fill_value_that_is_named_is_kept(place):
    described = {**PACKED, "shape": [9], "chunks": [3], "dims": ["x"], "fill_value": 0}
    write_table(
        place, chunk_rows("chunks"), WriteOptions(layout="chunks", encoding={"v": described})
    )
    assert dataset_at(place).variables["v"].metadata.fill_value == 0


@pytest.mark.parametrize(
    ("kind", "first", "later", "encoding"),
    [
        (pa.float64(), [20.5, 21.0], 21.5, PACKED),
        (pa.int32(), [1, 2], 3, {"_FillValue": -1}),
        (pa.timestamp("us"), [0, 1], 2, {}),
        (pa.duration("us"), [0, 1], 2, {}),
        (pa.float32(), [0, 1], 2, {}),
    ],
    ids=["packed", "int", "time", "duration", "float"],
)
def test_holes_of_a_later_append_are_missing_values(place, kind, first, later, encoding):
    options = WriteOptions(dims=("y", "x"), chunks={"x": 1}, encoding={"v": encoding})
    table = pa.table({"y": [0, 0], "x": [0, 1], "v": pa.array(first, kind)})
    write_table(place, table, options)
    later = pa.table({"y": [1], "x": [1], "v": pa.array([later], kind)})
    write_table(place, later, WriteOptions(mode="append"))
    found = opened(place).v
    np.testing.assert_array_equal(found.isnull().values, [[False, False], [True, False]])
    assert rows_of(place).column("v").null_count == 1


INTEGERS = [
    ([1, None, -1], pa.int32(), {"_FillValue": -1}, "-1"),
    ([1, None, -1], pa.int64(), {"missing_value": -1}, "-1"),
    ([1.0, -999.0], pa.float32(), {"_FillValue": -999.0}, "-999.0"),
    ([20.5, -16364.0], pa.float64(), PACKED, "-16364.0"),
    (["a", None, "NA"], pa.string(), {"missing_value": "NA"}, "'NA'"),
    ([0, 1], pa.timestamp("us"), {"units": "seconds since 1970-01-01", "_FillValue": 0}, "1970"),
]


@pytest.mark.parametrize(("values", "kind", "encoding", "shown"), INTEGERS)
def test_a_missing_value_that_occurs_is_refused(place, values, kind, encoding, shown):
    if kind == pa.timestamp("us"):
        values = [value * 1_000_000 for value in values]
    last = refused(place, values, kind, **encoding)
    assert shown in last
    assert "would read as NULL" in last


def test_a_missing_value_that_occurs_is_refused_by_an_append(place):
    write(place, [1, None, 3], pa.int32(), _FillValue=-1)
    assert "would read as NULL" in refused(place, [4, 5, -1], pa.int32(), mode="append")
    write(place, [4, 5, None], pa.int32(), mode="append")
    np.testing.assert_array_equal(opened(place).v.values, [4, 5, np.nan])


def test_the_advice_for_integers_works(place):
    assert '"_FillValue": ...' in refused(place, [1, None, 3], pa.int32())
    write(place, [1, None, 3], pa.int32(), _FillValue=-1)
    np.testing.assert_array_equal(opened(place).v.values, [1, np.nan, 3])


def test_the_advice_for_booleans_works(place):
    last = refused(place, [True, None, False], pa.bool_())
    assert 'encoding={"v": {"dtype": "int8", "_FillValue": -1}}' in last
    write(place, [True, None, False], pa.bool_(), dtype="int8", _FillValue=-1)
    found = opened(place).v
    np.testing.assert_array_equal(found.values, [1, np.nan, 0])
    assert found.attrs == {"flag_values": [0, 1], "flag_meanings": "false true"}
    assert rows_of(place).column("v").to_pylist() == [1, None, 0]
    write(place, [None, False, True], pa.bool_(), mode="append")
    np.testing.assert_array_equal(opened(place).v.values, [np.nan, 0, 1])


@pytest.mark.parametrize("value", [False, True])
def test_a_boolean_has_no_value_to_spare(place, value):
    for kind in ({}, {"dtype": "bool"}):
        last = refused(place, [True, None, False], pa.bool_(), _FillValue=value, **kind)
        assert '{"dtype": "int8", "_FillValue": -1}' in last


def test_booleans_without_null_stay_booleans(place):
    write(place, [True, False], pa.bool_())
    assert opened(place).v.dtype == bool
    write(f"{place}-b", [True, False], pa.bool_(), dtype="int8")
    found = opened(f"{place}-b").v
    assert found.dtype == bool
    assert found.values.tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["string", "<U4"])
@pytest.mark.parametrize("key", ["missing_value", "_FillValue"])
def test_texts_with_null_open_in_xarray(place, dtype, key):
    last = refused(place, ["a", None, ""], pa.string(), dtype=dtype)
    assert 'encoding={"v": {"missing_value": ...}}' in last
    write(place, ["a", None, ""], pa.string(), dtype=dtype, **{key: "NA"})
    found = opened(place).v.values.tolist()
    assert found[0::2] == ["a", ""]
    assert np.isnan(found[1])
    assert rows_of(place).column("v").to_pylist() == ["a", None, ""]


def test_an_empty_text_that_is_missing_must_not_occur(place):
    assert "would read as NULL" in refused(place, ["a", None, ""], pa.string(), _FillValue="")
    write(place, ["a", None, "b"], pa.string(), _FillValue="")
    assert opened(place).v.values.tolist()[0::2] == ["a", "b"]


def test_bytes_with_null_open_in_xarray(place):
    spare = base64.b64encode(b"NA").decode()
    write(place, [b"a", None], pa.binary(), _FillValue=spare)
    assert opened(place).v.values.tolist() == [b"a", b"NA"]
    assert rows_of(place).column("v").to_pylist() == [b"a", None]
