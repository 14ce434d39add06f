"""Our columns, Spark's types and Spark's own Arrow mapping agree with one another."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.tables.reading import Column
from icechunk_spark.schema import (
    arrow_target,
    column_metadata,
    column_names,
    fit_batch,
    spark_schema,
    spark_type,
)

EVERY_TYPE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(20,0)": pa.decimal128(20, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "interval day to second": pa.duration("us"),
    "array<bigint>": pa.list_(pa.int64()),
    "struct<re:float,im:float>": pa.struct([("re", pa.float32()), ("im", pa.float32())]),
}


def column(name: str, arrow_type: pa.DataType, **metadata: object) -> Column:
    return Column(
        name=name, arrow_type=arrow_type, role="variable", path=None, dims=(), metadata=metadata
    )


@pytest.mark.parametrize(("name", "arrow_type"), EVERY_TYPE.items())
def test_types_are_those_of_the_contract(name, arrow_type):
    assert spark_type(arrow_type).simpleString() == name


@pytest.mark.parametrize("arrow_type", EVERY_TYPE.values(), ids=str)
def test_spark_maps_our_types_back_to_the_same_arrow_type(arrow_type):
    schema = spark_schema([column("x", arrow_type)])
    assert arrow_target(schema) == pa.schema([("x", arrow_type)])


@pytest.mark.parametrize(
    "arrow_type", [pa.large_string(), pa.timestamp("ns"), pa.uint8(), pa.null()], ids=str
)
def test_types_outside_the_contract_are_refused(arrow_type):
    with pytest.raises(UnsupportedError, match=r"has no Spark type"):
        spark_type(arrow_type)


# --- the user's schema ------------------------------------------------------------------------

COLUMNS = [
    column("time", pa.timestamp("us")),
    column("latitude", pa.float32()),
    column("count", pa.int32()),
    column("T", pa.float64()),
    column("id", pa.decimal128(20, 0)),
]


def names(*fields: tuple[str, object]) -> list[str]:
    return column_names(StructType([StructField(*field) for field in fields]), COLUMNS)


def test_a_user_schema_selects_and_orders():
    assert names(("count", IntegerType()), ("time", TimestampNTZType())) == ["count", "time"]


def test_names_match_without_case_where_that_leaves_no_doubt():
    assert names(("Latitude", FloatType()), ("t", DoubleType())) == ["latitude", "T"]


@pytest.mark.parametrize(
    "field",
    [
        ("latitude", DoubleType()),
        ("count", LongType()),
        ("count", DoubleType()),
        ("count", DecimalType(10, 0)),
        ("time", TimestampType()),
        ("id", DecimalType(22, 2)),
    ],
    ids=str,
)
def test_types_may_be_widened(field):
    assert names(field) == [field[0]]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (
            ("latitude", IntegerType()),
            "'latitude' is float, but * specifies int: use float or double",
        ),
        (("latitude", StringType()), "use float or double"),
        (
            ("count", FloatType()),
            "'count' is int, but * specifies float: use int or bigint or double",
        ),
        (("count", DecimalType(9, 0)), "specifies decimal(9,0)"),
        (("T", FloatType()), "'T' is double, but * specifies float: use double"),
        (("time", StringType()), "use timestamp_ntz or timestamp"),
        (("id", LongType()), "'id' is decimal(20,0)"),
        (("count", ArrayType(IntegerType())), "specifies array<int>"),
        (("latitud", FloatType()), "did you mean 'latitude'?"),
        (("zzz", FloatType()), "among the columns time, latitude, count, T, id"),
    ],
)
def test_a_schema_that_does_not_fit_says_what_does(field, says):
    with pytest.raises(InvalidInputError) as caught:
        names(field)
    for part in says.split("*"):
        assert part.strip() in str(caught.value)


def test_a_column_twice():
    with pytest.raises(InvalidInputError, match=r"names column 'latitude' twice"):
        names(("latitude", FloatType()), ("LATITUDE", FloatType()))


def test_a_schema_without_columns():
    with pytest.raises(InvalidInputError, match=r"has no columns"):
        names()


# --- batches ----------------------------------------------------------------------------------


def test_batches_are_renamed_and_widened_by_position():
    times = pa.array(np.array(["2024-07-01T00:00"], "M8[us]"))
    batch = pa.record_batch({"time": times, "count": pa.array([7], pa.int32())})
    schema = StructType([StructField("Time", TimestampType()), StructField("count", DoubleType())])
    fitted = fit_batch(batch, arrow_target(schema))
    assert fitted.schema == pa.schema(
        [("Time", pa.timestamp("us", tz="UTC")), ("count", pa.float64())]
    )
    assert fitted.column(0)[0].as_py().isoformat() == "2024-07-01T00:00:00+00:00"
    assert fitted.column(1).to_pylist() == [7.0]


def test_a_batch_that_fits_is_passed_on_as_it_is():
    batch = pa.record_batch({"a": pa.array([1], pa.int64())})
    target = arrow_target(StructType([StructField("a", LongType())]))
    assert fit_batch(batch, target) is batch


def test_not_null_is_checked():
    target = arrow_target(StructType([StructField("a", LongType(), nullable=False)]))
    full = pa.record_batch({"a": pa.array([1], pa.int64())})
    assert fit_batch(full, target).schema.equals(target)
    holed = pa.record_batch({"a": pa.array([1, None], pa.int64())})
    with pytest.raises(InvalidInputError, match=r"column 'a' holds missing values.*NOT NULL"):
        fit_batch(holed, target)


# --- metadata ---------------------------------------------------------------------------------

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=5)


def _nested(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


JSON = st.recursive(SCALARS, _nested, max_leaves=8)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_metadata_comes_back_as_given(metadata):
    field = spark_schema([column("x", pa.int64(), attributes=metadata)]).fields[0]
    travelled = StructField.fromJson(json.loads(json.dumps(field.jsonValue())))
    assert column_metadata(travelled) == {"attributes": metadata}


def test_a_comment_tells_what_the_column_is():
    attributes = {"long_name": "2 metre temperature", "units": "K"}
    field = spark_schema([column("x", pa.int64(), attributes=attributes)]).fields[0]
    assert field.metadata["comment"] == "2 metre temperature [K]"


def test_a_foreign_field_has_no_metadata_of_ours():
    assert column_metadata(StructField("x", LongType(), metadata={"icechunk": 3})) == {}
