"""The Parquet files of the draft with a state file: nodes, and chunk references.

Specification: drafts, "state file": structure files and chunk manifest files. What the draft
leaves open is decided at the head of ``state_file``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icechunk_format.arrays.data_types import parse_data_type
from icechunk_format.arrays.fill_values import encode_fill_value
from icechunk_format.drafts.model import DraftChunks, DraftNode
from icechunk_format.drafts.records import MAX_RECORD_BYTES, Record
from icechunk_format.drafts.zarr_documents import array_document, group_document
from icechunk_format.errors import FormatError, IcechunkError, InvalidInputError, UnsupportedError
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.spec.node_path import parse_node_path
from icechunk_format.storage.protocol import check_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MAX_NODES: Final = 1_000_000
_MAX_U32: Final = 2**32 - 1
_STRUCTURE: Final = "draft structure"
_MANIFEST: Final = "draft manifest"
_WIDTHS: Final = (1, 2, 4, 8)


def read_structure(
    data: bytes, object_key: str, manifest_key: Callable[[str], str]
) -> list[DraftNode]:
    """Read the nodes of a structure file, sorted by path.

    Raises
    ------
    FormatError
        The file is not Parquet, lacks a column, or a node is malformed.
    UnsupportedError
        A node uses what the draft does not describe.
    """
    columns = ("id", "type", "path")
    optional = ("array_metadata", "inline_attrs", "attrs_reference", "inventories")
    table = _read_table(data, object_key, _STRUCTURE, columns, optional)
    if table.num_rows > MAX_NODES:
        raise FormatError(
            f"{table.num_rows} nodes; up to {MAX_NODES} are read",
            object_key=object_key,
            file_type=_STRUCTURE,
        )
    found = []
    for number, row in enumerate(table.to_pylist()):
        record = Record(row, object_key, _STRUCTURE, f"row {number}")
        found.append(_node(record, manifest_key))
    for what in ("id", "path"):
        values = [getattr(node, what) for node in found]
        if len(set(values)) != len(values):
            raise FormatError(
                f"two nodes have the same {what}",
                object_key=object_key,
                file_type=_STRUCTURE,
                field=what,
            )
    return sorted(found, key=lambda node: node.path)


def _read_table(
    data: bytes,
    object_key: str,
    file_type: str,
    columns: tuple[str, ...],
    optional: tuple[str, ...],
) -> pa.Table:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        missing = [name for name in columns if name not in names]
        if not missing:
            groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            if size <= MAX_RECORD_BYTES:
                table = file.read([n for n in (*columns, *optional) if n in names])
                # Texts that are not UTF-8, and offsets that lead nowhere, are found here.
                table.validate(full=True)
                return table
    # Damaged files make Arrow raise OSError and ValueError besides its own errors.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(
            f"not a Parquet file that can be read ({error})",
            object_key=object_key,
            file_type=file_type,
        ) from error
    problem = f"column {missing[0]!r} is missing" if missing else f"{size} bytes are too many"
    raise FormatError(problem, object_key=object_key, file_type=file_type)


def _node(record: Record, manifest_key: Callable[[str], str]) -> DraftNode:
    number = record.integer("id", 0, _MAX_U32)
    try:
        path = parse_node_path(record.text("path"))
    except InvalidInputError as error:
        raise record.error(error.message, "path") from error
    if record.has("attrs_reference"):
        raise UnsupportedError(
            f"the attributes of node {path!r} are in a file of their own, whose form the draft "
            "does not describe; store them with the node first",
            node_path=path,
        )
    attributes = _json(record, "inline_attrs", {})
    if not isinstance(attributes, dict):
        raise record.error("a JSON object is expected", "inline_attrs")
    kind = record.text("type")
    if kind == "group":
        return DraftNode(id=number, path=path, user_data=group_document(attributes))
    if kind != "array":
        raise record.error(f"{kind!r} is neither 'array' nor 'group'", "type")
    fields = record.below("array_metadata")
    try:
        user_data, metadata = _array(fields, path, attributes)
    except UnsupportedError:
        raise
    except FormatError as error:
        if error.facts["object_key"] == record.object_key:
            raise
        raise fields.error(error.message) from error
    manifests = []
    for place, value in enumerate(record.items("inventories", optional=True)):
        manifests.append(
            manifest_key(record.at(value, f"inventories[{place}]").text("inventory_file"))
        )
    return DraftNode(
        id=number,
        path=path,
        user_data=user_data,
        array=metadata,
        manifests=tuple(dict.fromkeys(manifests)),
    )


def _array(fields: Record, path: str, attributes: dict[str, Any]) -> tuple[bytes, Any]:
    grid = fields.below("chunk_grid")
    if grid.text("name") != "regular":
        raise UnsupportedError(
            f"array {path!r} has a chunk grid {grid.text('name')!r}; regular ones are read",
            node_path=path,
        )
    shape = [fields.as_integer(n, "shape", 0, 2**63 - 1) for n in fields.items("shape")]
    configuration = grid.below("configuration")
    chunk_shape = [
        configuration.as_integer(n, "chunk_shape", 1, 2**63 - 1)
        for n in configuration.items("chunk_shape")
    ]
    if len(shape) != len(chunk_shape):
        raise fields.error(f"{len(chunk_shape)} sizes for {len(shape)} dimensions", "chunk_grid")
    codecs = []
    for place, value in enumerate(fields.items("codecs", optional=True)):
        codec = fields.at(value, f"codecs[{place}]")
        entry: dict[str, Any] = {"name": codec.text("name")}
        if codec.has("configuration"):
            entry["configuration"] = _json(codec, "configuration", None)
        codecs.append(entry)
    data_type = _word_or_json(fields.text("data_type"))
    names = fields.items("dimension_names", optional=True)
    return array_document(
        path=path,
        shape=shape,
        data_type=data_type,
        chunk_shape=chunk_shape,
        fill_value=_fill_value(fields, data_type, path),
        codecs=codecs,
        dimension_names=names if fields.has("dimension_names") else None,
        attributes=attributes,
    )


def _word_or_json(text: str) -> Any:
    """Return the name of a data type, or the JSON of one with a configuration."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(record: Record, name: str, default: Any) -> Any:
    if not record.has(name):
        return default
    raw = record.raw_bytes(record.field(name), name)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise record.error(f"it is not JSON ({error})", name) from error


