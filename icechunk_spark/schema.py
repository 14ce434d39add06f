"""Converts the columns of a table to Spark's schema, and Spark's schema to Arrow's.

Long because both directions share one list of types.

Rules of this file
------------------
1. Types are built in Python: ``StructType.fromDDL`` needs a SparkContext, and Spark's planner
   requests the schema in a worker that has none.
2. The batches of a reader must have *exactly* the Arrow schema to which Spark maps its own: Spark
   4.2 and later compare strictly, and earlier versions swap or garble columns that differ. So
   Spark's `to_arrow_schema` makes the target, and every batch is fitted to it by position.
3. A user's schema may select and order columns, change the case of names, and widen types if all
   values are preserved.
4. Spark's JVM supports objects, strings, numbers, and lists of one type as field metadata. Other
   JSON is stored as a string under one key.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.names import nearest

if TYPE_CHECKING:
    from icechunk_format.options.metadata_tables import MetadataColumn
    from icechunk_format.tables.reading import Column

#: Key of a field's metadata that holds the metadata of the column.
METADATA_KEY: Final = "icechunk"

#: Key of a field's metadata that holds the role of a column of `sample` and `zonal`. Writers ignore
#: it, so that these results are written like other rows.
RESULT_KEY: Final = "icechunk_result"

#: Key of a column's metadata that holds the repository and snapshot of rows read from a branch.
BASE_KEY: Final = "base"

# Attributes that name other arrays of the grid.
_OF_THE_GRID: Final = frozenset({"coordinates", "grid_mapping", "cell_measures", "bounds"})

ResultRole = Literal["row", "dimension", "labels", "value"]

# Key for JSON that Spark's metadata do not support, stored as a string.
_AS_JSON_STRING: Final = "$json"

# The estimates of Spark's optimizer for a row, and for a value of variable width.
_BYTES_OF_A_ROW: Final = 8
_BYTES_OF_A_STRING: Final = 20


def quoted(name: str) -> SparkColumn:
    """Return the column called exactly `name`, dots and backticks included."""
    return F.col(quoted_name(name))


def quoted_name(name: str) -> str:
    """Return a name for SQL, with dots and backticks as part of it."""
    return "`" + name.replace("`", "``") + "`"


def spark_type(arrow_type: pa.DataType) -> DataType:
    """Return the Spark type of a column.

    Raises
    ------
    UnsupportedError
        No Spark type is known for it.
    """
    with suppress(PySparkException):
        found = from_arrow_type(arrow_type, prefer_timestamp_ntz=True)
        # Spark also accepts types that it returns as others: strings of 64-bit offsets,
        # nanoseconds.
        comes_back = arrow_target(StructType([StructField("", found)])).field(0).type == arrow_type
        if comes_back and not pa.types.is_null(arrow_type):
            return found
    raise UnsupportedError(f"Arrow type {arrow_type} has no Spark type", arrow_type=str(arrow_type))


def spark_struct(schema: pa.Schema) -> StructType:
    """Return the Spark schema for an Arrow schema of rows that tasks exchange."""
    return StructType([StructField(field.name, spark_type(field.type)) for field in schema])


def spark_schema(columns: Sequence[Column]) -> StructType:
    """Return the Spark schema of a table: every column nullable, with its metadata."""
    return StructType(
        [
            StructField(
                column.name,
                spark_type(column.arrow_type),
                metadata=field_metadata(column.metadata),
            )
            for column in columns
        ]
    )


def column_names(schema: StructType, columns: Sequence[Column | MetadataColumn]) -> list[str]:
    """Return the names of the table's columns in a Spark schema, in its order.

    Raises
    ------
    InvalidInputError
        A field is not a column of the table, occurs twice, or has a type that does not hold all
        values of the column.
    """
    if not schema.fields:
        raise InvalidInputError("the schema of spark.read.schema() has no columns")
    by_name = {column.name: column for column in columns}
    names: list[str] = []
    for field in schema.fields:
        column = by_name.get(field.name) or _by_folded_name(field.name, columns)
        if column.name in names:
            raise InvalidInputError(
                f"the schema of spark.read.schema() names column '{column.name}' twice",
                column=column.name,
            )
        found = spark_type(column.arrow_type)
        if not holds(field.dataType, found):
            wider = [kind.simpleString() for kind in _CANDIDATES if holds(kind, found)]
            allowed = list(dict.fromkeys([found.simpleString(), *wider]))
            raise InvalidInputError(
                f"column '{column.name}' is {found.simpleString()}, but the schema of"
                f" spark.read.schema() specifies {field.dataType.simpleString()}: use"
                f" {' or '.join(allowed)}, and cast afterwards",
                column=column.name,
                found=found.simpleString(),
                asked=field.dataType.simpleString(),
            )
        names.append(column.name)
    return names


def _by_folded_name(
    name: str, columns: Sequence[Column | MetadataColumn]
) -> Column | MetadataColumn:
    """Return the column of that name, ignoring case, as Spark resolves names."""
    found = [column for column in columns if column.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    known = [column.name for column in columns]
    near = nearest(name, known)
    hint = f"; did you mean '{near}'?" if near else ""
    raise InvalidInputError(
        f"the schema of spark.read.schema() names column '{name}', which is not among the"
        f" columns {', '.join(known)}{hint}",
        column=name,
        known=tuple(known),
    )


# Decimal digits that hold every value of an integer type.
_DIGITS: Final[dict[type[DataType], int]] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
_WIDER: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
    TimestampNTZType: (TimestampType,),
}
_CANDIDATES: Final = (
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    TimestampType(),
)


def holds(asked: DataType, found: DataType) -> bool:
    """Return True if every value of type `found` is, unchanged, a value of type `asked`.

    TIMESTAMP holds TIMESTAMP_NTZ here, because times without a zone are UTC by the CF conventions.
    """
    if isinstance(asked, DecimalType):
        if isinstance(found, DecimalType):
            whole = asked.precision - asked.scale >= found.precision - found.scale
            return whole and asked.scale >= found.scale
        return asked.precision - asked.scale >= _DIGITS.get(type(found), 100)
    if isinstance(asked, ArrayType) and isinstance(found, ArrayType):
        return holds(asked.elementType, found.elementType)
    if isinstance(asked, StructType) and isinstance(found, StructType):
        return asked.names == found.names and all(
            holds(ours.dataType, theirs.dataType)
            for ours, theirs in zip(asked.fields, found.fields, strict=True)
        )
    if isinstance(asked, DayTimeIntervalType) and isinstance(found, DayTimeIntervalType):
        return asked == found
    return type(asked) is type(found) or type(asked) in _WIDER.get(type(found), ())


def changed_column(was: StructType, now: StructType) -> InvalidInputError | None:
    """Return an error for the first column of a view that no longer exists or fits its type."""
    types = {field.name: field.dataType for field in now}
    for field in was:
        after = types.get(field.name)
        if after is None or not holds(field.dataType, after):
            state = "does not exist now" if after is None else f"is {after.simpleString()} now"
            return InvalidInputError(
                f"column '{field.name}' was {field.dataType.simpleString()} when the view was"
                f" created, and {state}: create the view again with icechunk_spark.view",
                column=field.name,
            )
    return None


# --- batches ----------------------------------------------------------------------------------


def arrow_target(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of every batch: its own mapping, in UTC."""
    zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    mapped = to_arrow_schema(schema, timezone="UTC") if zone else to_arrow_schema(schema)
    return pa.schema([pa.field(item.name, item.type, nullable=item.nullable) for item in mapped])


