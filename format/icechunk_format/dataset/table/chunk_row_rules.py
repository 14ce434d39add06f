"""Checks which arrays can be read as rows of chunks, and names their data types."""

from __future__ import annotations

import json
import math

from icechunk_format.arrays.data_types import DataType
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.errors import UnsupportedError

# Spark and Arrow's plain binary hold at most this many bytes in one value.
_MOST_VALUE_BYTES = 2**31 - 1


def check_chunk_rows(variable: Variable, *, decoded: bool) -> None:
    """Refuse an array whose chunks have no form as bytes.

    Raises
    ------
    UnsupportedError
        Its elements have no fixed size, or a chunk is too large for one value.
    """
    data_type, codecs = variable.metadata.data_type, variable.codecs
    if not decoded:
        return
    if data_type.numpy.hasobject:
        raise UnsupportedError(
            f"array {variable.path} holds {data_type.name} values, which have no fixed size; read "
            "its stored chunks with decoded=false, or its values with layout=cells",
            array=variable.path,
            data_type=data_type.name,
        )
    grid = variable.metadata.grid
    shape = codecs.sharding.inner_shape if codecs.sharding is not None else grid.chunk_shape
    nbytes = math.prod(shape or ()) * data_type.numpy.itemsize
    if nbytes > _MOST_VALUE_BYTES:
        raise UnsupportedError(
            f"a chunk of array {variable.path} has {nbytes} bytes decoded, and a value in Spark "
            f"at most {_MOST_VALUE_BYTES}; read it with layout=cells",
            array=variable.path,
            nbytes=nbytes,
        )


def data_type_text(data_type: DataType) -> str:
    """Return the column ``dtype``: what ``numpy.dtype`` takes, where it can say it in a word."""
    dtype = data_type.numpy
    if dtype.hasobject:
        return data_type.name
    if dtype.names is not None:
        return json.dumps(data_type.to_json())
    return dtype.newbyteorder("<").str
