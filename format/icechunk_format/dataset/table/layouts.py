"""Defines the layouts of a table: their columns, and the options of each.

``reading.plan`` (planning on the driver) and ``reading.run`` (reading on executors) also have a
table with an entry for each layout; they are separate because executors import no planning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from icechunk_format.arrays.data_types import DataType

Layout = Literal["cells", "chunks", "refs", "summary"]
Fields = tuple[tuple[str, pa.DataType], ...]

CHUNKS_FIELDS: Final[Fields] = (
    ("array", pa.string()),
    ("chunk", pa.list_(pa.int64())),
    ("start", pa.list_(pa.int64())),
    ("shape", pa.list_(pa.int64())),
    ("dtype", pa.string()),
    ("data", pa.binary()),
)

REFS_FIELDS: Final[Fields] = (
    ("array", pa.string()),
    ("chunk", pa.list_(pa.int64())),
    ("kind", pa.string()),
    ("chunk_id", pa.string()),
    ("location", pa.string()),
    ("offset", pa.int64()),
    ("length", pa.int64()),
    ("etag", pa.string()),
    ("last_modified", pa.timestamp("us", tz="UTC")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """Rules by which the driver builds the table of a layout.

    Parameters
    ----------
    fields
        Columns of the layout; empty if they depend on the dimensions and variables of a group.
    options
        The options among ``coords``, ``block`` and ``decoded`` that the layout takes.
    takes_coordinates
        Whether a table without named variables also holds the coordinate arrays.
    """

    fields: Fields = ()
    options: frozenset[str] = frozenset()
    takes_coordinates: bool = False

    @property
    def has_values(self) -> bool:
        """True if rows come from cells, so that a condition may name variables."""
        return not self.fields


LAYOUTS: Final[Mapping[Layout, LayoutRules]] = {
    "cells": LayoutRules(options=frozenset({"coords"})),
    "chunks": LayoutRules(fields=CHUNKS_FIELDS, options=frozenset({"decoded"})),
    "refs": LayoutRules(fields=REFS_FIELDS, takes_coordinates=True),
    "summary": LayoutRules(options=frozenset({"coords", "block"})),
}


def data_type_name(data_type: DataType) -> str:
    """Return the column ``dtype``: an argument of ``numpy.dtype``, or the name of a Zarr type."""
    dtype = data_type.numpy
    if dtype.hasobject:
        return data_type.name
    if dtype.names is not None:
        return json.dumps(data_type.to_json())
    return dtype.newbyteorder("<").str
