"""Implements the ``cast_value`` codec, which stores numbers as another numeric type.

Elements listed in ``scalar_map`` are replaced by its values. All others are rounded to the target
type in the configured direction; results out of range are clamped, wrapped or refused.

Rules of this file
------------------
1. Rounding is correct for every pair of types, including 64-bit integers to floats.
2. Integers have no NaN and no infinity: such elements need an entry in ``scalar_map``.
3. Clamping to a float gives infinity, as in the reference implementation.

Spec: the registered codec ``cast_value``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from icechunk_format.errors import FormatError
from icechunk_format.zarr.codecs.steps import (
    Array,
    ArrayCodec,
    CodecSpec,
    ConfigurationError,
    Shape,
)
from icechunk_format.zarr.data_types import DataType, parse_data_type
from icechunk_format.zarr.fill_values import decode_fill_value
from icechunk_format.zarr.named_configuration import shortened

_ROUNDINGS: Final = (
    "nearest-even",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "nearest-away",
)


class CastValue(ArrayCodec):
    """A cast between two numeric types, in both directions."""

    name = "cast_value"

    def __init__(self, spec: CodecSpec) -> None:
        configuration, data_type = spec.configuration, spec.data_type
        field = "codecs.cast_value.data_type"
        self.encoded = parse_data_type(
            configuration.get("data_type"), node_path=spec.where.node_path, field=field
        )
        for of in (data_type, self.encoded):
            if of.kind not in ("int", "uint", "float"):
                raise ConfigurationError(f"it casts integers and floats, not {of.name}")
        self._rounding = configuration.get("rounding", "nearest-even")
        if self._rounding not in _ROUNDINGS:
            raise ConfigurationError(
                f"rounding must be one of {', '.join(_ROUNDINGS)}, found "
                f"{shortened(self._rounding)}"
            )
        self._out_of_range = configuration.get("out_of_range")
        if self._out_of_range not in (None, "error", "clamp", "wrap"):
            raise ConfigurationError(
                f"out_of_range must be 'clamp' or 'wrap', found {shortened(self._out_of_range)}"
            )
        if self._out_of_range == "wrap" and self.encoded.kind == "float":
            raise ConfigurationError(
                f"out_of_range 'wrap' is only for integers, but data_type is {self.encoded.name}"
            )
        maps = configuration.get("scalar_map")
        maps = {} if maps is None else maps
        if not isinstance(maps, dict):
            raise ConfigurationError(f"scalar_map must be an object, found {shortened(maps)}")
        self._decoded = data_type
        self._encode_map = _parse_map(maps.get("encode"), data_type, self.encoded)
        self._decode_map = _parse_map(maps.get("decode"), self.encoded, data_type)

    def decode(self, array: Array, shape: Shape) -> Array:
        return self._cast(array, self._decoded.numpy, self._decode_map)

    def encode(self, array: Array) -> Array:
        return self._cast(array, self.encoded.numpy, self._encode_map)

    def encoded_fill(self, fill_value: Any) -> Any:
        return self.encode(np.asarray(fill_value, dtype=self._decoded.numpy).reshape(1))[0]

    def _cast(self, array: Array, target: np.dtype[Any], mapping: list[tuple[Any, Any]]) -> Array:
        if not mapping and _is_exact(array.dtype, target):
            return array.astype(target, copy=False)
        if not mapping:
            return self._cast_unmapped(array, target)
        mapped = np.zeros(array.shape, dtype=bool)
        out = np.empty(array.shape, dtype=target)
        for key, value in mapping:
            hits = np.isnan(array) if key != key else array == key
            hits &= ~mapped
            out[hits] = value
            mapped |= hits
        rest = ~mapped
        out[rest] = self._cast_unmapped(array[rest], target)
        return out

    def _cast_unmapped(self, array: Array, target: np.dtype[Any]) -> Array:
        with np.errstate(all="ignore"):
            if target.kind == "f":
                return self._to_float(array, target)
            if array.dtype.kind == "f":
                return self._float_to_integer(array, target)
            return self._integer_to_integer(array, target)

    def _integer_to_integer(self, array: Array, target: np.dtype[Any]) -> Array:
        limits = np.iinfo(target)
        if self._out_of_range == "wrap":
            return array.astype(target)
        lowest, highest = int(limits.min), int(limits.max)
        if array.size == 0 or (int(array.min()) >= lowest and int(array.max()) <= highest):
            return array.astype(target)
        self._refuse_unless_clamped(array, (array < lowest) | (array > highest), target)
        source = np.iinfo(array.dtype)
        clipped = np.clip(array, max(lowest, int(source.min)), min(highest, int(source.max)))
        return clipped.astype(target)

    def _float_to_integer(self, array: Array, target: np.dtype[Any]) -> Array:
        values = array.astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError(
                f"NaN and infinity are not values of {target.name}; map them with scalar_map"
            )
        rounded = _round(values, self._rounding)
        limits = np.iinfo(target)
        # The upper limit may not be exact in float64; one more is a power of two, which is exact.
        below, above = rounded < float(limits.min), rounded >= float(int(limits.max) + 1)
        outside = below | above
        if not outside.any():
            return rounded.astype(target)
        if self._out_of_range == "wrap":
            return _modulo_2_64(rounded).astype(target)
        self._refuse_unless_clamped(array, outside, target)
        out = np.where(outside, 0.0, rounded).astype(target)
        out[below] = limits.min
        out[above] = limits.max
        return out

    def _to_float(self, array: Array, target: np.dtype[Any]) -> Array:
        result = _round_to_float(array, target, self._rounding)
        if target.itemsize < 8:
            # From the next power of two on, no rounding direction gives a value in range.
            too_much = 2 ** int(np.finfo(target).maxexp)
            result[array >= too_much] = np.inf
            result[array <= -too_much] = -np.inf
        overflown = np.isinf(result)
        if array.dtype.kind == "f":
            overflown &= ~np.isinf(array)
        if overflown.any():
            self._refuse_unless_clamped(array, overflown, target)
        return result

    def _refuse_unless_clamped(self, array: Array, outside: Array, target: np.dtype[Any]) -> None:
        if self._out_of_range != "clamp":
            first = array[outside].flat[0]
            raise ValueError(
                f"{first!s} is out of the range of {target.name}; set out_of_range to 'clamp'"
            )


def _is_exact(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return True if ``target`` represents every value of ``source`` exactly."""
    if source.kind != "f" and target.kind == "f":
        # NumPy considers a cast of 64-bit integers to float64 safe, although it rounds.
        return int(np.iinfo(source).max) <= 1 << (int(np.finfo(target).nmant) + 1)
    return bool(np.can_cast(source, target, "safe"))


