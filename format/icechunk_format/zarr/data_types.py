"""Converts Zarr data types to NumPy types and back.

Rules of this file
------------------
1. In memory every element has native byte order; the ``bytes`` codec handles the stored order.
2. Strings and byte strings of variable length are NumPy object arrays of ``str`` and ``bytes``.
3. An unknown name raises ``UnsupportedError``, since it may be valid Zarr; a known name with an
   invalid configuration raises ``FormatError``.

Spec: Zarr v3 core, "Data types", and the registered extensions ``numpy.datetime64``,
``numpy.timedelta64``, ``fixed_length_utf32``, ``null_terminated_bytes``, ``raw_bytes``, ``struct``,
``string`` and ``variable_length_bytes``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.zarr.named_configuration import (
    Member,
    NamedConfiguration,
    is_integer,
    parse_named_configuration,
    shortened,
)

DataTypeKind = Literal[
    "bool", "int", "uint", "float", "complex", "datetime", "timedelta", "string", "bytes", "struct"
]

_KIND_BY_NUMPY: Final[dict[str, DataTypeKind]] = {
    "b": "bool",
    "i": "int",
    "u": "uint",
    "f": "float",
    "c": "complex",
    "M": "datetime",
    "m": "timedelta",
    "U": "string",
    "S": "bytes",
    "V": "bytes",
}
# The Zarr names of the NumPy kinds with parameters; others have NumPy's name.
_NAME_BY_NUMPY: Final = {
    "M": "numpy.datetime64",
    "m": "numpy.timedelta64",
    "U": "fixed_length_utf32",
    "S": "null_terminated_bytes",
    "V": "raw_bytes",
}
_NUMPY_BY_NAME: Final = {name: kind for kind, name in _NAME_BY_NUMPY.items()}

_NUMBER_NAMES: Final = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

# Registered aliases of data types.
_ALIASES: Final = {"complex_float32": "complex64", "complex_float64": "complex128"}

_TIME_UNITS: Final = (
    "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic",
)  # fmt: skip

# NumPy stores the multiplier of a time unit in a C int.
_MAX_SCALE_FACTOR: Final = 2**31 - 1

# Far larger than any real element, and far smaller than the largest chunk.
_MAX_ELEMENT_NBYTES: Final = 2**27

_MAX_STRUCT_DEPTH: Final = 8
_MAX_STRUCT_FIELDS: Final = 4096

_RAW_BITS = re.compile(r"r([1-9][0-9]{0,9})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """The type of an array's elements."""

    name: str
    """The Zarr name, for example ``"float32"``, ``"numpy.datetime64"`` or ``"struct"``."""
    numpy: np.dtype[Any]
    """The type in memory, in native byte order; ``object`` for variable lengths."""
    kind: DataTypeKind
    """The kind of values, without their width."""
    unit: str | None = None
    """For times only: a NumPy unit (``"s"``, ``"ns"``, ``"generic"``, ...)."""
    scale_factor: int = 1
    """For times only: units per step."""
    fields: tuple[tuple[str, DataType], ...] = ()
    """For ``struct`` only: names and types of the fields, in storage order, packed."""

    @property
    def is_variable_length(self) -> bool:
        """True if elements have no fixed size: ``string`` and ``variable_length_bytes``."""
        return self.numpy.kind == "O"

    @property
    def itemsize(self) -> int:
        """Stored bytes per element; 0 for variable lengths."""
        return 0 if self.is_variable_length else self.numpy.itemsize

    @property
    def item_bytes(self) -> int:
        """Bytes of an element in memory; an estimate for variable lengths."""
        return 64 if self.is_variable_length else max(1, self.numpy.itemsize)

    @property
    def has_byte_order(self) -> bool:
        """True if the stored bytes of an element depend on the byte order."""
        if self.fields:
            return any(field.has_byte_order for _, field in self.fields)
        return self.numpy.kind in "iufcMmU" and self.numpy.itemsize > 1

    def to_json(self) -> str | dict[str, Any]:
        """Return the ``data_type`` member of a ``zarr.json``."""
        configuration: dict[str, Any]
        if self.kind in ("datetime", "timedelta"):
            configuration = {"unit": self.unit, "scale_factor": self.scale_factor}
        elif self.fields:
            fields = [{"name": n, "data_type": field.to_json()} for n, field in self.fields]
            configuration = {"fields": fields}
        elif self.numpy.kind in "USV":
            configuration = {"length_bytes": self.numpy.itemsize}
        else:
            return self.name
        return {"name": self.name, "configuration": configuration}


