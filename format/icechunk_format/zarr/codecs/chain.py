"""Encodes chunks into stored bytes, and decodes them, with the codecs of an array.

A chain has array codecs, then exactly one array-to-bytes codec, then byte codecs. It is checked and
built once; decoding a chunk then costs a few calls.

Rules of this file
------------------
1. ``decode`` returns a C-contiguous array in native byte order, of exactly the requested shape,
   which may be read-only. Damaged bytes raise ``FormatError``.
2. Every step has a limit on its decoded bytes, computed from the shape and the preceding codecs;
   for elements of variable length it is ``MAX_VARIABLE_NBYTES``.
3. Threads can share a chain. A chain is pickled as its JSON.

Spec: Zarr v3 core, "Codecs".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.grid.axes import ChunkAxis, RegularAxis
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.build import LITTLE_ENDIAN, build_chain
from icechunk_format.zarr.codecs.sharding import MISSING, Sharding
from icechunk_format.zarr.codecs.steps import (
    Array,
    ArrayCodec,
    Buffer,
    ByteCodec,
    CodecSpec,
    ConfigurationError,
    Shape,
    check_size,
)
from icechunk_format.zarr.data_types import DataType, parse_data_type
from icechunk_format.zarr.fill_values import check_array_size
from icechunk_format.zarr.named_configuration import INT64_MAX, Member, shortened

MAX_VARIABLE_NBYTES: Final = 2**30
"""Limit on the decompressed bytes of a chunk of variable-length elements."""

_MAX_SHARDING_DEPTH: Final = 4
_MAX_PLANS: Final = 64


class _Plan(NamedTuple):
    """The steps of decoding a chunk of one shape, each with its decoded size."""

    byte_steps: list[tuple[ByteCodec, int, bool]]
    stored_shape: Shape
    array_steps: list[tuple[ArrayCodec, Shape]]


class ChunkCodecs:
    """The codecs of an array's chunks.

    Raises FormatError if their order or parameters are invalid, and UnsupportedError, which names
    the package to install, if a codec is not available.

    ``codecs_json`` is the ``codecs`` member of a ``zarr.json``.

    ``sharding`` is set if ``sharding_indexed`` is the only codec: inner chunks can then be fetched
    as ranges.
    """

    def __init__(
        self,
        codecs_json: Sequence[Any],
        data_type: DataType,
        fill_value: Any,
        *,
        ndim: int,
        node_path: str = "/",
        _depth: int = 0,
        _field: str = "codecs",
    ) -> None:
        self.codecs_json = list(codecs_json)
        self.data_type = data_type
        self.fill_value = fill_value
        self.ndim = ndim
        self.node_path = node_path
        self._plans: dict[Shape, _Plan] = {}
        self._depth = _depth
        chain = build_chain(
            self.codecs_json,
            data_type,
            fill_value,
            ndim=ndim,
            where=Member(node_path, _field),
            make_sharding=self._make_sharding,
        )
        self._array_codecs, self._elements, self._byte_codecs = chain
        alone = not self._array_codecs and not self._byte_codecs
        self.sharding: Sharding | None = (
            self._elements if alone and isinstance(self._elements, Sharding) else None
        )

    @property
    def is_fixed_size(self) -> bool:
        """True if the stored size depends only on the shape, since no codec compresses."""
        return self._elements.is_fixed_size and all(c.is_fixed_size for c in self._byte_codecs)

    @property
    def can_encode(self) -> bool:
        """True if chunks can be written; some codecs only decode, such as GRIB."""
        inner = self._elements.inner if isinstance(self._elements, Sharding) else self._elements
        return bool(getattr(inner, "can_encode", True))

    def chunk_axes(self, grid: ChunkGrid) -> tuple[ChunkAxis, ...]:
        """Return the axes of an array's chunks, or of its inner chunks if it is sharded.

        Every shard has a whole number of inner chunks, so the edges of inner chunks are multiples
        of their shape for any grid of shards.
        """
        if self.sharding is None:
            return grid.axes
        return tuple(map(RegularAxis, grid.shape, self.sharding.inner_shape))

    def decode(self, data: Buffer, shape: Sequence[int], *, what: str = "<bytes>") -> Array:
        """Return the chunk as an array in C order and native byte order, which may be read-only.

        ``shape`` is the stored shape (``ChunkGrid.full_chunk_shape``), and ``what`` names the
        object in messages. Raises FormatError (``file_type`` ``"chunk"``) if the bytes are not a
        chunk of this shape, and UnsupportedError if the chunk is too large.
        """
        key = shape if isinstance(shape, tuple) else tuple(shape)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(key)
        step: Any = self._elements
        try:
            for step, limit, exact in plan.byte_steps:
                data = step.decode(data, limit, exact)
                check_size(len(data), limit, exact)
            step = self._elements
            array: Array = step.decode(data, plan.stored_shape)
            for step, decoded_shape in plan.array_steps:
                array = step.decode(array, decoded_shape)
        except (UnsupportedError, MemoryError):
            raise
        except Exception as error:
            raise _chunk_error(error, step.name, what) from error
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        return array

    def encode(self, array: Array) -> bytes:
        """Return the stored bytes of a whole chunk, or raise InvalidInputError.

        Shards omit inner chunks of fill values. The caller decides whether a whole chunk of fill
        values is stored: see ``fill_values.is_all_fill``.
        """
        current = self._checked_input(array)
        step: Any = self._elements
        try:
            for step in self._array_codecs:
                current = step.encode(current)
            step = self._elements
            if not current.flags.c_contiguous:
                current = current.copy(order="C")
            data: Buffer = step.encode(current)
            for step in self._byte_codecs:
                data = step.encode(data)
        except (InvalidInputError, UnsupportedError, MemoryError):
            raise
        except Exception as error:
            raise InvalidInputError(
                f"codec {step.name!r} of array {self.node_path!r} cannot store the values: {error}",
                node_path=self.node_path,
                codec=step.name,
            ) from error
        return data if isinstance(data, bytes) else bytes(data)

    def encoded_bound(self, shape: Shape) -> int | None:
        """Return the largest stored size in bytes, exact if ``is_fixed_size``; ``None`` if open."""
        for array_codec in self._array_codecs:
            shape = array_codec.encoded_shape(shape)
        nbytes = self._elements.encoded_bound(shape)
        for byte_codec in self._byte_codecs:
            if nbytes is None:
                return None
            nbytes = byte_codec.encoded_bound(nbytes)
        return nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(ChunkCodecs, ndim=self.ndim, node_path=self.node_path)
        return make, (self.codecs_json, self.data_type, self.fill_value)

    def __repr__(self) -> str:
        steps: list[Any] = [*self._array_codecs, self._elements, *self._byte_codecs]
        return f"ChunkCodecs({' | '.join(step.name for step in steps)}: {self.data_type.name})"

    def _make_plan(self, shape: Shape) -> _Plan:
        if len(shape) != self.ndim or any(n < 0 for n in shape):
            raise InvalidInputError(
                f"chunks of array {self.node_path!r} have {self.ndim} dimensions, found shape "
                f"{shortened(shape)}",
                node_path=self.node_path,
            )
        check_array_size(self.data_type, shape)
        array_steps: list[tuple[ArrayCodec, Shape]] = []
        stored_shape = shape
        for codec in self._array_codecs:
            array_steps.append((codec, stored_shape))
            stored_shape = codec.encoded_shape(stored_shape)
        byte_steps: list[tuple[ByteCodec, int, bool]] = []
        limit = self._elements.encoded_bound(stored_shape)
        exact = self._elements.is_fixed_size and limit is not None
        for byte_codec in self._byte_codecs:
            byte_steps.append((byte_codec, MAX_VARIABLE_NBYTES if limit is None else limit, exact))
            limit = None if limit is None else byte_codec.encoded_bound(limit)
            exact = exact and byte_codec.is_fixed_size
        plan = _Plan(byte_steps[::-1], stored_shape, array_steps[::-1])
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[shape] = plan
        return plan

    def _checked_input(self, array: Array) -> Array:
        wanted = self.data_type.numpy
        given = np.asarray(array)
        if given.ndim != self.ndim:
            raise InvalidInputError(
                f"chunks of array {self.node_path!r} have {self.ndim} dimensions, found "
                f"{given.ndim}",
                node_path=self.node_path,
            )
        if given.dtype == wanted:
            return given
        # NumPy's string types are not stored types, so they are cast.
        kinds = {"string": "UT", "bytes": "S"}.get(self.data_type.kind, "")
        if given.dtype.kind in kinds:
            if given.dtype.kind == "T" or np.can_cast(given.dtype, wanted, "safe"):
                return given.astype(wanted)
        elif given.dtype.kind != "T" and given.dtype.newbyteorder("=") == wanted:
            return given.astype(wanted)
        raise InvalidInputError(
            f"chunks of array {self.node_path!r} hold {wanted}, found {given.dtype}; cast the "
            f"values first",
            node_path=self.node_path,
        )

    def _make_sharding(self, spec: CodecSpec) -> Sharding:
        configuration, ndim = spec.configuration, spec.ndim
        if self._depth >= _MAX_SHARDING_DEPTH:
            raise ConfigurationError(f"shards are nested more than {_MAX_SHARDING_DEPTH} deep")
        sizes = configuration.get("chunk_shape")
        if not isinstance(sizes, list) or not all(
            isinstance(n, int) and 1 <= n <= INT64_MAX for n in sizes
        ):
            raise ConfigurationError(
                f"chunk_shape must be a list of positive integers, found {shortened(sizes)}"
            )
        if len(sizes) != ndim:
            raise ConfigurationError(
                f"chunk_shape has {len(sizes)} dimensions, and the shard has {ndim}"
            )
        location = configuration.get("index_location", "end")
        if location not in ("start", "end"):
            raise ConfigurationError(
                f"index_location must be 'start' or 'end', found {shortened(location)}"
            )
        chains: list[list[Any]] = []
        for key, default in (
            ("codecs", [LITTLE_ENDIAN]),
            ("index_codecs", [LITTLE_ENDIAN, {"name": "crc32c"}]),
        ):
            chain = configuration.get(key, default)
            if not isinstance(chain, list):
                raise ConfigurationError(f"{key} must be a list, found {shortened(chain)}")
            chains.append(chain)
        inner = ChunkCodecs(
            chains[0],
            spec.data_type,
            spec.fill_value,
            ndim=ndim,
            node_path=self.node_path,
            _depth=self._depth + 1,
            _field=f"{spec.where.field}.configuration.codecs",
        )
        index_codecs = ChunkCodecs(
            chains[1],
            parse_data_type("uint64"),
            np.uint64(MISSING),
            ndim=ndim + 1,
            node_path=self.node_path,
            _depth=_MAX_SHARDING_DEPTH,
            _field=f"{spec.where.field}.configuration.index_codecs",
        )
        if not index_codecs.is_fixed_size:
            raise ConfigurationError(
                "index_codecs must have a fixed size, so that the index can be found: they cannot "
                "compress"
            )
        return Sharding(
            inner_shape=tuple(int(n) for n in sizes),
            inner=inner,
            index_codecs=index_codecs,
            index_location=location,
        )


def _chunk_error(error: Exception, codec: str, what: str) -> FormatError:
    if isinstance(error, FormatError):
        # The error of an inner chunk lacks the key of the shard.
        problem, field = error.facts["problem"], error.facts["field"]
        return FormatError(problem, object_key=what, file_type="chunk", field=field)
    problem = str(error) or type(error).__name__
    problem = f"codec {codec!r} cannot decode it: {problem}"
    return FormatError(problem, object_key=what, file_type="chunk", codec=codec)
