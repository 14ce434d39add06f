"""Converts the result of a function for a block to Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.blocks import Block, StoredArray


def rows_of_block(
    function: Any,
    block: Block,
    arrays: Mapping[str, StoredArray],
    attributes: Mapping[str, Any],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block."""
    returned = function.call(block, arrays, attributes)
    if returned is None:
        return
    if isinstance(returned, pd.DataFrame):
        given = list(returned.items())
    elif isinstance(returned, pa.Table | pa.RecordBatch):
        given = list(zip(returned.schema.names, returned.columns, strict=True))
    else:
        raise InvalidInputError(
            f"the function returned a {type(returned).__name__} for block"
            f" {function.label(block, arrays)}; return a pandas DataFrame or an Arrow table",
            found=type(returned).__name__,
        )
    names = [str(name) for name, _ in given]
    if sorted(names) != sorted(schema.names):
        raise InvalidInputError(
            f"the rows of block {function.label(block, arrays)} have the columns {names}, but"
            f" schema has {schema.names}: return the columns of schema, or change schema",
            columns=tuple(names),
        )
    fitted = []
    for field in schema:
        values = given[names.index(field.name)][1]
        try:
            fitted += pa.table({field.name: values}).cast(pa.schema([field])).columns
        except (pa.ArrowException, ValueError) as error:
            found = str(getattr(values, "dtype", None) or values.type)
            raise InvalidInputError(
                f"column {field.name!r} of the rows of block {function.label(block, arrays)} has"
                f" type {found}, but schema has {field.type}{'' if field.nullable else ' not null'}"
                f" ({error.args[0]}): return values of this type, or change schema",
                column=field.name,
                found=found,
            ) from error
    yield from pa.Table.from_arrays(fitted, schema=schema).to_batches()