def row_bytes(schema: StructType) -> int:
    """Return the size of a row in bytes, as Spark's optimizer estimates it."""
    return _BYTES_OF_A_ROW + sum(_value_bytes(field.type) for field in arrow_target(schema))


def _value_bytes(arrow_type: pa.DataType) -> int:
    if pa.types.is_struct(arrow_type):
        return sum(_value_bytes(field.type) for field in arrow_type)
    if pa.types.is_list(arrow_type):
        return _value_bytes(arrow_type.value_type)
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:  # strings and bytes have no fixed width
        return _BYTES_OF_A_STRING


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the names and types of `schema`; columns correspond by position."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fit_batch(batch: pa.RecordBatch, output_schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with exactly the schema `output_schema`; columns correspond by position.

    Raises
    ------
    InvalidInputError
        A column that is NOT NULL in the user's schema contains a NULL.
    """
    if batch.schema.equals(output_schema, check_metadata=False):
        return batch
    for column, wanted in zip(batch.columns, output_schema, strict=True):
        if not wanted.nullable and column.null_count:
            raise InvalidInputError(
                f"column '{wanted.name}' holds missing values, but the schema of"
                " spark.read.schema() specifies NOT NULL: remove NOT NULL",
                column=wanted.name,
            )
    return fitted(batch, output_schema)


# --- writing ----------------------------------------------------------------------------------


def write_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a DataFrame to write, with the metadata of columns that were read.

    The metadata of a field are a JSON object under the key ``icechunk``, as in the schemas of the
    layer of tables. Other columns have none.
    """
    fields = []
    for field in schema.fields:
        try:
            (mapped,) = arrow_target(StructType([StructField(field.name, field.dataType)]))
        except PySparkException:
            raise UnsupportedError(
                f"column '{field.name}' is {field.dataType.simpleString()}, which no array holds:"
                " cast it to a number, a string, a time, BINARY or BOOLEAN, or drop it",
                column=field.name,
                found=field.dataType.simpleString(),
            ) from None
        metadata = column_metadata(field)
        held = {METADATA_KEY: json.dumps(metadata)} if metadata else None
        fields.append(pa.field(field.name, mapped.type, nullable=True, metadata=held))
    return pa.schema(fields)


