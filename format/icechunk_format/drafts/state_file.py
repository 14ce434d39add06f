"""Reads the draft with a state file: ``state.json``, and Parquet files in ``s/`` and ``i/``.

Decisions where the draft is silent
-----------------------------------
1. **Names of files** are keys within ``s/`` (structure files), ``i/`` (manifests) or ``c/``
   (chunks), and do not leave it; ``.parquet`` is tried where a name has no such object.
2. **Branch ``main``.** A draft without refs has a branch ``main`` at its newest version.
3. **Fill values** are the bytes of one element, little-endian; bytes of another number are JSON,
   as **configurations of codecs** and **attributes** are. A **message** is a property.
4. **Coordinates** of chunks are one big-endian unsigned number per axis, all of the same size (1,
   2, 4 or 8 bytes): as short as numbers allow, sorted as bytes, comparable in Arrow.
5. **``chunk_file``** with ``://`` is the URL of a virtual chunk. A missing ``offset`` is 0. A row
   with ``inline_data`` needs no file.
6. **Not needed** are ``row`` and ``extent`` of ``inventories``, and ``flags``.
7. **Widths of integers.** 16 bits hold neither shapes nor chunk counts of real arrays, so wider
   columns of the same names are read as well.

Specification: drafts, "state file".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icechunk_format.drafts.model import (
    DraftChunk,
    DraftNode,
    DraftSnapshot,
    array_members,
    make_node,
)
from icechunk_format.drafts.records import MAX_RECORD_BYTES, Field, read_object, read_record
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.storage.protocol import Storage, check_key

STATE: Final = "state.json"

_MAX_MILLISECONDS: Final = 2**62 // 1000
_MAX_ROWS: Final = 100_000_000
_NODES: Final = (
    *("id", "type", "path"),
    *("array_metadata", "inline_attrs", "attrs_reference", "inventories"),
)
_CHUNKS: Final = ("array_id", "coord", "inline_data", "chunk_file", "offset", "length")


class StateFile:
    """Reads this draft: the state file of one storage, and the other files of another."""

    kind = "state file"

    def __init__(self, storage: Storage, data: Storage) -> None:
        self.storage = data
        state = read_record(storage, STATE, "draft state")
        root, refs = state.get("store_root"), state.get("refs")
        self.store_root = "" if root is None else root.of(str).rstrip("/")
        self.properties = {"id": state["id"].of(str), "generation": state["generation"].integer()}
        self._snapshots: dict[str, tuple[DraftSnapshot, Field]] = {}
        for record in state["snapshots"].items():
            found = _snapshot(record)
            if found.id in self._snapshots:
                raise record.error(f"{found.id!r} is listed twice")
            self._snapshots[found.id] = found, record["structure-file"]
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        for name, ref in () if refs is None else refs.fields():
            target, kind = ref["snapshot-id"].of(str), ref["type"].value
            if target not in self._snapshots or ref.value.get("name", name) != name:
                raise ref.error("its own name and the id of one of the snapshots are expected")
            if kind not in ("branch", "tag"):
                raise ref["type"].error(f"{kind!r} is neither 'branch' nor 'tag'")
            (self.branches if kind == "branch" else self.tags)[name] = target
        if not (self.branches or self.tags) and self._snapshots:
            newest = max(self._snapshots.values(), key=lambda version: version[0].written_at)
            self.branches["main"] = newest[0].id

    def snapshot(self, snapshot_id: str) -> DraftSnapshot | None:
        """Return one version."""
        found = self._snapshots.get(snapshot_id)
        return None if found is None else found[0]

    def nodes(self, snapshot_id: str) -> Iterator[DraftNode]:
        """Read the nodes of a version."""
        key = self._key("s/", self._snapshots[snapshot_id][1])
        for record in self._rows(key, "draft structure", _NODES):
            yield self._node(record)

    def _node(self, record: Field) -> DraftNode:
        inline, inventories = record.get("inline_attrs"), record.get("inventories")
        attributes = {} if inline is None else inline.json()
        if record.get("attrs_reference") is not None:
            attributes = None
        if record["type"].value == "group":
            return make_node(record, attributes)
        if record["type"].value != "array":
            raise record["type"].error("'array' or 'group' is expected")
        fields = record["array_metadata"]
        grid, data_type, fill_value = (
            fields["chunk_grid"],
            fields["data_type"],
            fields.get("fill_value"),
        )
        if grid["name"].value != "regular":
            path = record["path"].of(str)
            raise UnsupportedError(f"array {path!r} has no regular chunk grid", node_path=path)
        array = array_members(
            fields,
            data_type.json() if data_type.of(str).startswith("{") else data_type.value,
            grid["configuration"]["chunk_shape"],
            None if fill_value is None else fill_value.raw(),
        )
        files = () if inventories is None else inventories.items()
        keys = [self._key("i/", file["inventory_file"]) for file in files]
        return make_node(record, attributes, array, keys)

    def chunks(self, object_key: str, node: DraftNode) -> Iterator[DraftChunk]:
        """Read the references of one array in a manifest, whose other arrays are passed over."""
        ndim = 0 if node.array is None else node.array.ndim
        for ref in self._rows(object_key, "draft manifest", _CHUNKS, node.id):
            at, inline, offset = ref["coord"].raw(), ref.get("inline_data"), ref.get("offset")
            width = len(at) // max(ndim, 1)
            if len(at) != width * ndim or width not in ((1, 2, 4, 8) if ndim else (0,)):
                raise ref["coord"].error(f"{ndim} numbers of 1, 2, 4 or 8 bytes are expected")
            coords = [int.from_bytes(at[i * width : (i + 1) * width], "big") for i in range(ndim)]
            if inline is not None:
                data = inline.raw()
                yield coords, KIND_INLINE, data, 0, len(data)
                continue
            kind, place = KIND_VIRTUAL, ref["chunk_file"].of(str)
            if "://" not in place:
                kind, place = KIND_NATIVE, _checked_key("c/", ref["chunk_file"])
            start = 0 if offset is None else offset.integer()
            yield coords, kind, place.encode(), start, ref["length"].integer()

    def _key(self, folder: str, name: Field) -> str:
        key = _checked_key(folder, name)
        longer = f"{key}.parquet"
        if self.storage.head(key) is None and self.storage.head(longer) is not None:
            return longer
        return key

    def _rows(
        self, key: str, file_type: str, columns: tuple[str, ...], array_id: int | None = None
    ) -> Iterator[Field]:
        """Yield the rows of a Parquet file; with ``array_id`` those of one array only."""
        whole = Field(None, key, file_type)
        data = read_object(self.storage, key, file_type)
        # Damaged files make Arrow raise OSError and ValueError besides its own errors.
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            if size > MAX_RECORD_BYTES or file.metadata.num_rows > _MAX_ROWS:
                raise whole.error("it is too large to be read")
            names = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                # Texts that are not UTF-8, and offsets that lead nowhere, are found here.
                batch.validate(full=True)
                if array_id is not None:
                    batch = batch.filter(pc.equal(batch["array_id"], array_id))
                for row in batch.to_pylist():
                    yield Field(row, key, file_type)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise whole.error(f"it is not Parquet that can be read ({error})") from error


def _snapshot(record: Field) -> DraftSnapshot:
    parent, given = record.get("parent-snapshot-id"), record.get("properties")
    properties = {} if given is None else given.mapping()
    message = properties.get("message")
    return DraftSnapshot(
        id=record["snapshot-id"].of(str),
        parent_id=None if parent is None else parent.of(str),
        written_at=record["timestamp-ms"].integer(0, _MAX_MILLISECONDS) * 1000,
        message=message if isinstance(message, str) else "",
        properties=properties,
    )


def _checked_key(folder: str, name: Field) -> str:
    try:
        return check_key(folder + name.of(str))
    except InvalidInputError as error:
        raise name.error(error.message) from error