def _parse_map(entries: Any, source: DataType, target: DataType) -> list[tuple[Any, Any]]:
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > 65536:
        raise ConfigurationError(
            f"a scalar_map direction must be a list of pairs, found {shortened(entries)}"
        )
    pairs: list[tuple[Any, Any]] = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2:
            raise ConfigurationError(f"a scalar_map entry must be a pair, found {shortened(entry)}")
        try:
            key = decode_fill_value(entry[0], source)
            pairs.append((key, decode_fill_value(entry[1], target)))
        except FormatError as error:
            raise ConfigurationError(f"scalar_map entry: {error.facts['problem']}") from error
    # The last entry for a number applies, but ``_cast`` uses the first match.
    return pairs[::-1]


def _round(values: Array, rounding: str) -> Array:
    if rounding == "nearest-even":
        return np.rint(values)
    if rounding == "towards-zero":
        return np.trunc(values)
    if rounding == "towards-positive":
        return np.ceil(values)
    if rounding == "towards-negative":
        return np.floor(values)
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1.0, values), whole)


def _round_to_float(array: Array, target: np.dtype[Any], rounding: str) -> Array:
    """Round numbers to floats in a direction; numbers beyond the largest float become infinite."""
    nearest = array.astype(target)
    if rounding == "nearest-even" or array.size == 0:
        return nearest
    if array.dtype.kind == "f":
        wide = array.astype(np.float64)
        back = nearest.astype(np.float64)
        too_low, too_high = back < wide, back > wide
    else:
        too_low, too_high = _compare_integers(nearest, array)
    up = np.nextafter(nearest, target.type(np.inf))
    down = np.nextafter(nearest, target.type(-np.inf))
    if rounding == "towards-positive":
        return np.where(too_low, up, nearest)
    if rounding == "towards-negative":
        return np.where(too_high, down, nearest)
    if rounding == "towards-zero":
        lower = np.where(too_high & (array > 0), down, nearest)
        return np.where(too_low & (array < 0), up, lower)
    return _away_on_ties(array, nearest, up, down, too_low, too_high)


def _compare_integers(floats: Array, integers: Array) -> tuple[Array, Array]:
    """Return masks of the floats that are below and above the integers they were rounded from."""
    wide = floats.astype(np.float64)
    limits = np.iinfo(integers.dtype)
    beyond = wide >= float(int(limits.max) + 1)
    back = np.where(beyond, 0.0, wide).astype(integers.dtype)
    return ~beyond & (back < integers), beyond | (back > integers)


def _away_on_ties(
    array: Array, nearest: Array, up: Array, down: Array, too_low: Array, too_high: Array
) -> Array:
    """Round ties to the float that is farther from zero.

    The midpoint of two neighbouring floats needs one more bit: float64 represents it if the target
    is narrower, and 64-bit integers represent it if the source is an integer.
    """
    other = np.where(too_low, up, down)
    near = nearest.astype(np.float64)
    half = (other.astype(np.float64) - near) / 2
    candidates = (too_low | too_high) & np.isfinite(half) & (np.abs(other) > np.abs(nearest))
    near, half = np.where(candidates, near, 0.0), np.where(candidates, half, 0.0)
    if array.dtype.kind == "f":
        ties = array.astype(np.float64) == near + half
    else:
        ties = array.astype(np.uint64) - _modulo_2_64(near) == _modulo_2_64(half)
    return np.where(candidates & ties, other, nearest)


def _modulo_2_64(whole: Array) -> Array:
    """Return whole float64 numbers modulo 2**64, as uint64."""
    remainder = np.fmod(whole, 2.0**64)
    magnitude = np.abs(remainder).astype(np.uint64)
    return np.where(remainder < 0, np.uint64(0) - magnitude, magnitude)
