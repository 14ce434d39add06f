"""Decodes GRIB2 messages of virtual weather archives: the read-only ``gribberish`` codec.

The library does not check the sizes in a message, so the number of points is first compared with
the chunk's.

Format: WMO FM 92 GRIB edition 2, sections 0 and 3; the parameters are those of gribberish's own
codec for zarr-python.
"""

from __future__ import annotations

import math
from typing import Any, Final

from icechunk_format.zarr.codecs.steps import (
    Array,
    Buffer,
    ConfigurationError,
    Shape,
    as_elements,
)
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.named_configuration import shortened

MAX_POINTS: Final = 2**28
"""Limit on the points of a message; the largest global grids have about 2**25."""

# Latitude/longitude, Mercator, polar stereographic, Lambert and Gaussian grids.
_TEMPLATES_OF_ROWS: Final = frozenset({0, 1, 10, 20, 30, 40})


class Grib:
    """The ``gribberish`` codec; it cannot encode."""

    name = "gribberish"
    is_fixed_size = False
    can_encode = False

    def __init__(self, configuration: dict[str, Any], data_type: DataType, gribberish: Any) -> None:
        self._var = configuration.get("var")
        if not isinstance(self._var, str | None):
            raise ConfigurationError(f"var must be a name, found {shortened(self._var)}")
        options = tuple(
            bool(configuration.get(key, False)) for key in ("adjust_longitude_range", "north_up")
        )
        # Options are passed only if set, since older versions of the library lack them.
        self._options = options if any(options) else ()
        self._dtype = data_type.numpy
        self._library = gribberish

    def decode(self, data: Buffer, shape: Shape) -> Array:
        message = bytes(data)
        is_coordinate = self._var in ("latitude", "longitude")
        points = _number_of_points(message)
        if points > MAX_POINTS or (not is_coordinate and points != math.prod(shape)):
            raise ValueError(f"the message has {points} points, expected {math.prod(shape)}")
        try:
            result = self._parse(message, is_coordinate)
        except BaseException as error:
            # Damaged messages can make the library panic, which is not an ``Exception``.
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"the library failed: {error}") from error
        return as_elements(result, shape, self._dtype)

    def _parse(self, message: bytes, is_coordinate: bool) -> Any:
        if is_coordinate:
            metadata = self._library.parse_grib_message_metadata(message, 0)
            return metadata.latlng(*self._options)[0 if self._var == "latitude" else 1]
        return self._library.parse_grib_array(message, 0, *self._options)

    def encode(self, array: Array) -> Buffer:
        raise TypeError("GRIB messages are read only; choose other codecs to write")

    def encoded_bound(self, shape: Shape) -> int | None:
        return None


def _number_of_points(message: bytes) -> int:
    """Return the number of points in the grid of a message, from its section 3."""
    start = message.find(b"GRIB")
    if start < 0 or len(message) < start + 16:
        raise ValueError("it is not a GRIB message")
    if message[start + 7] != 2:
        raise ValueError(f"it is a GRIB message of edition {message[start + 7]}, expected 2")
    at = start + 16
    while at + 10 <= len(message):
        length, section = int.from_bytes(message[at : at + 4], "big"), message[at + 4]
        if length < 5 or at + length > len(message):
            break
        if section == 3:
            points = int.from_bytes(message[at + 6 : at + 10], "big")
            template = int.from_bytes(message[at + 12 : at + 14], "big")
            columns = int.from_bytes(message[at + 30 : at + 34], "big")
            rows = int.from_bytes(message[at + 34 : at + 38], "big")
            if template in _TEMPLATES_OF_ROWS and columns * rows != points:
                raise ValueError(
                    f"the grid has {rows} rows of {columns} points, but {points} points in total"
                )
            return points
        at += length
    raise ValueError("the message has no grid definition, or its sections exceed it")
