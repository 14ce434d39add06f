"""Plans a write of whole chunks, or of references to chunks.

Each row has an array name and coordinates in its chunk grid, so no labels are matched. The arrays
exist, or the option ``encoding`` describes them.

Rules of this file
------------------
1. One task writes all rows of an outer chunk (a shard, if the array has shards) and of a *unit*: a
   box of chunks whose references are one manifest.
2. Spark numbers units by arithmetic on chunk coordinates, with ``WritePlan.array_table``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.cover import sides_from_last
from icechunk_format.groups import Variable
from icechunk_format.tables.writing.columns.checks import bad_encoding, check_case
from icechunk_format.tables.writing.columns.new_arrays import (
    codecs_of,
    declared_missing,
    default_chunks,
    described_attributes,
    encoded_fill,
    named_type,
    sizes_of,
)
from icechunk_format.tables.writing.part import BLOCK, UNIT, WritePart, WriteTarget
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.prepare import PreparedWrite
from icechunk_format.zarr.fill_values import default_fill_value
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import ArrayMetadata

_REFS_PER_UNIT: Final = 200_000
_BYTES_PER_UNIT: Final = 2**28

_TABLE_FIELDS: Final = pa.schema(
    [
        ("array", pa.string()),
        ("base", pa.int64()),
        ("per_block", pa.list_(pa.int64())),
        ("blocks_per_unit", pa.list_(pa.int64())),
        ("unit_strides", pa.list_(pa.int64())),
        ("block_strides", pa.list_(pa.int64())),
    ]
)


def plan_layout_write(prepared: PreparedWrite) -> WritePlan:
    """Plan a write in the layouts ``chunks`` and ``refs``."""
    created, resized, targets = _targets(prepared)
    if not targets:
        raise InvalidInputError(
            f"group {prepared.group} has no array to write chunks to; describe each with "
            'encoding={"name": {"shape": [...], "chunks": [...], "dtype": "float32", '
            '"dims": [...]}}',
            group=str(prepared.group),
        )
    table, units = _array_table(targets, prepared.options.layout)
    fields = [pa.field(UNIT, pa.int64()), pa.field(BLOCK, pa.int64())]
    fields += [pa.field(name, column.arrow_type) for name, column in prepared.columns.items()]
    part = WritePart(
        destination=prepared.destination,
        number=0,
        dims=(),
        arrays=tuple(targets),
        units=units,
        input_schema=pa.schema(fields),
        decoded=prepared.options.decoded,
    )
    return WritePlan(
        **prepared.stage(),
        parts=(part,),
        created=tuple(created),
        resized=tuple(resized),
        array_table=table,
    )


def _targets(
    prepared: PreparedWrite,
) -> tuple[list[WriteTarget], list[tuple[str, ArrayMetadata]], list[WriteTarget]]:
    created: list[WriteTarget] = []
    resized: list[tuple[str, ArrayMetadata]] = []
    targets: list[WriteTarget] = []
    encoding = prepared.options.encoding
    for variable in prepared.kept.values():
        metadata = _existing(variable, encoding.get(variable.name, {}))
        if metadata is not variable.metadata:
            resized.append((variable.path, metadata))
        targets.append(WriteTarget.of_existing(variable, metadata))
    described = {name: given for name, given in encoding.items() if name not in prepared.kept}
    # Replaced arrays without a new description keep their metadata, without chunks.
    before = {n: v for n, v in prepared.replaced.items() if n not in described}
    for name, given in described.items():
        created.append(WriteTarget.of_new(_described(prepared.array_path(name), name, given)))
    names = [name for array in created for name in (array.name, *array.dims)]
    check_case(names, {**prepared.kept, **before})
    created += [WriteTarget.of_new(variable.metadata) for variable in before.values()]
    return created, resized, [*targets, *created]


def _existing(variable: Variable, given: Mapping[str, Any]) -> ArrayMetadata:
    """Return the document of an existing array, enlarged to the given shape."""
    others = sorted(given.keys() - {"shape"})
    if others:
        raise InvalidInputError(
            f"array {variable.path} exists, and only its shape can change; leave "
            f"{', '.join(others)} out of its encoding, or write with mode=overwrite",
            variable=variable.name,
        )
    if given.get("shape") is None:
        return variable.metadata
    shape = _shape(given["shape"], variable.name)
    if len(shape) != len(variable.shape) or any(
        new < old for new, old in zip(shape, variable.shape, strict=False)
    ):
        raise InvalidInputError(
            f"array {variable.path} has the shape {variable.shape} and can only grow; found "
            f"shape={list(shape)}",
            variable=variable.name,
        )
    return variable.metadata if shape == variable.shape else variable.metadata.with_shape(shape)


def _shape(given: Any, name: str) -> tuple[int, ...]:
    if not isinstance(given, list | tuple) or not all(type(n) is int and n >= 0 for n in given):
        raise bad_encoding(name, "shape", given, "must be a list of whole numbers")
    return tuple(given)


def _described(path: str, name: str, given: Mapping[str, Any]) -> ArrayMetadata:
    """Return the document of an array that the option ``encoding`` describes."""
    for key in ("shape", "dtype"):
        if given.get(key) is None:
            raise InvalidInputError(
                f"array {path} does not exist, and its encoding lacks {key!r}; describe it with "
                "shape, dtype, chunks and dims",
                variable=name,
                key=key,
            )
    shape = _shape(given["shape"], name)
    dims = given.get("dims")
    if dims is not None and (not isinstance(dims, list | tuple) or len(dims) != len(shape)):
        problem = f"must name each of the {len(shape)} dimensions"
        raise bad_encoding(name, "dims", dims, problem)
    data_type = named_type(given["dtype"], name)
    axes = tuple(dims) if dims is not None else tuple(f"dim_{n}" for n in range(len(shape)))
    attributes = described_attributes(given, data_type, name)
    # Raises for a CF attribute that readers would refuse.
    missing = declared_missing(attributes, data_type, name)
    chunks = sizes_of(given.get("chunks"), axes, "chunks", name)
    codecs = given.get("codecs")
    if codecs is None and "compressors" in given:
        codecs = codecs_of(given["compressors"], data_type, name)
    fill_value = encoded_fill(given.get("fill_value"), data_type, name)
    if fill_value is None:
        # Unwritten chunks are read as missing values, if the array has a missing value.
        fill_value = default_fill_value(data_type) if missing is None else missing
    return build_array_metadata(
        shape=shape,
        data_type=data_type,
        chunk_shape=chunks or default_chunks(shape, data_type),
        shard_shape=sizes_of(given.get("shards"), axes, "shards", name),
        fill_value=fill_value,
        codecs=codecs,
        dimension_names=dims,
        attributes=attributes,
        node_path=path,
    )


def _array_table(targets: list[WriteTarget], layout: str) -> tuple[pa.Table, int]:
    rows: list[dict[str, Any]] = []
    base = 0
    for target in targets:
        units, numbers = _numbers_of(target.metadata, layout)
        rows.append({"array": target.name, "base": base, **numbers})
        base += units
    return pa.Table.from_pylist(rows, schema=_TABLE_FIELDS), base


def _numbers_of(metadata: ArrayMetadata, layout: str) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Return the number of units of an array, and its row of ``WritePlan.array_table``."""
    counts = [max(1, count) for count in metadata.grid.num_chunks]
    per_block = (1,) * len(counts)
    sharding = metadata.chunk_codecs().sharding
    chunk_shape = metadata.grid.chunk_shape
    if layout == "chunks" and sharding is not None and chunk_shape is not None:
        pairs = zip(chunk_shape, sharding.inner_shape, strict=True)
        per_block = tuple(outer // inner for outer, inner in pairs)
    wanted = _REFS_PER_UNIT
    if layout == "chunks":
        item = metadata.data_type.item_bytes
        nbytes = item * math.prod(chunk_shape or (2**20,))
        wanted = max(1, _BYTES_PER_UNIT // nbytes)
    per_unit = sides_from_last(counts, wanted)
    units = [-(-count // taken) for count, taken in zip(counts, per_unit, strict=True)]
    return math.prod(units), {
        "per_block": per_block,
        "blocks_per_unit": per_unit,
        "unit_strides": _strides(units),
        "block_strides": _strides(counts),
    }


def _strides(counts: list[int]) -> tuple[int, ...]:
    return tuple(math.prod(counts[axis + 1 :]) for axis in range(len(counts)))