# --- field metadata ---------------------------------------------------------------------------


def field_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's metadata: that of the column under one key, and a comment for DESCRIBE."""
    held: dict[str, Any] = {METADATA_KEY: _held_by_spark(dict(metadata))}
    attributes = metadata.get("attributes") or {}
    words = [
        attributes.get("long_name") or attributes.get("standard_name"),
        attributes.get("units"),
    ]
    string = [word for word in words if isinstance(word, str) and word]
    if string:
        held["comment"] = f"{string[0]} [{string[1]}]" if len(string) == 2 else string[0]
    return held


def with_base(schema: StructType, base: Mapping[str, str] | None) -> StructType:
    """Return the schema of a table with the base of its rows in the metadata of each column."""
    for field in schema.fields if base else ():
        field.metadata[METADATA_KEY] |= {BASE_KEY: dict(base or {})}
    return schema


def column_metadata(field: StructField) -> dict[str, Any]:
    """Return the column metadata of a field read from a repository; empty for other fields."""
    held = (field.metadata or {}).get(METADATA_KEY)
    return dict(_as_given(held)) if isinstance(held, dict) else {}


def result_field(field: StructField, role: ResultRole, **described: Any) -> StructField:
    """Return a field of a result of `sample` or `zonal` with its role in a dataset."""
    attributes = described.get("attributes") or {}
    own = {key: value for key, value in attributes.items() if key not in _OF_THE_GRID}
    held = _held_by_spark({"role": role, **described, "attributes": own})
    metadata = {**(field.metadata or {}), RESULT_KEY: held}
    return StructField(field.name, field.dataType, field.nullable, metadata)


def result_metadata(field: StructField) -> dict[str, Any]:
    """Return the role of a field of such a result, and what describes it; empty for others."""
    held = (field.metadata or {}).get(RESULT_KEY)
    return dict(_as_given(held)) if isinstance(held, dict) else {}


def _held_by_spark(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _held_by_spark(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        plain = [item for item in value if _is_plain(item)]
        alike = len({type(item) for item in plain}) <= 1
        if len(plain) == len(value) and alike:
            return list(value)
        if value and all(isinstance(item, dict) for item in value):
            return [_held_by_spark(item) for item in value]
        return {_AS_JSON_STRING: json.dumps(value)}
    if value is None or _is_plain(value):
        return value
    return {_AS_JSON_STRING: json.dumps(value)}


def _is_plain(value: Any) -> bool:
    """Return True if the JVM keeps the value: strings, booleans, 64-bit integers, floats."""
    if isinstance(value, str | bool):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and value - value == 0.0


def _as_given(held: Any) -> Any:
    if isinstance(held, dict):
        if set(held) == {_AS_JSON_STRING}:
            return json.loads(held[_AS_JSON_STRING])
        return {key: _as_given(item) for key, item in held.items()}
    if isinstance(held, list):
        return [_as_given(item) for item in held]
    return held