def parse_data_type(value: object, *, node_path: str = "/", field: str = "data_type") -> DataType:
    """Read the ``data_type`` member of a ``zarr.json``; raise UnsupportedError if unknown."""
    return _parse(value, Member(node_path, field))


def data_type_from_numpy(dtype: np.dtype[Any] | str) -> DataType:
    """Return the Zarr data type for a NumPy one, or raise InvalidInputError.

    ``"string"`` and ``"bytes"`` are the types of variable length, since NumPy's ``object`` would be
    ambiguous.
    """
    if isinstance(dtype, str) and dtype in ("string", "bytes", "variable_length_bytes"):
        return parse_data_type(dtype)
    numpy_dtype = np.dtype(dtype)
    if numpy_dtype.kind == "T":
        return _STRING
    native = numpy_dtype.newbyteorder("=")
    if native.names is not None:
        return _struct_from_numpy(native)
    if native.subdtype is None and native.itemsize > 0:
        if native.kind in "Mm":
            return _plain(native, *np.datetime_data(native))
        if native.kind in _NAME_BY_NUMPY or native.name in _NUMBER_NAMES:
            return _plain(native)
    raise InvalidInputError(
        f"NumPy type {shortened(numpy_dtype)} has no Zarr data type; allowed are "
        f"{', '.join(_NUMBER_NAMES)}, datetime64, timedelta64, fixed-length strings and bytes, "
        f"packed structured types, and the names 'string' and 'bytes'",
        dtype=str(numpy_dtype),
    )


def _plain(dtype: np.dtype[Any], unit: str | None = None, scale_factor: int = 1) -> DataType:
    return DataType(
        name=_NAME_BY_NUMPY.get(dtype.kind, dtype.name),
        numpy=dtype,
        kind=_KIND_BY_NUMPY[dtype.kind],
        unit=unit,
        scale_factor=scale_factor,
    )


_NUMBERS: Final = {name: _plain(np.dtype(name)) for name in _NUMBER_NAMES}
_STRING: Final = DataType(name="string", numpy=np.dtype(object), kind="string")
_BYTES: Final = DataType(name="variable_length_bytes", numpy=np.dtype(object), kind="bytes")


def _struct_from_numpy(dtype: np.dtype[Any]) -> DataType:
    assert dtype.names is not None
    assert dtype.fields is not None
    fields: list[tuple[str, DataType]] = []
    for name in dtype.names:
        field_dtype, _, *title = dtype.fields[name]
        if title or field_dtype.subdtype is not None:
            raise InvalidInputError(
                f"field {name!r} of a structured type has a title or is an array, which the Zarr "
                f"data type 'struct' cannot hold; use plain fields",
                field=name,
            )
        fields.append((name, data_type_from_numpy(field_dtype)))
    return _struct(tuple(fields))


def _struct(fields: tuple[tuple[str, DataType], ...]) -> DataType:
    packed = np.dtype([(name, field.numpy) for name, field in fields])
    return DataType(name="struct", numpy=packed, kind="struct", fields=fields)


def _parse(value: object, where: Member, depth: int = 0) -> DataType:
    named = parse_named_configuration(value, where)
    name = _ALIASES.get(named.name, named.name)
    number = _NUMBERS.get(name)
    if number is not None:
        return number
    if name == "string":
        return _STRING
    if name in ("variable_length_bytes", "bytes"):
        return _BYTES
    if name in _NUMPY_BY_NAME:
        code = _NUMPY_BY_NAME[name]
        parse = _parse_time if code in "Mm" else _parse_fixed_length
        return parse(named, code, where)
    if name in ("struct", "structured"):
        return _parse_struct(named, where, depth)
    raw = _RAW_BITS.fullmatch(name)
    if raw is not None:
        return _parse_raw_bits(name, int(raw[1]), where)
    raise UnsupportedError(
        f"array {where.node_path!r} has data type {shortened(named.name)}, which is not supported; "
        f"supported are {', '.join(_NUMBER_NAMES)}, numpy.datetime64, numpy.timedelta64, string, "
        f"variable_length_bytes, fixed_length_utf32, null_terminated_bytes, raw_bytes, r<bits> "
        f"and struct",
        node_path=where.node_path,
        data_type=named.name[:200],
    )