def _fill_value(fields: Record, data_type: Any, path: str) -> Any:
    if not fields.has("fill_value"):
        return None
    raw = fields.raw_bytes(fields.field("fill_value"), "fill_value")
    known = parse_data_type(data_type, node_path=path)
    if not known.itemsize or len(raw) != known.itemsize:
        return _json(fields, "fill_value", None)
    try:
        element = np.frombuffer(raw, dtype=known.numpy.newbyteorder("<"))
        return encode_fill_value(element.astype(known.numpy)[0], known)
    except (IcechunkError, ValueError) as error:
        raise fields.error(f"{raw!r} is no element of {data_type!r}", "fill_value") from error


# -- manifests ------------------------------------------------------------------------------


def read_chunk_table(data: bytes, object_key: str, node: DraftNode, folder: str) -> DraftChunks:
    """Read the references of one array in a manifest.

    Parameters
    ----------
    folder
        Where chunk files are.

    Raises
    ------
    FormatError
        The file is not Parquet, lacks a column, or a reference of the array is malformed.
    """
    assert node.array is not None

    def error(problem: str, field: str | None = None) -> FormatError:
        return FormatError(problem, object_key=object_key, file_type=_MANIFEST, field=field)

    columns = ("array_id", "coord", "length")
    table = _read_table(
        data, object_key, _MANIFEST, columns, ("inline_data", "chunk_file", "offset")
    )
    wanted = {
        "array_id": pa.int64(),
        "coord": pa.large_binary(),
        "length": pa.uint64(),
        "inline_data": pa.large_binary(),
        "chunk_file": pa.large_string(),
        "offset": pa.uint64(),
    }
    cast = {}
    for name, arrow_type in wanted.items():
        if name not in table.column_names:
            cast[name] = pa.nulls(table.num_rows, arrow_type)
            continue
        try:
            cast[name] = table[name].combine_chunks().cast(arrow_type)
        except pa.ArrowException as problem:
            raise error(f"{table[name].type} is not {arrow_type} ({problem})", name) from problem
    rows = pa.table(cast)
    for name in ("coord", "length"):
        if rows[name].null_count:
            raise error("it has rows without a value", name)
    rows = rows.filter(pc.equal(rows["array_id"], node.id)).combine_chunks()
    n, ndim = rows.num_rows, node.array.ndim
    coords = _coordinates(_only_chunk(rows["coord"], pa.large_binary()), ndim)
    if coords is None:
        raise error(
            f"coordinates of {node.path!r} are not {ndim} numbers of 1, 2, 4 or 8 bytes", "coord"
        )
    inline = _only_chunk(rows["inline_data"], pa.large_binary())
    names = _only_chunk(rows["chunk_file"], pa.large_string())
    is_inline = inline.is_valid().to_numpy(zero_copy_only=False)
    if not (is_inline | names.is_valid().to_numpy(zero_copy_only=False)).all():
        raise error("a reference has neither inline_data nor chunk_file", "chunk_file")
    is_url = pc.match_substring(names, "://").fill_null(False).to_numpy(zero_copy_only=False)
    kind = np.where(is_inline, KIND_INLINE, np.where(is_url, KIND_VIRTUAL, KIND_NATIVE))
    native = pc.filter(names, pa.array(kind == KIND_NATIVE))
    for name in pc.unique(native).to_pylist():
        try:
            check_key(folder + name)
        except InvalidInputError as problem:
            raise error(problem.message, "chunk_file") from problem
    folder_text, nothing = (pa.scalar(text, pa.large_string()) for text in (folder, ""))
    keys = pc.binary_join_element_wise(folder_text, names, nothing)
    texts = pc.if_else(pa.array(is_url), names, keys).cast(pa.large_binary())
    payload = pc.if_else(pa.array(is_inline), inline, texts)
    offset = _only_chunk(rows["offset"], pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
    length = _only_chunk(rows["length"], pa.uint64()).to_numpy(zero_copy_only=False)
    sizes = pc.binary_length(inline).fill_null(0).to_numpy(zero_copy_only=False)
    length = np.where(is_inline, sizes.astype(np.uint64), length)
    if (length == 0).any():
        raise error("a chunk of 0 bytes cannot be read", "length")
    return DraftChunks(
        coords=coords,
        kind=kind.astype(np.uint8).reshape(n),
        payload=payload,
        offset=np.where(is_inline, np.uint64(0), offset).astype(np.uint64),
        length=length.astype(np.uint64),
    )


def _only_chunk(column: pa.ChunkedArray, arrow_type: pa.DataType) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return (
            pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], arrow_type)
        )
    return combined


def _coordinates(column: pa.LargeBinaryArray, ndim: int) -> NDArray[np.uint32] | None:
    """Return coordinates, uint32 of shape (n, ndim); None where a row has another number of them.

    Rows of different widths are read together by width.
    """
    n = len(column)
    sizes = pc.binary_length(column).to_numpy(zero_copy_only=False)
    found = np.zeros((n, ndim), dtype=np.uint32)
    if ndim == 0:
        return found if not sizes.any() else None
    done = np.zeros(n, dtype=np.bool_)
    for width in _WIDTHS:
        rows = np.flatnonzero(sizes == width * ndim)
        raw = b"".join(column.take(pa.array(rows)).to_pylist())
        numbers = np.frombuffer(raw, dtype=f">u{width}").reshape(len(rows), ndim)
        if (numbers > _MAX_U32).any():
            return None
        found[rows] = numbers
        done[rows] = True
    return found if done.all() else None
