"""Converts the result of a function for a block to Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
    if isinstance(returned, pa.RecordBatch):
        returned = pa.Table.from_batches([returned])
    elif not isinstance(returned, pa.Table):
        if not (hasattr(returned, "columns") and hasattr(returned, "dtypes")):
            raise InvalidInputError(
                f"the function returned a {type(returned).__name__} for block"
                f" {function.label(block, arrays)}; return a pandas DataFrame or an Arrow table",
                found=type(returned).__name__,
            )
        returned = pa.Table.from_pandas(returned, preserve_index=False)
    if missing := set(schema.names) - set(returned.column_names):
        raise InvalidInputError(
            f"the rows of block {function.label(block, arrays)} have the columns"
            f" {', '.join(returned.column_names)}; the schema also has"
            f" {', '.join(sorted(missing))}: return these columns, or remove them from schema",
            columns=tuple(sorted(missing)),
        )
    yield from returned.select(schema.names).cast(schema).to_batches()