def _parse_time(named: NamedConfiguration, code: str, where: Member) -> DataType:
    unit = named.configuration.get("unit", "generic")
    if unit == "μs":
        unit = "us"
    if unit not in _TIME_UNITS:
        raise where.at(".configuration.unit").error(
            f"unit {shortened(unit)} is not one of {', '.join(_TIME_UNITS)}"
        )
    scale_factor = named.configuration.get("scale_factor", 1)
    if not is_integer(scale_factor) or not 1 <= scale_factor <= _MAX_SCALE_FACTOR:
        raise where.at(".configuration.scale_factor").error(
            f"the scale factor must be an integer from 1 to {_MAX_SCALE_FACTOR}, found "
            f"{shortened(scale_factor)}"
        )
    # NumPy times without a unit have no multiples, so only the data type keeps the factor.
    spelled = f"{code}8" if unit == "generic" else f"{code}8[{scale_factor}{unit}]"
    return _plain(np.dtype(spelled), str(unit), scale_factor)


def _parse_fixed_length(named: NamedConfiguration, code: str, where: Member) -> DataType:
    length: Any = named.configuration.get("length_bytes")
    step = 4 if code == "U" else 1
    if not is_integer(length) or not 1 <= length <= _MAX_ELEMENT_NBYTES or length % step:
        raise where.at(".configuration.length_bytes").error(
            f"{named.name} needs length_bytes, a multiple of {step} from {step} to "
            f"{_MAX_ELEMENT_NBYTES}; found {shortened(length)}"
        )
    return _plain(np.dtype(f"{code}{length // step}"))


def _parse_raw_bits(name: str, bits: int, where: Member) -> DataType:
    if bits % 8 or bits // 8 > _MAX_ELEMENT_NBYTES:
        raise where.error(
            f"raw type {name!r} must have a multiple of 8 bits, at most {8 * _MAX_ELEMENT_NBYTES}"
        )
    return _plain(np.dtype(f"V{bits // 8}"))


def _parse_struct(named: NamedConfiguration, where: Member, depth: int) -> DataType:
    listed = named.configuration.get("fields")
    listed_at = where.at(".configuration.fields")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MAX_STRUCT_FIELDS:
        raise listed_at.error(
            f"a struct needs a list of 1 to {_MAX_STRUCT_FIELDS} fields, found {shortened(listed)}"
        )
    if depth >= _MAX_STRUCT_DEPTH:
        raise listed_at.error(f"structs are nested more than {_MAX_STRUCT_DEPTH} deep")
    fields: list[tuple[str, DataType]] = []
    for i, entry in enumerate(listed):
        if isinstance(entry, dict):
            name, of = entry.get("name"), entry.get("data_type")
        elif isinstance(entry, list) and len(entry) == 2:
            name, of = entry
        else:
            name, of = None, None
        if not isinstance(name, str) or not name:
            raise listed_at.at(f"[{i}]").error(
                f"a field needs a name and a data type, found {shortened(entry)}"
            )
        if any(name == known for known, _ in fields):
            raise listed_at.at(f"[{i}]").error(f"two fields are named {shortened(name)}")
        inner = _parse(of, listed_at.at(f"[{i}]"), depth + 1)
        if inner.is_variable_length:
            raise UnsupportedError(
                f"array {where.node_path!r} has a struct whose field {shortened(name)} has the "
                f"type {inner.name} of variable length; only fields of fixed size are read",
                node_path=where.node_path,
                data_type=inner.name,
            )
        fields.append((name, inner))
    if sum(inner.itemsize for _, inner in fields) > _MAX_ELEMENT_NBYTES:
        raise listed_at.error(f"a struct element is larger than {_MAX_ELEMENT_NBYTES} bytes")
    return _struct(tuple(fields))
